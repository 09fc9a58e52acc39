"""The SIP user agent as a core: messages and times in, messages and events out, no I/O and no clock.

The owner calls `receive_message` and `handle_timer`, then sends `datagrams_to_send()`, takes `next_event()` until it
is None, and calls `handle_timer` again when `next_timer()` is due.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from callagent.sip.authenticator import Authenticator
from callagent.sip.dialog import (
    EXTENSIONS,
    NO_HEADERS,
    UNPROVEN,
    CallReplaced,
    Event,
    InviteReceived,
    Replaces,
    SipCall,
    UserAgentSettings,
    Way,
    Wire,
    receive_in_dialog,
)
from callagent.sip.message import (
    MAX_DATAGRAM,
    Address,
    CSeq,
    Headers,
    MalformedMessage,
    Request,
    Response,
    Uri,
    Via,
    copy_headers,
    parse_message,
    reason_phrase,
    unwrap_description,
)
from callagent.sip.request_validation import refusal_of
from callagent.sip.transaction import OnResponse, ServerTransaction
from callagent.sip.transport import MAX_STREAM_MESSAGE, Hop, RateLimit, response_hop

_RETRY_AFTER = 10
_UNPROVEN_RATE = 20.0
"""Messages a second, on the long run, of a host that has to prove itself (S27)."""
_UNPROVEN_BURST = 100.0


class UserAgent:
    def __init__(self, settings: UserAgentSettings, local: Callable[[Hop], tuple[str, int]]) -> None:
        """`local` gives our address and port as this peer reaches them over its transport."""
        self._wire = Wire(settings, local)
        self._settings = settings
        self._authenticator = None if settings.digest is None else Authenticator(settings.digest)
        self._rate = RateLimit(_UNPROVEN_RATE, _UNPROVEN_BURST)

    # Receiving

    def receive_datagram(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """Take in one UDP datagram from an IP address and port. Never raises."""
        self.receive_message(data, Hop(source[0], source[1]), now)

    def receive_message(self, data: bytes, source: Hop, now: float, *, whole: bool = True) -> None:
        """Take in one message. `whole` is False where a stream does not tell how long it is. Never raises."""
        trunk = self._settings.admit(source.host)
        if (trunk is None and not self._wire.is_partner(source.host)) or not data.strip(b"\r\n\x00"):
            return
        if trunk == UNPROVEN and not self._is_proven(source, now) and not self._rate.take(source.host, now):
            return
        try:
            message = parse_message(data, limit=MAX_STREAM_MESSAGE if source.reliable else MAX_DATAGRAM)
            if not whole:
                raise MalformedMessage("Content-Length is missing", headers=message.headers)
        except MalformedMessage as error:
            if trunk is not None:
                self._refuse_malformed(error, source)
            return
        unwrap_description(message)
        if isinstance(message, Response):
            self._wire.layer.receive_response(message, now)
        else:
            self._receive_request(message, source, trunk, now)

    def fail(self, hop: Hop, now: float) -> None:
        """A connection ended, or could not be made."""
        self._wire.layer.fail(hop, now)

    def admits(self, host: str) -> bool:
        """Whether this host may connect to us."""
        return self._settings.admit(host) is not None or self._wire.is_partner(host)

    # Sending

    def call(
        self,
        target: Uri,
        way: Way | Hop,
        now: float,
        *,
        caller: Address,
        body: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> SipCall:
        """Call `target`, with our offer in `body`. A way of one hop may be that hop."""
        if isinstance(way, Hop):
            way = Way((way,))
        request_headers = Headers([("Max-Forwards", "70")])
        for each in way.route:
            request_headers.add("Route", str(each))
        request_headers.add("From", str(caller.with_tag(self._wire.new_tag())))
        request_headers.add("To", f"<{target.without_headers()}>")
        request_headers.add("Call-ID", secrets.token_hex(16))
        request_headers.add("CSeq", str(CSeq(1, "INVITE")))
        # A sips URI to go to, or to go through first, wants a sips Contact (§8.1.1.8).
        secure = "sips" in (target.scheme, way.route[0].uri.scheme if way.route else "")
        request_headers.add("Contact", str(self._wire.contact(caller.uri.user, way.hops[0], secure=secure)))
        request_headers.add("Allow", self._wire.allow)
        request_headers.add("Supported", ", ".join(EXTENSIONS))
        request_headers.add("Content-Type", "application/sdp")
        for name, value in headers.items():
            request_headers.add(name, value)
        invite = Request(request_headers, body, "INVITE", target.without_headers())
        return SipCall.dial(self._wire, invite, way, now)

    def request(self, request: Request, hop: Hop, on_response: OnResponse, now: float) -> None:
        """Send a request outside of calls, complete but for Via and Contact."""
        if request.method == "REGISTER" and "Contact" not in request.headers:
            secure = request.uri.scheme == "sips"
            request.headers.add("Contact", str(self._wire.contact(request.recipient.uri.user, hop, secure=secure)))
        self._wire.request(request, hop, on_response, now)

    def datagrams_to_send(self) -> list[tuple[bytes, Hop]]:
        datagrams = list(self._wire.outgoing)
        self._wire.outgoing.clear()
        return datagrams

    # Timers and events

    def next_timer(self) -> float | None:
        return self._wire.timers.next()

    def handle_timer(self, now: float) -> None:
        self._wire.timers.handle(now)

    def next_event(self) -> Event | None:
        return self._wire.events.popleft() if self._wire.events else None

    @property
    def calls(self) -> frozenset[SipCall]:
        """Those that have not ended."""
        return frozenset(self._wire.calls)

    def is_call(self, call_id: str) -> bool:
        """Whether a call with this Call-ID is on."""
        return call_id in self._wire.call_ids

    @property
    def transactions(self) -> int:
        return len(self._wire.layer)

    # Requests

    def _receive_request(self, request: Request, source: Hop, trunk: str | None, now: float) -> None:
        request.replace_top_via(request.via.received_from(source.host, source.port))
        layer = self._wire.layer
        if trunk == UNPROVEN and (self._authenticator is None or self._authenticator.is_locked(source, now)):
            trunk = None
        # A host that may not begin anything is heard within its calls only.
        if trunk is None and self._call_of(request) is None and not layer.expects(request):
            return
        if request.method == "ACK":
            if not layer.receive_ack(request, now):
                call = self._call_of(request)
                if call is not None:
                    call.receive_ack(request, now)
            return
        # Nothing new fits in; who is known already is still served.
        if layer.full and not layer.knows(request):
            return
        merged = request.recipient.tag is None and layer.is_merged(request)
        transaction = layer.receive_request(request, source, now)
        if transaction is None:
            return
        if merged and request.method != "CANCEL":
            self._wire.reply(transaction, 482, now)
        elif request.method == "CANCEL":
            self._receive_cancel(transaction, now)
        else:
            self._serve(transaction, trunk, now)

    def _is_proven(self, source: Hop, now: float) -> bool:
        return self._authenticator is not None and self._authenticator.is_proven(source, now)

    def _serve(self, transaction: ServerTransaction, trunk: str | None, now: float) -> None:
        transaction.repeatable = self._call_of(transaction.request) is None
        if trunk == UNPROVEN and transaction.request.recipient.tag is None:
            trunk = self._authenticate(transaction, now)
            if trunk is None:
                return
        refusal = refusal_of(self._wire, transaction)
        if refusal is not None:
            self._wire.reply(transaction, refusal[0], now, *refusal[1])
        else:
            self._dispatch(transaction, trunk or UNPROVEN, now)

    def _authenticate(self, transaction: ServerTransaction, now: float) -> str | None:
        """The trunk that the request proves to come from; else it is answered."""
        assert self._authenticator is not None
        verdict = self._authenticator.check(transaction.request, transaction.source, now)
        if verdict.trunk is None:
            headers = (("WWW-Authenticate", challenge) for challenge in verdict.challenges)
            self._wire.reply(transaction, 401, now, *headers)
        return verdict.trunk

    def _dispatch(self, transaction: ServerTransaction, trunk: str, now: float) -> None:
        request = transaction.request
        if request.recipient.tag is not None:
            call = self._call_of(request)
            if call is None:
                self._wire.reply(transaction, 481, now)
            else:
                receive_in_dialog(call, transaction, now)
        elif request.method == "INVITE":
            self._receive_invite(transaction, trunk, now)
        elif request.method == "OPTIONS":
            self._receive_options(transaction, now)
        elif request.method == "MESSAGE":
            # Taken and not read (RFC 3428 §7): a trunk that gets no 200 says it again and again.
            self._wire.reply(transaction, 200, now)
        else:
            # INFO, UPDATE, BYE, NOTIFY and REFER live in a dialog only.
            self._wire.reply(transaction, 481, now)

    def _receive_invite(self, transaction: ServerTransaction, trunk: str, now: float) -> None:
        self._wire.reply(transaction, 100, now)
        if "Replaces" in transaction.request.headers:
            self._receive_replacement(transaction, now)
            return
        seconds = self._settings.busy()
        if seconds is None and len(self._wire.calls) >= self._settings.max_calls:
            seconds = _RETRY_AFTER
        if seconds is None:
            seconds = self._settings.pace(trunk)
        if seconds is not None:
            self._wire.reply(transaction, 503, now, ("Retry-After", str(seconds)))
            return
        call = SipCall.receive(self._wire, transaction, now)
        self._wire.events.append(InviteReceived(call, trunk))

    def _receive_replacement(self, transaction: ServerTransaction, now: float) -> None:
        """An INVITE that takes the place of a call (RFC 3891 §3): it needs no room of its own."""
        try:
            replaces = Replaces.parse_single(transaction.request.headers.values("Replaces"))
        except ValueError:
            self._wire.reply(transaction, 400, now)
            return
        old = self._wire.dialogs.get((replaces.call_id, replaces.to_tag, replaces.from_tag))
        if old is None:
            self._wire.reply(transaction, 481, now)
        elif not old.established or replaces.early_only:
            self._wire.reply(transaction, 486, now)
        else:
            self._wire.events.append(CallReplaced(old, SipCall.receive(self._wire, transaction, now)))

    def _receive_options(self, transaction: ServerTransaction, now: float) -> None:
        seconds = self._settings.busy()
        if seconds is not None:
            self._wire.reply(transaction, 503, now, ("Retry-After", str(seconds)))
        else:
            supported = ("Supported", ", ".join(EXTENSIONS))
            self._wire.reply(transaction, 200, now, ("Accept", "application/sdp"), supported)

    def _receive_cancel(self, transaction: ServerTransaction, now: float) -> None:
        """200 as long as the INVITE has no final response, or its 2xx is not acknowledged; after that 481."""
        request = transaction.request
        invite = self._wire.layer.invite_of(request)
        cancel = None if invite is None else invite.on_cancel
        self._wire.reply(transaction, 481 if cancel is None else 200, now)
        if cancel is not None:
            cancel(request, now)

    def _refuse_malformed(self, error: MalformedMessage, source: Hop) -> None:
        """Answer without a transaction, to where the bytes came from: what they say of their way is not trusted."""
        if error.headers is None or "Via" not in error.headers:
            return
        response = Response(copy_headers(error.headers, self._wire.new_tag()), status=error.status)
        response.reason = reason_phrase(error.status)
        self._wire.finish(response)
        hop = source
        if not source.reliable:
            try:
                hop = response_hop(Via.parse(error.headers.values("Via")[0]), source)
            except ValueError:
                pass
        self._wire.outgoing.append((bytes(response), hop))

    def _call_of(self, request: Request) -> SipCall | None:
        key = (request.call_id, request.recipient.tag or "", request.sender.tag or "")
        return self._wire.dialogs.get(key)
