"""The SIP user agent without I/O and without a clock: messages and times in, messages and events out.

The owner calls `receive_message` or `handle_timer`, then sends `messages_to_send()`, takes `next_event()` until it is
None, and calls `handle_timer` again when `next_timer()` is due.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping

from callagent.sip import dialog
from callagent.sip import message as sip_message
from callagent.sip.connections import MAX_STREAM_MESSAGE
from callagent.sip.digest import Authenticator
from callagent.sip.transaction_layer import OnResponse, ServerTransaction

_RETRY_AFTER_SECONDS = 10
"""When a caller who was refused because of `max_calls` may try again."""
_UNPROVEN_RATE = 20.0
_UNPROVEN_BURST = 100.0
"""Messages read from a host before it has proven a password: on average per second, and in one burst."""


class UserAgent:
    """A user agent that serves requests outside of dialogs, and passes other messages to transactions and calls."""

    def __init__(
        self, settings: dialog.UserAgentSettings, local_address: Callable[[sip_message.Hop], tuple[str, int]]
    ) -> None:
        """`local_address` returns our host and port as the peer at a hop reaches them over the hop's transport."""
        self._core = dialog.UserAgentCore(settings, local_address)
        self._settings = settings
        self._authenticator = None if settings.digest is None else Authenticator(settings.digest)
        self._rate = RateLimit(_UNPROVEN_RATE, _UNPROVEN_BURST)

    # Receiving

    def receive_datagram(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """Handle one UDP datagram from an IP address and port. Never raises."""
        self.receive_message(data, sip_message.Hop(source[0], source[1]), now)

    def receive_message(self, data: bytes, source: sip_message.Hop, now: float, *, whole: bool = True) -> None:
        """Handle one message. `whole` is False for a head without a valid length. Never raises."""
        trunk = self._settings.admit(source.host)
        # Unknown hosts get no answer at all, so that scanners learn nothing (RFC 3261 §26.3.2.4).
        if (trunk is None and not self._core.is_partner(source.host)) or not data.strip(b"\r\n\x00"):
            return
        if trunk == dialog.UNPROVEN and not self._is_proven(source, now) and not self._rate.take(source.host, now):
            return
        try:
            message = sip_message.parse_message(
                data, limit=MAX_STREAM_MESSAGE if source.reliable else sip_message.MAX_DATAGRAM
            )
            if not whole:
                raise sip_message.MalformedMessage("Content-Length is missing", headers=message.headers)
        except sip_message.MalformedMessage as error:
            if trunk is not None:
                self._refuse_malformed(error, source)
            return
        sip_message.unwrap_description(message)
        if isinstance(message, sip_message.Response):
            self._core.layer.receive_response(message, now)
        else:
            self._receive_request(message, source, trunk, now)

    def fail_connection(self, hop: sip_message.Hop, now: float) -> None:
        """End or redirect the transactions over a connection that has ended or could not be made."""
        self._core.layer.fail_connection(hop, now)

    def admits(self, host: str) -> bool:
        """Whether connections from this IP address are accepted."""
        return self._settings.admit(host) is not None or self._core.is_partner(host)

    # Sending

    def call(
        self,
        target: sip_message.Uri,
        path: dialog.CallPath | sip_message.Hop,
        now: float,
        *,
        caller: sip_message.Address,
        body: bytes,
        headers: Mapping[str, str] = dialog.NO_HEADERS,
    ) -> dialog.SipCall:
        """Send an INVITE to `target` with the offer `body`. A hop as `path` has no route and no credentials."""
        if isinstance(path, sip_message.Hop):
            path = dialog.CallPath((path,))
        request_headers = sip_message.Headers([("Max-Forwards", "70")])
        for each in path.route:
            request_headers.add("Route", str(each))
        request_headers.add("From", str(caller.with_tag(self._core.new_tag())))
        request_headers.add("To", f"<{target.without_headers()}>")
        request_headers.add("Call-ID", secrets.token_hex(16))
        request_headers.add("CSeq", str(sip_message.CSeq(1, "INVITE")))
        # A sips Request-URI, or a sips URI as the first route, requires a sips Contact (§8.1.1.8).
        secure = "sips" in (target.scheme, path.route[0].uri.scheme if path.route else "")
        request_headers.add("Contact", str(self._core.contact(caller.uri.user, path.hops[0], secure=secure)))
        request_headers.add("Allow", self._core.allow)
        request_headers.add("Supported", ", ".join(dialog.EXTENSIONS))
        request_headers.add("Content-Type", "application/sdp")
        for name, value in headers.items():
            request_headers.add(name, value)
        invite = sip_message.Request(request_headers, body, "INVITE", target.without_headers())
        return dialog.SipCall.dial(self._core, invite, path, now)

    def request(self, request: sip_message.Request, hop: sip_message.Hop, on_response: OnResponse, now: float) -> None:
        """Send a request that belongs to no call and is complete except for Via and Contact."""
        if request.method == "REGISTER" and "Contact" not in request.headers:
            secure = request.uri.scheme == "sips"
            request.headers.add("Contact", str(self._core.contact(request.recipient.uri.user, hop, secure=secure)))
        self._core.send_request(request, hop, on_response, now)

    def messages_to_send(self) -> list[tuple[bytes, sip_message.Hop]]:
        """Return the messages to send and where to, in order; each is returned once."""
        messages = list(self._core.outgoing)
        self._core.outgoing.clear()
        return messages

    # Timers and events

    def next_timer(self) -> float | None:
        """Return the time at which `handle_timer` is to be called next; None: no timer runs."""
        return self._core.timers.next()

    def handle_timer(self, now: float) -> None:
        """Run all timers that are due."""
        self._core.timers.handle(now)

    def next_event(self) -> dialog.Event | None:
        """Return the oldest event that has not been returned."""
        return self._core.events.popleft() if self._core.events else None

    @property
    def calls(self) -> frozenset[dialog.Call]:
        """The calls that have not ended."""
        return frozenset(self._core.calls)

    def is_call(self, call_id: str) -> bool:
        """Whether a call with this Call-ID has not ended."""
        return call_id in self._core.call_ids

    @property
    def transactions(self) -> int:
        """How many transactions are kept."""
        return len(self._core.layer)

    # Requests

    def _receive_request(
        self, request: sip_message.Request, source: sip_message.Hop, trunk: str | None, now: float
    ) -> None:
        # This comes first (§18.2.1), because any response goes to the address in this Via.
        request.replace_top_via(request.via.received_from(source.host, source.port))
        layer = self._core.layer
        if trunk == dialog.UNPROVEN and (self._authenticator is None or self._authenticator.is_locked(source, now)):
            trunk = None
        # A host without a trunk may only send requests within its calls, and repeat or cancel earlier requests.
        if trunk is None and self._call_of(request) is None and not layer.expects(request):
            return
        # An ACK is never answered, and makes no transaction of its own.
        if request.method == "ACK":
            if not layer.receive_ack(request, now):
                call = self._call_of(request)
                if call is not None:
                    call.receive_ack(request, now)
            return
        # When there are too many transactions, new requests are dropped, and known transactions are still served.
        if layer.is_full and not layer.knows(request):
            return
        # Checked before the transaction exists, because it would then count as the first copy of the request.
        merged = request.recipient.tag is None and layer.is_merged(request)
        transaction = layer.receive_request(request, source, now)
        if transaction is None:
            return
        if merged and request.method != "CANCEL":
            self._core.respond_outside_dialog(transaction, 482, now)
        elif request.method == "CANCEL":
            self._receive_cancel(transaction, now)
        else:
            self._serve(transaction, trunk, now)

    def _is_proven(self, source: sip_message.Hop, now: float) -> bool:
        return self._authenticator is not None and self._authenticator.is_proven(source, now)

    def _serve(self, transaction: ServerTransaction, trunk: str | None, now: float) -> None:
        # Outside of calls a request can be answered again, so its transaction need not be kept for 32 s.
        transaction.repeatable = self._call_of(transaction.request) is None
        # Requests within a call are not authenticated again: only the peer of the call knows its tags and Call-ID.
        if trunk == dialog.UNPROVEN and transaction.request.recipient.tag is None:
            trunk = self._authenticate(transaction, now)
            if trunk is None:
                return
        refusal = refusal_of(self._core, transaction)
        if refusal is not None:
            self._core.respond_outside_dialog(transaction, refusal[0], now, *refusal[1])
        else:
            self._dispatch(transaction, trunk or dialog.UNPROVEN, now)

    def _authenticate(self, transaction: ServerTransaction, now: float) -> str | None:
        """Return the trunk whose account the request proves; None after a 401 was sent."""
        assert self._authenticator is not None
        verdict = self._authenticator.check(transaction.request, transaction.source, now)
        if verdict.trunk is None:
            headers = (("WWW-Authenticate", challenge) for challenge in verdict.challenges)
            self._core.respond_outside_dialog(transaction, 401, now, *headers)
        return verdict.trunk

    def _dispatch(self, transaction: ServerTransaction, trunk: str, now: float) -> None:
        request = transaction.request
        if request.recipient.tag is not None:
            call = self._call_of(request)
            if call is None:
                self._core.respond_outside_dialog(transaction, 481, now)
            else:
                call.receive_request(transaction, now)
        elif request.method == "INVITE":
            self._receive_invite(transaction, trunk, now)
        elif request.method == "OPTIONS":
            self._receive_options(transaction, now)
        elif request.method == "MESSAGE":
            # The text is ignored. Without a 200 the trunk would send it again and again (RFC 3428 §7).
            self._core.respond_outside_dialog(transaction, 200, now)
        else:
            # INFO, UPDATE, BYE, NOTIFY, PRACK and REFER exist within dialogs only.
            self._core.respond_outside_dialog(transaction, 481, now)

    def _receive_invite(self, transaction: ServerTransaction, trunk: str, now: float) -> None:
        # 100 is sent at once, so that the caller does not repeat the INVITE while the call is prepared (§17.2.1).
        self._core.respond_outside_dialog(transaction, 100, now)
        if "Replaces" in transaction.request.headers:
            self._receive_replacement(transaction, now)
            return
        retry_after = self._settings.busy()
        if retry_after is None and len(self._core.calls) >= self._settings.max_calls:
            retry_after = _RETRY_AFTER_SECONDS
        # `pace` is asked last, because it counts the call.
        if retry_after is None:
            retry_after = self._settings.pace(trunk)
        if retry_after is not None:
            self._core.respond_outside_dialog(transaction, 503, now, ("Retry-After", str(retry_after)))
            return
        call = dialog.SipCall.receive(self._core, transaction, now)
        self._core.events.append(dialog.InviteReceived(call, trunk))

    def _receive_replacement(self, transaction: ServerTransaction, now: float) -> None:
        """Handle an INVITE that replaces a call (RFC 3891 §3). It adds no call, so it is accepted under any load."""
        try:
            replaces = dialog.Replaces.parse_single(transaction.request.headers.values("Replaces"))
        except ValueError:
            self._core.respond_outside_dialog(transaction, 400, now)
            return
        # Naming the exact dialog is the authorization: only its two sides, and those they told, know its tags.
        old = self._core.dialogs.get((replaces.call_id, replaces.to_tag, replaces.from_tag))
        if old is None:
            self._core.respond_outside_dialog(transaction, 481, now)
        elif not old.is_established or replaces.early_only:
            self._core.respond_outside_dialog(transaction, 486, now)
        else:
            self._core.events.append(dialog.CallReplaced(old, dialog.SipCall.receive(self._core, transaction, now)))

    def _receive_options(self, transaction: ServerTransaction, now: float) -> None:
        retry_after = self._settings.busy()
        if retry_after is not None:
            self._core.respond_outside_dialog(transaction, 503, now, ("Retry-After", str(retry_after)))
        else:
            supported = ("Supported", ", ".join(dialog.EXTENSIONS))
            self._core.respond_outside_dialog(transaction, 200, now, ("Accept", "application/sdp"), supported)

    def _receive_cancel(self, transaction: ServerTransaction, now: float) -> None:
        """Respond 200 while the INVITE has no final response, or a 2xx without its ACK; later 481 (RFC 3261 §9.2)."""
        request = transaction.request
        invite = self._core.layer.invite_of(request)
        cancel = None if invite is None else invite.on_cancel
        self._core.respond_outside_dialog(transaction, 481 if cancel is None else 200, now)
        if cancel is not None:
            cancel(request, now)

    def _refuse_malformed(self, error: sip_message.MalformedMessage, source: sip_message.Hop) -> None:
        """Respond without a transaction, to the address that the message came from."""
        if error.headers is None or "Via" not in error.headers:
            return
        response = sip_message.Response(
            sip_message.copy_headers(error.headers, self._core.new_tag()), status=error.status
        )
        response.reason = sip_message.reason_phrase(error.status)
        self._core.add_common_headers(response)
        hop = source
        if not source.reliable:
            try:
                hop = sip_message.response_hop(sip_message.Via.parse(error.headers.values("Via")[0]), source)
            except ValueError:
                pass
        self._core.outgoing.append((bytes(response), hop))

    def _call_of(self, request: sip_message.Request) -> dialog.Call | None:
        """Return the call whose dialog the request belongs to (RFC 3261 §12.2.2)."""
        key = (request.call_id, request.recipient.tag or "", request.sender.tag or "")
        return self._core.dialogs.get(key)


_SCHEMES = ("sip", "sips", "tel")

Refusal = tuple[int, list[tuple[str, str]]]
"""Status and header fields of the response."""


def refusal_of(core: dialog.UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    """Return the refusal of the first check that fails, in the order of §8.2; None if the request can be served."""
    for check in _CHECKS:
        refusal = check(core, transaction)
        if refusal is not None:
            return refusal
    return None


def _check_method(core: dialog.UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    method = transaction.request.method
    if method not in sip_message.KNOWN_METHODS:
        return 501, []
    return (405, []) if method not in core.methods else None


def _check_route(core: dialog.UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    request = transaction.request
    if request.uri.scheme not in _SCHEMES:
        return 416, []
    if request.recipient.tag is not None:
        return None
    # OPTIONS with Max-Forwards 0 asks the element at that hop, like traceroute, and is answered (§11).
    hops = request.headers.get("Max-Forwards")
    if hops is not None and int(hops) == 0 and request.method != "OPTIONS":
        return 483, []
    host, port = core.local_address(transaction.source)
    ours = sip_message.Via(transaction.source.transport.upper(), sip_message.host_reference(host), port).sent_by
    return (482, []) if any(via.sent_by == ours for via in request.vias) else None


def _check_extensions(core: dialog.UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    required = [tag for tag in transaction.request.headers.tokens("Require") if tag.lower() not in dialog.EXTENSIONS]
    return (420, [("Unsupported", ", ".join(required))]) if required else None


def _check_contact(core: dialog.UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    """Refuse an INVITE without a Contact (§8.1.1.8), unless an RFC 2543 peer sent it."""
    request = transaction.request
    needed = request.method == "INVITE" and request.recipient.tag is None and request.via.has_unique_branch
    return (400, []) if needed and not request.contacts else None


def _check_session(core: dialog.UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    request = transaction.request
    if "Session-Expires" not in request.headers:
        return None
    if request.method in ("INVITE", "UPDATE") and dialog.is_too_short(request, core.settings.shortest_session):
        return 422, [("Min-SE", str(core.settings.shortest_session))]
    return None


def _check_content(core: dialog.UserAgentCore, transaction: ServerTransaction) -> Refusal | None:
    request: sip_message.Request = transaction.request
    if request.method not in ("INVITE", "UPDATE", "PRACK"):
        return None
    coding = request.headers.get("Content-Encoding")
    if coding is not None and coding.lower() != "identity":
        return 415, [("Accept-Encoding", "identity")]
    if request.body and request.content_type != "application/sdp":
        return 415, [("Accept", "application/sdp")]
    accepted = [item.partition(";")[0].strip().lower() for item in request.headers.tokens("Accept")]
    if accepted and not {"application/sdp", "application/*", "*/*"}.intersection(accepted):
        # All our bodies are SDP. 399 is the code for miscellaneous warnings (§20.43).
        return 406, [("Warning", '399 callagent "The answer would be application/sdp"')]
    return None


_CHECKS: tuple[Callable[[dialog.UserAgentCore, ServerTransaction], Refusal | None], ...] = (
    _check_method, _check_route, _check_extensions, _check_contact, _check_session, _check_content,
)  # fmt: skip


_MAX_BUCKETS = 10_000
"""Keys with a bucket; beyond it the one used least recently is dropped."""


class RateLimit:
    """A token bucket for each key: `per_second` on average, and `burst` at once."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now: float) -> bool:
        """Take one token of the key's bucket; False if it is empty."""
        # The bucket is put back at the end, so that the order is that of the last use.
        tokens, at = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_second)
        allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return allowed
