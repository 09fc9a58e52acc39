"""The user agent on a UDP socket: the only I/O of this package."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import cast

from callagent.log import get_logger
from callagent.sip.address import Address
from callagent.sip.call import NO_HEADERS, SipCall
from callagent.sip.dialog import hop_of
from callagent.sip.events import CallClosed, Event, InviteReceived
from callagent.sip.in_dialog import send_digit
from callagent.sip.transaction_layer import Hop
from callagent.sip.uri import Uri, host_reference
from callagent.sip.user_agent import UserAgent
from callagent.sip.wire import UserAgentSettings

log = get_logger(__name__)

_RECEIVE_BUFFER = 4 * 1024 * 1024
_MAX_KNOWN_ROUTES = 1024
_MAX_EARLY_EVENTS = 64


class LookupFailed(OSError):
    """The host of a SIP URI has no address, or nobody told it in time."""


class EndpointCall:
    """One call's verbs without `now`, and its events."""

    def __init__(self, endpoint: Endpoint, core: SipCall, trunk: str) -> None:
        self.core = core
        self.trunk = trunk
        """The name that `admit` gave to the caller; empty for our own calls."""
        self.closed = asyncio.Event()
        self._endpoint = endpoint
        self._on_event: Callable[[Event], None] | None = None
        self._early: deque[Event] = deque(maxlen=_MAX_EARLY_EVENTS)

    def listen(self, on_event: Callable[[Event], None]) -> None:
        """Where events go; ones that came earlier are delivered at once."""
        self._on_event = on_event
        while self._early:
            on_event(self._early.popleft())

    def ring(self) -> None:
        self.core.ring(self._endpoint.now())
        self._endpoint.flush()

    def answer(self, body: bytes) -> None:
        self.core.answer(body, self._endpoint.now())
        self._endpoint.flush()

    def hang_up(self, *, status: int = 480, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.core.hang_up(self._endpoint.now(), status=status, headers=headers)
        self._endpoint.flush()

    def refer(self, target: Uri, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.core.refer(target, self._endpoint.now(), headers)
        self._endpoint.flush()

    def send_digit(self, digit: str) -> None:
        """By INFO."""
        send_digit(self.core, digit, self._endpoint.now())
        self._endpoint.flush()

    def report_transfer(self, status: int) -> None:
        self.core.report_transfer(status, self._endpoint.now())
        self._endpoint.flush()

    def reoffer(self, body: bytes) -> None:
        self.core.reoffer(body, self._endpoint.now())
        self._endpoint.flush()

    def accept_offer(self, body: bytes) -> None:
        self.core.accept_offer(body, self._endpoint.now())
        self._endpoint.flush()

    def refuse_offer(self, status: int = 488) -> None:
        self.core.refuse_offer(self._endpoint.now(), status)
        self._endpoint.flush()

    def local_host(self) -> str:
        """Our address as this call's peer reaches it, for SDP."""
        dialog = self.core.dialog
        peer = dialog.peer if dialog is not None else None
        return self._endpoint.local_host(peer.host if peer is not None else None)

    def deliver(self, event: Event) -> None:
        if self._on_event is None:
            self._early.append(event)
        else:
            self._on_event(event)


class Endpoint(asyncio.DatagramProtocol):
    def __init__(self, settings: UserAgentSettings, on_invite: Callable[[EndpointCall], None] | None) -> None:
        """Made by `open`."""
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._on_invite = on_invite
        self._user_agent = UserAgent(settings, self._local)
        self._calls: dict[SipCall, EndpointCall] = {}
        self._routes: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False
        self._transport: asyncio.DatagramTransport | None = None
        self.local_address = ("", 0)

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        settings: UserAgentSettings,
        on_invite: Callable[[EndpointCall], None] | None = None,
    ) -> Endpoint:
        """Listen on UDP; port 0 takes any. Without `on_invite` calls are refused. Raises `OSError`."""
        endpoint = cls(settings, on_invite)
        await endpoint._loop.create_datagram_endpoint(lambda: endpoint, sock=await _bind(endpoint._loop, host, port))
        return endpoint

    async def call(
        self,
        target: str,
        *,
        caller: str | None = None,
        body: Callable[[str], bytes],
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> EndpointCall:
        """Call a SIP URI. `body` makes the offer from our own address. Raises `ValueError` and `LookupFailed`."""
        uri = Uri.parse(target)
        if uri.scheme != "sip":
            raise ValueError("Only sip URIs can be called")
        hop = await self._look_up(uri)
        if hop.transport != "udp":
            raise ValueError("Only UDP is spoken")
        local = self.local_host(hop.host)
        sender = Address.parse(caller or f"sip:callagent@{host_reference(local)}")
        offer = body(local)
        now = self.now()
        core = self._user_agent.call(uri, hop, now, caller=sender, body=offer, headers=headers)
        handle = self._calls[core] = EndpointCall(self, core, "")
        self.flush()
        return handle

    async def close(self, seconds: float = 2.0) -> None:
        """End what still runs, wait for its last messages, but not longer than `seconds`, and free the socket."""
        if self._transport is None:
            return
        calls = list(self._calls.values())
        for call in calls:
            call.hang_up(status=503)
        try:
            async with asyncio.timeout(seconds):
                for call in calls:
                    await call.closed.wait()
        except TimeoutError:
            log.warning("sip_close_incomplete", calls=len(self._calls))
        if self._timer is not None:
            self._timer.cancel()
        self._transport.close()
        self._transport = None

    def now(self) -> float:
        return self._loop.time()

    def local_host(self, peer: str | None = None) -> str:
        """The host that we advertise to this peer."""
        return self._settings.advertised or self._local(peer or "127.0.0.1")[0]

    def flush(self) -> None:
        """Send what the core wants sent, tell its events, arm its next timer."""
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._step():
                pass
        finally:
            self._flushing = False
        self._arm()

    # asyncio.DatagramProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        name = transport.get_extra_info("sockname")
        self.local_address = (name[0], name[1])

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        log.debug("<", peer=addr[0], port=addr[1], message=data)
        self._user_agent.receive_datagram(data, (addr[0], addr[1]), self.now())
        self.flush()

    def error_received(self, exc: Exception) -> None:
        # ICMP says that nobody listens there; the retransmissions find out for themselves.
        log.debug("sip_unreachable", error=str(exc))

    # private

    def _step(self) -> bool:
        """Whether there was anything to do; a handler's verbs make more."""
        datagrams = self._user_agent.datagrams_to_send()
        for data, hop in datagrams:
            log.debug(">", peer=hop.host, port=hop.port, message=data)
            if self._transport is not None:
                self._transport.sendto(data, (hop.host, hop.port))
        event = self._user_agent.next_event()
        if event is not None:
            self._deliver(event)
        return bool(datagrams) or event is not None

    def _deliver(self, event: Event) -> None:
        if isinstance(event, InviteReceived):
            call = self._calls[event.call] = EndpointCall(self, event.call, event.trunk)
            if self._on_invite is None:
                call.hang_up(status=480)
            else:
                self._on_invite(call)
            return
        handle = self._calls.get(event.call)
        if handle is not None:
            handle.deliver(event)
        if handle is not None and isinstance(event, CallClosed):
            handle.closed.set()
            del self._calls[event.call]

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self._user_agent.next_timer()
        if when is not None and self._transport is not None:
            self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        self._user_agent.handle_timer(max(self.now(), self._user_agent.next_timer() or 0.0))
        self.flush()

    def _local(self, peer: str) -> tuple[str, int]:
        host, port = self.local_address
        if not ipaddress.ip_address(host).is_unspecified:
            return host, port
        if peer not in self._routes:
            if len(self._routes) >= _MAX_KNOWN_ROUTES:
                self._routes.clear()
            self._routes[peer] = _route_to(peer)
        return self._routes[peer], port

    async def _look_up(self, uri: Uri) -> Hop:
        known = hop_of(uri)
        if known is not None:
            return known
        family = socket.AF_INET6 if ":" in self.local_address[0] else socket.AF_INET
        try:
            async with asyncio.timeout(5):
                found = await self._loop.getaddrinfo(
                    uri.bare_host, uri.port or 5060, family=family, type=socket.SOCK_DGRAM
                )
        except (OSError, TimeoutError) as error:
            raise LookupFailed(f"{uri.bare_host} has no address: {error}") from error
        return Hop(str(found[0][4][0]), uri.port or 5060)


async def _bind(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """IPv6 stays IPv6: an IPv4 peer in IPv6 clothes would be on nobody's allow-list."""
    family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        opened.bind(address)
    except OSError:
        opened.close()
        raise
    return opened


def _route_to(peer: str) -> str:
    """The local address that packets to `peer` leave from; no packet is sent."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((peer, 9))
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
        return str(probe.getsockname()[0])
