"""The user agent with its UDP, TCP and TLS sockets on the event loop, and the handles of its calls."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Callable, Mapping

from callagent.log import get_logger
from callagent.sip.connections import Connections, StreamLimits
from callagent.sip.dialog import (
    NO_HEADERS,
    Call,
    CallAnswered,
    CallClosed,
    CallConfirmed,
    CallPath,
    CallReplaced,
    Dialog,
    Event,
    InviteReceived,
    UserAgentSettings,
)
from callagent.sip.digest import Credentials
from callagent.sip.dns_lookup import Lookup, LookupFailed
from callagent.sip.message import Address, Hop, Request, Response, Uri, host_reference, transport_of
from callagent.sip.tls import TlsContexts, TlsSettings
from callagent.sip.trace import Trace
from callagent.sip.udp import Datagrams, route_to
from callagent.sip.user_agent import UserAgent

log = get_logger(__name__)

_MAX_KNOWN_ROUTES = 1024
"""Peers for which our local address is remembered."""
_MAX_LOOKUPS = 256
"""DNS lookups for calls in progress at a time."""
_MAX_EARLY_EVENTS = 64
"""Events of a call that are kept until its owner listens."""


class Endpoint:
    """A SIP user agent with its sockets; its calls are `EndpointCall`s."""

    def __init__(
        self,
        settings: UserAgentSettings,
        on_invite: Callable[[EndpointCall], None] | None,
        tls: TlsSettings,
        limits: StreamLimits,
    ) -> None:
        """Use `open`, which also binds the UDP socket."""
        self.local_address = ("", 0)
        self._loop = asyncio.get_running_loop()
        # Read once, because messages are many; the log level is set before the sockets are opened.
        self._logs_messages = log.debug_enabled
        self._settings = settings
        self._on_invite = on_invite
        self._user_agent = UserAgent(settings, self._local_address_for)
        self.trace = Trace(self._user_agent.is_call)
        self._calls: dict[Call, EndpointCall] = {}
        self._routes: dict[str, str] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._flushing = False
        self._datagrams: Datagrams | None = None
        self._ports: dict[str, int] = {}
        self._connections = Connections(
            TlsContexts(tls), self._user_agent.admits, self._receive_framed, self._handle_lost_connection, limits
        )
        self._lookup = Lookup(socket.AF_INET)
        self._running_lookups: set[asyncio.Task[None]] = set()

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
        """Listen on UDP; port 0 takes any free port. Without `on_invite` all calls are refused. Raises `OSError`."""
        endpoint = cls(settings, on_invite, tls or TlsSettings(), limits or StreamLimits())
        datagrams = await Datagrams.open(host, port, endpoint._receive_datagram)
        endpoint._datagrams = datagrams
        endpoint.local_address = datagrams.local_address
        family = socket.AF_INET6 if ":" in datagrams.local_address[0] else socket.AF_INET
        endpoint.use_lookup(Lookup(family))
        return endpoint

    def prepare(self) -> None:
        """Load the DNS resolver and the TLS authorities now: it takes 50 ms, for which no call should wait."""
        self._lookup.prepare()
        self._connections.prepare()

    async def listen(self, transport: str, host: str, port: int) -> tuple[str, int]:
        """Accept `tcp` or `tls` connections as well, and return the address. Raises `OSError`."""
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
        """Call a SIP URI. `body` returns the offer for a given local address. Raises `ValueError` and `LookupFailed`.

        The INVITE goes to the first of `route`, or else to `proxy`, or else to the servers of the URI. A `caller` that
        is not a URI is a user at our own address.
        """
        uri = Uri.parse(target)
        if uri.scheme not in ("sip", "sips"):
            raise ValueError("Only sip URIs can be called")
        hops = await self._lookup.hops(_first_uri(route, proxy or uri))
        local = self.local_host(hops[0].host)
        ours = f"sip:{caller or 'callagent'}@{host_reference(self._settings.public_host or local)}"
        sender = Address.parse(caller if caller and ":" in caller else ours)
        offer = body(local)
        path = CallPath(hops, credentials, route)
        core = self._user_agent.call(uri, path, self.now(), caller=sender, body=offer, headers=headers)
        # The handle is stored before flush() sends the INVITE and delivers the first events.
        handle = self._calls[core] = EndpointCall(self, core, "")
        self.flush()
        return handle

    async def resolve(self, uri: Uri) -> tuple[Hop, ...]:
        """Return the servers of a URI in the order to try them. Raises `LookupFailed` and `ValueError`."""
        return await self._lookup.hops(uri)

    async def request(self, request: Request, hop: Hop) -> Response | None:
        """Send a request outside of calls, and return its final response; None if none arrives in time."""
        final: asyncio.Future[Response | None] = self._loop.create_future()

        def on_response(response: Response | None, now: float) -> None:
            if not final.done() and (response is None or response.status >= 200):
                final.set_result(response)

        self._user_agent.request(request, hop, on_response, self.now())
        self.flush()
        return await final

    async def close(self, seconds: float = 2.0) -> None:
        """Hang up all calls, wait for their last messages for at most `seconds`, and close the sockets."""
        if self._datagrams is None:
            return
        calls = list(self._calls.values())
        # 503 tells the peers of unanswered calls to try another server; answered ones get BYE.
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
        for lookup in self._running_lookups:
            lookup.cancel()
        self._datagrams.close()
        self._datagrams = None
        await self._connections.close()

    def now(self) -> float:
        return self._loop.time()

    def local_host(self, peer: str | None = None) -> str:
        """Return the IP address at which this peer reaches our media, for SDP."""
        return self._settings.public_address or self._local_address_for(Hop(peer or "127.0.0.1", 0))[0]

    def handle_of(self, core: Call) -> EndpointCall:
        return self._calls[core]

    def flush(self) -> None:
        """Send the user agent's messages, deliver its events, and arm its next timer.

        Event handlers call methods that flush again: only the outermost call does the work.
        """
        if self._flushing:
            return
        self._flushing = True
        try:
            while self._step():
                pass
        finally:
            self._flushing = False
            self._arm()

    def _receive_datagram(self, data: bytes, source: tuple[str, int]) -> None:
        if self._logs_messages:
            log.debug("<", peer=source[0], port=source[1], message=data)
        now = self.now()
        self._user_agent.receive_datagram(data, source, now)
        # Traced after the user agent has made the INVITE a call, and before flush() sends the responses.
        self.trace.add(data, Hop(source[0], source[1]), now, sent=False)
        self.flush()

    def _receive_framed(self, data: bytes, source: Hop, whole: bool) -> None:
        if self._logs_messages:
            log.debug("<", peer=source.host, port=source.port, transport=source.transport, message=data)
        now = self.now()
        self._user_agent.receive_message(data, source, now, whole=whole)
        self.trace.add(data, source, now, sent=False)
        self.flush()

    def _handle_lost_connection(self, hop: Hop) -> None:
        self._user_agent.fail_connection(hop, self.now())
        self.flush()

    def _step(self) -> bool:
        """Send all messages and deliver one event; False if there was nothing to do."""
        # Messages are sent first, because the handler of an event may send more, and those must come after.
        messages = self._user_agent.messages_to_send()
        for data, hop in messages:
            self._send(data, hop)
        event = self._user_agent.next_event()
        if event is not None:
            self._deliver(event)
        return bool(messages) or event is not None

    def _send(self, data: bytes, hop: Hop) -> None:
        if self._logs_messages:
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
        # From here on the dialog exists. The peer's host name is looked up now, because a BYE does not wait for DNS.
        if isinstance(event, CallAnswered | CallConfirmed):
            self._look_up_target(event.call)
        handle = self._calls.get(event.call)
        if isinstance(event, CallReplaced):
            self._calls[event.by] = EndpointCall(self, event.by, "" if handle is None else handle.trunk)
        if handle is not None:
            handle.deliver(event)
        if handle is not None and isinstance(event, CallClosed):
            handle.close()
            self.trace.end(event.call.invite.call_id)
            del self._calls[event.call]

    def _look_up_target(self, core: Call) -> None:
        """Look up the host name that requests of the call go to; until it is known they go to the peer's address."""
        dialog = core.dialog
        uri = None if dialog is None else dialog.unresolved_uri()
        if dialog is None or uri is None or len(self._running_lookups) >= _MAX_LOOKUPS:
            return
        task = asyncio.create_task(self._store_hop(dialog, uri))
        self._running_lookups.add(task)
        task.add_done_callback(self._running_lookups.discard)

    async def _store_hop(self, dialog: Dialog, uri: Uri) -> None:
        try:
            dialog.resolved[uri] = (await self._lookup.hops(uri))[0]
        except (LookupFailed, ValueError) as error:
            log.info("sip_host_not_found", host=uri.host, error=str(error))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        # One timer of the event loop for all timers of the user agent, however many there are.
        when = self._user_agent.next_timer()
        if when is not None and self._datagrams is not None:
            self._timer = self._loop.call_at(when, self._run_timers)

    def _run_timers(self) -> None:
        # The loop may fire a moment early, by the resolution of its clock; the timer is due all the same.
        try:
            self._user_agent.handle_timer(max(self.now(), self._user_agent.next_timer() or 0.0))
        finally:
            # An exception in one call's timer must not stop the timers of the others.
            self.flush()

    def _local_address_for(self, peer: Hop) -> tuple[str, int]:
        host, port = self.local_address
        # Without a listener for the transport we name the UDP port; the peer then uses the connection that we opened.
        port = self._ports.get(peer.transport, port)
        if not ipaddress.ip_address(host).is_unspecified:
            return host, port
        # The socket is bound to all interfaces: which of our addresses the peer reaches depends on the route to it.
        if peer.host not in self._routes:
            if len(self._routes) >= _MAX_KNOWN_ROUTES:
                self._routes.clear()
            self._routes[peer.host] = route_to(peer.host)
        return self._routes[peer.host], port


def _first_uri(route: tuple[Address, ...], server: Uri) -> Uri:
    """Return the URI that a call with this route is sent to: the first route, or the server.

    The server's URI is taken if both name the same host, because a route need not repeat the transport. It is also
    taken if the server requires TLS and the route would send the call unencrypted.
    """
    if not route:
        return server
    first = route[0].uri
    # A Service-Route of `sip:proxy.example` would downgrade a trunk that is set to TLS.
    same = (first.bare_host.lower(), first.port) == (server.bare_host.lower(), server.port)
    exposed = transport_of(server) == "tls" and transport_of(first) != "tls"
    return server if same or exposed else first


class EndpointCall:
    """The handle of one call on the event loop: methods that act on it, and its events for one listener."""

    def __init__(self, endpoint: Endpoint, core: Call, trunk: str) -> None:
        self.core = core
        self.trunk = trunk
        """The trunk that the call came from; empty for outgoing calls."""
        self.closed = asyncio.Event()
        self._endpoint = endpoint
        self._on_event: Callable[[Event], None] | None = None
        self._early: deque[Event] = deque(maxlen=_MAX_EARLY_EVENTS)
        self._delivers_early = False

    def listen(self, on_event: Callable[[Event], None]) -> None:
        """Deliver events to `on_event` in their order; those that occurred earlier are delivered at once."""
        self._on_event = on_event
        # A listener may name another one while it gets the early events; that one gets the rest of them.
        if self._delivers_early:
            return
        self._delivers_early = True
        try:
            while self._early:
                self._on_event(self._early.popleft())
        finally:
            self._delivers_early = False
            if self.closed.is_set():
                self._on_event = _ignore

    def ring(self, body: bytes = b"") -> None:
        """Send 180, or 183 with our answer in `body` for early media."""
        self.core.ring(self._endpoint.now(), body)
        self._endpoint.flush()

    def answer(self, body: bytes) -> None:
        self.core.answer(body, self._endpoint.now())
        self._endpoint.flush()

    def hang_up(self, *, status: int = 480, headers: Mapping[str, str] = NO_HEADERS) -> None:
        self.core.hang_up(self._endpoint.now(), status=status, headers=headers)
        self._endpoint.flush()

    def refer(self, target: Uri, headers: Mapping[str, str] = NO_HEADERS, *, to: EndpointCall | None = None) -> None:
        """Ask the peer to call `target`; if `to` is given, the peer takes our place in that call (RFC 5589 §7.1)."""
        replaced = None if to is None else to.core
        self.core.refer(target, self._endpoint.now(), headers, replaced)
        self._endpoint.flush()

    def send_digit(self, digit: str) -> None:
        """Send a DTMF digit by INFO."""
        self.core.send_digit(digit, self._endpoint.now())
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
        """Return our IP address as the peer of this call reaches it, for SDP."""
        dialog = self.core.dialog
        peer = dialog.peer if dialog is not None else None
        return self._endpoint.local_host(peer.host if peer is not None else None)

    def successor(self, by: Call) -> EndpointCall:
        """Return the call that replaces this one, given `by` of the `CallReplaced` event."""
        return self._endpoint.handle_of(by)

    def deliver(self, event: Event) -> None:
        """Pass an event to the owner, or keep it until the owner listens and has got the earlier ones."""
        if self._on_event is None or self._delivers_early:
            self._early.append(event)
        else:
            self._on_event(event)

    def close(self) -> None:
        """Drop the owner's callback after the last event, so that the call keeps nothing alive."""
        # While early events are delivered, the last one still waits among them.
        if not self._delivers_early:
            self._on_event = _ignore
        self.closed.set()


def _ignore(event: Event) -> None:
    """Ignore an event of a call that has ended."""
