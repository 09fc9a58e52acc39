"""The user agent on its sockets, UDP, TCP and TLS, and its calls as their owners on the event loop hold them."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from callagent.log import get_logger
from callagent.sip.dialog import (
    NO_HEADERS,
    CallAnswered,
    CallClosed,
    CallConfirmed,
    CallReplaced,
    Dialog,
    Event,
    InviteReceived,
    SipCall,
    UserAgentSettings,
    Way,
    send_digit,
)
from callagent.sip.message import Address, Credentials, Request, Response, Uri, host_reference
from callagent.sip.transport import (
    Connections,
    Datagrams,
    Hop,
    Lookup,
    LookupFailed,
    StreamLimits,
    TlsContexts,
    TlsSettings,
    Trace,
    route_to,
    transport_of,
)
from callagent.sip.user_agent import UserAgent

log = get_logger(__name__)

_MAX_KNOWN_ROUTES = 1024
_MAX_SEARCHES = 256


class Endpoint:
    def __init__(
        self,
        settings: UserAgentSettings,
        on_invite: Callable[[EndpointCall], None] | None,
        tls: TlsSettings,
        limits: StreamLimits,
    ) -> None:
        """Made by `open`."""
        self.local_address = ("", 0)
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._on_invite = on_invite
        self._user_agent = UserAgent(settings, self._local)
        self.trace = Trace(self._user_agent.is_call)
        self._calls: dict[SipCall, EndpointCall] = {}
        self._routes: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False
        self._datagrams: Datagrams | None = None
        self._ports: dict[str, int] = {}
        self._connections = Connections(
            TlsContexts(tls), self._user_agent.admits, self._receive_framed, self._lose_connection, limits
        )
        self._lookup = Lookup(socket.AF_INET)
        self._searches: set[asyncio.Task[None]] = set()

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        settings: UserAgentSettings,
        on_invite: Callable[[EndpointCall], None] | None = None,
        *,
        tls: TlsSettings | None = None,
        limits: StreamLimits | None = None,
    ) -> Endpoint:
        """Listen on UDP; port 0 takes any. Without `on_invite` calls are refused. Raises `OSError`."""
        endpoint = cls(settings, on_invite, tls or TlsSettings(), limits or StreamLimits())
        datagrams = await Datagrams.open(host, port, endpoint._receive_datagram)
        endpoint._datagrams = datagrams
        endpoint.local_address = datagrams.local_address
        family = socket.AF_INET6 if ":" in datagrams.local_address[0] else socket.AF_INET
        endpoint.use_lookup(Lookup(family))
        return endpoint

    def prepare(self) -> None:
        """Load what a first host name and a first TLS connection of ours need: 50 ms that no call has to wait for."""
        self._lookup.prepare()
        self._connections.prepare()

    async def listen(self, transport: str, host: str, port: int) -> tuple[str, int]:
        """Accept `tcp` or `tls` connections as well; the address. Raises `OSError`."""
        address = await self._connections.listen(transport, host, port)
        self._ports[transport] = address[1]
        return address

    def use_lookup(self, lookup: Lookup) -> None:
        self._lookup = lookup

    async def call(
        self,
        target: str,
        *,
        caller: str | None = None,
        body: Callable[[str], bytes],
        headers: Mapping[str, str] = NO_HEADERS,
        credentials: Credentials | None = None,
        proxy: Uri | None = None,
        route: tuple[Address, ...] = (),
    ) -> EndpointCall:
        """Call a SIP URI. `body` makes the offer from our own address. Raises `ValueError` and `LookupFailed`.

        The INVITE goes to the first of `route` or to `proxy` where there is one, else to where the URI leads. A
        `caller` that is no URI is a user at our own address.
        """
        uri = Uri.parse(target)
        if uri.scheme not in ("sip", "sips"):
            raise ValueError("Only sip URIs can be called")
        hops = await self._lookup.hops(_first_hop(route, proxy or uri))
        local = self.local_host(hops[0].host)
        ours = f"sip:{caller or 'callagent'}@{host_reference(self._settings.public_host or local)}"
        sender = Address.parse(caller if caller and ":" in caller else ours)
        offer = body(local)
        way = Way(hops, credentials, route)
        core = self._user_agent.call(uri, way, self.now(), caller=sender, body=offer, headers=headers)
        handle = self._calls[core] = EndpointCall(self, core, "")
        self.flush()
        return handle

    async def find(self, uri: Uri) -> tuple[Hop, ...]:
        """Where a URI leads to. Raises `LookupFailed` and `ValueError`."""
        return await self._lookup.hops(uri)

    async def request(self, request: Request, hop: Hop) -> Response | None:
        """Send a request outside of calls; its final response, None when nobody answered in time."""
        answered: asyncio.Future[Response | None] = self._loop.create_future()

        def heard(response: Response | None, now: float) -> None:
            if not answered.done() and (response is None or response.status >= 200):
                answered.set_result(response)

        self._user_agent.request(request, hop, heard, self.now())
        self.flush()
        return await answered

    async def close(self, seconds: float = 2.0) -> None:
        """End what still runs, wait for its last messages, but not longer than `seconds`, and free the sockets."""
        if self._datagrams is None:
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
        for search in self._searches:
            search.cancel()
        self._datagrams.close()
        self._datagrams = None
        await self._connections.close()

    def now(self) -> float:
        return self._loop.time()

    def local_host(self, peer: str | None = None) -> str:
        """The IP address at which this peer reaches our media, for SDP."""
        return self._settings.public_address or self._local(Hop(peer or "127.0.0.1", 0))[0]

    def handle_of(self, core: SipCall) -> EndpointCall:
        return self._calls[core]

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

    # private

    def _receive_datagram(self, data: bytes, source: tuple[str, int]) -> None:
        log.debug("<", peer=source[0], port=source[1], message=data)
        now = self.now()
        self._user_agent.receive_datagram(data, source, now)
        # Only now is an INVITE known as a call; what it brings about is not sent yet.
        self.trace.add(data, Hop(source[0], source[1]), now, sent=False)
        self.flush()

    def _receive_framed(self, data: bytes, source: Hop, whole: bool) -> None:
        log.debug("<", peer=source.host, port=source.port, transport=source.transport, message=data)
        now = self.now()
        self._user_agent.receive_message(data, source, now, whole=whole)
        self.trace.add(data, source, now, sent=False)
        self.flush()

    def _lose_connection(self, hop: Hop) -> None:
        self._user_agent.fail(hop, self.now())
        self.flush()

    def _step(self) -> bool:
        """Whether there was anything to do; a handler's verbs make more."""
        messages = self._user_agent.datagrams_to_send()
        for data, hop in messages:
            self._send(data, hop)
        event = self._user_agent.next_event()
        if event is not None:
            self._deliver(event)
        return bool(messages) or event is not None

    def _send(self, data: bytes, hop: Hop) -> None:
        log.debug(">", peer=hop.host, port=hop.port, transport=hop.transport, message=data)
        self.trace.add(data, hop, self.now(), sent=True)
        if self._datagrams is None:
            return
        if hop.reliable:
            self._connections.send(data, hop)
        else:
            self._datagrams.send(data, (hop.host, hop.port))

    def _deliver(self, event: Event) -> None:
        if isinstance(event, InviteReceived):
            call = self._calls[event.call] = EndpointCall(self, event.call, event.trunk)
            if self._on_invite is None:
                call.hang_up(status=480)
            else:
                self._on_invite(call)
            return
        if isinstance(event, CallAnswered | CallConfirmed):
            self._search(event.call)
        handle = self._calls.get(event.call)
        if isinstance(event, CallReplaced):
            self._calls[event.by] = EndpointCall(self, event.by, "" if handle is None else handle.trunk)
        if handle is not None:
            handle.deliver(event)
        if handle is not None and isinstance(event, CallClosed):
            handle.close()
            self.trace.end(event.call.invite.call_id)
            del self._calls[event.call]

    def _search(self, core: SipCall) -> None:
        """Look up a host name that requests of the call will go to; until then they go where the peer was heard."""
        dialog = core.dialog
        uri = None if dialog is None else dialog.name_to_find()
        if dialog is None or uri is None or len(self._searches) >= _MAX_SEARCHES:
            return
        task = asyncio.create_task(self._find_for(dialog, uri))
        self._searches.add(task)
        task.add_done_callback(self._searches.discard)

    async def _find_for(self, dialog: Dialog, uri: Uri) -> None:
        try:
            dialog.found[uri] = (await self._lookup.hops(uri))[0]
        except (LookupFailed, ValueError) as error:
            log.info("sip_host_not_found", host=uri.host, error=str(error))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        when = self._user_agent.next_timer()
        if when is not None and self._datagrams is not None:
            self._timer = self._loop.call_at(when, self._fire)

    def _fire(self) -> None:
        try:
            self._user_agent.handle_timer(max(self.now(), self._user_agent.next_timer() or 0.0))
        finally:
            # Whatever one call's timer came to, the timers of the others go on.
            self.flush()

    def _local(self, peer: Hop) -> tuple[str, int]:
        host, port = self.local_address
        # Without a listener of that transport the peer has only the connection that we opened.
        port = self._ports.get(peer.transport, port)
        if not ipaddress.ip_address(host).is_unspecified:
            return host, port
        if peer.host not in self._routes:
            if len(self._routes) >= _MAX_KNOWN_ROUTES:
                self._routes.clear()
            self._routes[peer.host] = route_to(peer.host)
        return self._routes[peer.host], port


def _first_hop(route: tuple[Address, ...], server: Uri) -> Uri:
    """Where a call with this route is sent: to the first of it. Where that is the server, the server's URI counts, for
    a route need not tell the transport again; and what would go there encrypted goes nowhere in the clear."""
    if not route:
        return server
    first = route[0].uri
    same = (first.bare_host.lower(), first.port) == (server.bare_host.lower(), server.port)
    exposed = transport_of(server) == "tls" and transport_of(first) != "tls"
    return server if same or exposed else first


_MAX_EARLY_EVENTS = 64


class CallHost(Protocol):
    """What a call needs of its endpoint."""

    def now(self) -> float: ...

    def flush(self) -> None: ...

    def local_host(self, peer: str | None = None) -> str: ...

    def handle_of(self, core: SipCall) -> EndpointCall: ...


class EndpointCall:
    """One call's verbs without `now`, and its events."""

    def __init__(self, endpoint: CallHost, core: SipCall, trunk: str) -> None:
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

    def ring(self, body: bytes = b"") -> None:
        """180; or 183 with our answer in `body`, for what is to be heard before the call is taken."""
        self.core.ring(self._endpoint.now(), body)
        self._endpoint.flush()

    def answer(self, body: bytes) -> None:
        self.core.answer(body, self._endpoint.now())
        self._endpoint.flush()

    def hang_up(self, *, status: int = 480, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.core.hang_up(self._endpoint.now(), status=status, headers=headers)
        self._endpoint.flush()

    def refer(self, target: Uri, headers: Mapping[str, str] = NO_HEADERS, *, to: EndpointCall | None = None) -> None:
        """Ask the peer to call `target`, or, given `to`, to take our place in that call (RFC 5589 §7)."""
        replaced = None if to is None else to.core
        self.core.refer(target, self._endpoint.now(), headers, replaced)
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

    def successor(self, by: SipCall) -> EndpointCall:
        """The call of a `CallReplaced` event."""
        return self._endpoint.handle_of(by)

    def deliver(self, event: Event) -> None:
        if self._on_event is None:
            self._early.append(event)
        else:
            self._on_event(event)

    def close(self) -> None:
        """After its last event: nobody hears of it again, and it keeps nobody who listened."""
        self._on_event = _ignore
        self.closed.set()


def _ignore(event: Event) -> None:
    """For a call that is over."""
