"""The SIP user agent as a core: datagrams and times in, datagrams and events out, no I/O and no clock.

The owner calls `receive_datagram` and `handle_timer`, then sends `datagrams_to_send()`, takes `next_event()` until it
is None, and calls `handle_timer` again when `next_timer()` is due.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from callagent.sip.address import Address
from callagent.sip.call import NO_HEADERS, SipCall
from callagent.sip.events import Event, InviteReceived
from callagent.sip.message import CSeq, Headers, MalformedMessage, Request, Response, parse_message
from callagent.sip.responses import KNOWN_METHODS, copy_headers, reason_phrase
from callagent.sip.transaction_layer import Hop, ServerTransaction
from callagent.sip.uri import Uri, host_reference
from callagent.sip.via import Via
from callagent.sip.wire import UserAgentSettings, Wire

_SCHEMES = ("sip", "sips", "tel")
_RETRY_AFTER = 10

Refusal = tuple[int, list[tuple[str, str]]]


class UserAgent:
    def __init__(self, settings: UserAgentSettings, local: Callable[[str], tuple[str, int]]) -> None:
        """`local` gives our address and port as the peer with this IP address reaches them."""
        self._wire = Wire(settings, local)
        self._settings = settings

    # Receiving

    def receive_datagram(self, data: bytes, source: tuple[str, int], now: float) -> None:
        """Take in one datagram from an IP address and port. Never raises."""
        trunk = self._settings.admit(source[0])
        if trunk is None or not data.strip(b"\r\n\x00"):
            return
        hop = Hop(source[0], source[1])
        try:
            message = parse_message(data)
        except MalformedMessage as error:
            self._refuse_malformed(error, hop)
            return
        if isinstance(message, Response):
            self._wire.layer.receive_response(message, now)
        else:
            self._receive_request(message, hop, trunk, now)

    # Sending

    def call(
        self,
        target: Uri,
        hop: Hop,
        now: float,
        *,
        caller: Address,
        body: bytes,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> SipCall:
        """Call `target` by way of `hop`, with our offer in `body`."""
        request_headers = Headers([("Max-Forwards", "70")])
        request_headers.add("From", str(caller.with_tag(self._wire.new_tag())))
        request_headers.add("To", f"<{target.without_headers()}>")
        request_headers.add("Call-ID", secrets.token_hex(16))
        request_headers.add("CSeq", str(CSeq(1, "INVITE")))
        request_headers.add("Contact", str(self._wire.contact(caller.uri.user, hop)))
        request_headers.add("Allow", self._wire.allow)
        request_headers.add("Content-Type", "application/sdp")
        for name, value in headers.items():
            request_headers.add(name, value)
        invite = Request(request_headers, body, "INVITE", target.without_headers())
        return SipCall.dial(self._wire, invite, hop, now)

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

    @property
    def transactions(self) -> int:
        return len(self._wire.layer)

    # Requests

    def _receive_request(self, request: Request, source: Hop, trunk: str, now: float) -> None:
        request.replace_top_via(request.via.received_from(source.host, source.port))
        layer = self._wire.layer
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
        elif not self._refuse_unfit(transaction, now):
            self._dispatch(transaction, trunk, now)

    def _dispatch(self, transaction: ServerTransaction, trunk: str, now: float) -> None:
        request = transaction.request
        if request.recipient.tag is not None:
            call = self._call_of(request)
            if call is None:
                self._wire.reply(transaction, 481, now)
            else:
                call.receive_request(transaction, now)
        elif request.method == "INVITE":
            self._receive_invite(transaction, trunk, now)
        elif request.method == "OPTIONS":
            self._receive_options(transaction, now)
        else:
            # INFO, UPDATE, BYE, NOTIFY and REFER live in a dialog only.
            self._wire.reply(transaction, 481, now)

    def _receive_invite(self, transaction: ServerTransaction, trunk: str, now: float) -> None:
        self._wire.reply(transaction, 100, now)
        seconds = self._settings.busy()
        if seconds is None and len(self._wire.calls) >= self._settings.max_calls:
            seconds = _RETRY_AFTER
        if seconds is not None:
            self._wire.reply(transaction, 503, now, ("Retry-After", str(seconds)))
            return
        call = SipCall.receive(self._wire, transaction, now)
        self._wire.events.append(InviteReceived(call, trunk))

    def _receive_options(self, transaction: ServerTransaction, now: float) -> None:
        seconds = self._settings.busy()
        if seconds is not None:
            self._wire.reply(transaction, 503, now, ("Retry-After", str(seconds)))
        else:
            self._wire.reply(transaction, 200, now, ("Accept", "application/sdp"), ("Supported", ""))

    def _receive_cancel(self, transaction: ServerTransaction, now: float) -> None:
        """200 as long as the INVITE has no final response, or its 2xx is not acknowledged; after that 481."""
        invite = self._wire.layer.invite_of(transaction.request)
        cancel = None if invite is None else invite.on_cancel
        self._wire.reply(transaction, 481 if cancel is None else 200, now)
        if cancel is not None:
            cancel(now)

    # Checks

    def _refuse_unfit(self, transaction: ServerTransaction, now: float) -> bool:
        """Answer what we cannot do, in the order of §8.2; whether that was the answer."""
        for check in (self._check_method, self._check_way, self._check_extensions, self._check_content):
            refusal = check(transaction)
            if refusal is not None:
                status, headers = refusal
                self._wire.reply(transaction, status, now, *headers)
                return True
        return False

    def _check_method(self, transaction: ServerTransaction) -> Refusal | None:
        request = transaction.request
        if request.method not in KNOWN_METHODS:
            return 501, []
        if request.method not in self._wire.allow.split(", "):
            return 405, []
        return None

    def _check_way(self, transaction: ServerTransaction) -> Refusal | None:
        request = transaction.request
        if request.uri.scheme not in _SCHEMES:
            return 416, []
        if request.recipient.tag is not None:
            return None
        # Seventy hops to a voice agent are a loop. OPTIONS asks who is at the end of so many (§11).
        hops = request.headers.get("Max-Forwards")
        if hops is not None and int(hops) == 0 and request.method != "OPTIONS":
            return 483, []
        host, port = self._wire.local(transaction.source)
        ours = Via("UDP", host_reference(host), port).sent_by
        return (482, []) if any(via.sent_by == ours for via in request.vias) else None

    @staticmethod
    def _check_extensions(transaction: ServerTransaction) -> Refusal | None:
        required = transaction.request.headers.tokens("Require")
        return (420, [("Unsupported", ", ".join(required))]) if required else None

    @staticmethod
    def _check_content(transaction: ServerTransaction) -> Refusal | None:
        request = transaction.request
        if request.method not in ("INVITE", "UPDATE"):
            return None
        coding = request.headers.get("Content-Encoding")
        if coding is not None and coding.lower() != "identity":
            return 415, [("Accept-Encoding", "identity")]
        if request.body and request.content_type != "application/sdp":
            return 415, [("Accept", "application/sdp")]
        accepted = [item.partition(";")[0].strip().lower() for item in request.headers.tokens("Accept")]
        if accepted and not {"application/sdp", "application/*", "*/*"}.intersection(accepted):
            return 406, []
        return None

    def _refuse_malformed(self, error: MalformedMessage, source: Hop) -> None:
        """Answer without a transaction, to where the bytes came from: what they say of their way is not trusted."""
        if error.headers is None or "Via" not in error.headers:
            return
        response = Response(copy_headers(error.headers, self._wire.new_tag()), status=error.status)
        response.reason = reason_phrase(error.status)
        self._wire.finish(response)
        try:
            port = Via.parse(error.headers.values("Via")[0]).response_port(source.port)
        except ValueError:
            port = source.port
        self._wire.outgoing.append((bytes(response), Hop(source.host, port)))

    def _call_of(self, request: Request) -> SipCall | None:
        key = (request.call_id, request.recipient.tag or "", request.sender.tag or "")
        return self._wire.dialogs.get(key)
