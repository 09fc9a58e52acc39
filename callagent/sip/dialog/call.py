"""One call, incoming or outgoing: its commands, the requests within its dialog, and the effects of its state table.

Digits (DTMF, dual-tone multi-frequency) in INFO requests (RFC 6086) are read and written here, in the two body formats
that gateways use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from callagent.sip.dialog import events
from callagent.sip.dialog.call_machine import CallEffect, CallInput, CallMachine, CallState, send_in_dialog
from callagent.sip.dialog.core import UserAgentCore
from callagent.sip.dialog.dialog import Dialog, asks_for_sips
from callagent.sip.dialog.invite import CallPath, IncomingInvite, OutgoingInvite
from callagent.sip.dialog.refer import ReferReceiver, ReferSender, attended_target
from callagent.sip.dialog.reinvite import Renegotiation
from callagent.sip.dialog.session_timer import SessionTimer
from callagent.sip.digest import Credentials
from callagent.sip.message import Headers, Hop, Message, Request, Response, Uri, respond_to
from callagent.sip.transaction_layer import ServerTransaction
from callagent.sip.transaction_machines import Timer

DTMF_TYPES = ("application/dtmf-relay", "application/dtmf")
DIGIT_MILLISECONDS = 160
"""The duration that our INFO requests give a digit."""
_RELAY_BODY = re.compile(rb"\s*Signal\s*=\s*(\d{1,2}|[A-Da-d*#])\s*(?:\r?\n.*)?", re.IGNORECASE | re.DOTALL)
_PLAIN_BODY = re.compile(rb"\s*(\d{1,2}|[A-Da-d*#])\s*")
# Some gateways send the event codes of RFC 4733 §3.2 in place of the characters.
_EVENT_CODES = {"10": "*", "11": "#", "12": "A", "13": "B", "14": "C", "15": "D"}


class SipCall(CallMachine):
    """A call of the user agent. A command that does not fit the state does nothing, but `refer` raises `ValueError`."""

    def __init__(self, core: UserAgentCore, invite: Request, *, outgoing: bool) -> None:
        super().__init__(core, invite, outgoing=outgoing)
        # These parts are made when they are first needed: a refused call has no session to time, and most calls end
        # without a re-INVITE and a REFER.
        self._session_timer: SessionTimer | None = None
        self.renegotiation: Renegotiation | None = None
        self.refer_sender: ReferSender | None = None
        self.refer_receiver: ReferReceiver | None = None
        # Exactly one of the two is set, for the INVITE that began the call.
        self._received: IncomingInvite | None = None
        self._sent: OutgoingInvite | None = None
        self._end_headers: Mapping[str, str] = events.NO_HEADERS
        self._end_emitted = False
        self._invite_timer: Timer | None = None

    @classmethod
    def receive(cls, core: UserAgentCore, transaction: ServerTransaction, now: float) -> SipCall:
        """Return the call of a new INVITE."""
        call = cls(core, transaction.request, outgoing=False)
        call._received = IncomingInvite(transaction)
        transaction.on_cancel = call._receive_cancel
        # A retransmission of the INVITE belongs to this call, so its transaction must not be forgotten early.
        transaction.repeatable = False
        peer = transaction.source
        contact = core.contact(transaction.request.uri.user, peer, secure=asks_for_sips(transaction.request))
        call.dialog = Dialog.of_server(transaction.request, core.new_tag(), peer, contact)
        # The dialog is registered now, because a BYE or a PRACK may come before our final response.
        core.dialogs[call.dialog.key] = call
        call._begin(peer.host, now)
        return call

    @classmethod
    def dial(cls, core: UserAgentCore, invite: Request, path: CallPath, now: float) -> SipCall:
        """Send an INVITE that is complete except for its Via, and return its call."""
        call = cls(core, invite, outgoing=True)
        call._sent = OutgoingInvite(core, call, path)
        call.session_timer.request_interval(call, invite.headers)
        call.last_description = invite.body
        call._begin(path.hops[0].host, now)
        call._sent.send(now)
        return call

    @property
    def session_timer(self) -> SessionTimer:
        if self._session_timer is None:
            self._session_timer = SessionTimer()
        return self._session_timer

    # Commands of the owner

    def ring(self, now: float, body: bytes = b"") -> None:
        """Send 180, or 183 with our answer in `body` for early media."""
        self.apply(CallInput.RING, self._response(183 if body else 180, body), now)

    def answer(self, body: bytes, now: float) -> None:
        """Send 200 with our answer, or with our offer if the INVITE had none."""
        response = self._response(200, body)
        # In another state the table drops the answer, and no session must begin.
        if response is not None and self.state is CallState.INCOMING:
            self.last_description = body
            self.session_timer.agree(self, self.invite, response, now)
        self.apply(CallInput.ANSWER, response, now)

    def hang_up(self, now: float, *, status: int = 480, headers: Mapping[str, str] = events.NO_HEADERS) -> None:
        """Refuse the INVITE with `status`, or send CANCEL or BYE. Raises `ValueError` for invalid headers."""
        # Headers that cannot be written must raise before the state changes.
        Headers(headers.items())
        self._end_headers = headers
        self.apply(CallInput.HANG_UP, self._response(status, headers=headers), now)

    def refer(
        self, target: Uri, now: float, headers: Mapping[str, str] = events.NO_HEADERS, to: events.Call | None = None
    ) -> None:
        """Send a REFER, which asks the peer to call `target`. `TransferProgressed` events report the progress.

        If `to`, our established call with the target, is given, the peer takes our place in that call. Raises
        `ValueError` without an established call, or while an earlier transfer has no outcome.
        """
        if self.dialog is None or not self.is_established:
            raise ValueError("Only an established call can be transferred")
        target = target if to is None else attended_target(to, target)
        if self.refer_sender is None:
            self.refer_sender = ReferSender()
        self.refer_sender.send(self, self.dialog, target, headers, now)

    def report_transfer(self, status: int, now: float) -> None:
        """Report the outcome of the peer's REFER; a status below 200 is progress."""
        if self.refer_receiver is not None and self.dialog is not None and self.is_established:
            self.refer_receiver.report(self, self.dialog, status, now)

    def reoffer(self, body: bytes, now: float) -> None:
        """Offer other media; `OfferAnswered` or `OfferRefused` follows, unless a later offer takes its place."""
        if self.dialog is not None and self.is_established:
            self._renegotiate().send(self, self.dialog, body, now)

    def accept_offer(self, body: bytes, now: float) -> None:
        """Answer the offer of `OfferReceived`."""
        if self.renegotiation is not None:
            self.renegotiation.accept(self, body, now)

    def refuse_offer(self, now: float, status: int = 488) -> None:
        """Refuse the offer of `OfferReceived`; the media stays as it is."""
        if self.renegotiation is not None:
            self.renegotiation.refuse(self, status, now)

    def send_digit(self, digit: str, now: float) -> None:
        """Send a DTMF digit by INFO."""
        send_digit(self, digit, now)

    # What the user agent receives

    def receive_ack(self, ack: Request, now: float) -> None:
        """Handle the ACK of a 2xx, of the INVITE or of a re-INVITE."""
        if self._received is not None and self._received.is_acknowledged_by(ack):
            self.apply(CallInput.ACK, ack, now)
        elif self.renegotiation is not None:
            self.renegotiation.receive_ack(self, ack)

    def receive_request(self, transaction: ServerTransaction, now: float) -> None:
        """Respond to a request within the dialog whose method is allowed (RFC 3261 §12.2.2)."""
        request = transaction.request
        dialog = self._dialog_of(request)
        if dialog is None:
            self.core.respond_outside_dialog(transaction, 481, now)
            return
        if not dialog.is_in_order(request):
            self.core.respond(transaction, dialog, 500, now)
            return
        # The peer may have moved, or its NAT may have a new port: our requests follow it.
        dialog.peer = transaction.source
        handler = _HANDLERS.get(request.method)
        if handler is None:
            # An OPTIONS checks that the dialog exists; the text of a MESSAGE is ignored.
            self.core.respond(transaction, dialog, 200, now)
        else:
            handler(self, dialog, transaction, now)

    def lose(self, now: float) -> None:
        self._end_headers = events.NO_HEADERS
        self.apply(CallInput.LOST, None, now)

    def repeat_offer(self, now: float) -> None:
        if self.dialog is not None:
            self._renegotiate().repeat(self, self.dialog, now)

    def credentials_for(self, hop: Hop) -> Credentials | None:
        return None if self._sent is None else self._sent.credentials_for(hop)

    def _renegotiate(self) -> Renegotiation:
        if self.renegotiation is None:
            self.renegotiation = Renegotiation(self.session_timer)
        return self.renegotiation

    def _dialog_of(self, request: Request) -> Dialog | None:
        """Return the dialog of a request: the call's, or an early one of our INVITE."""
        if self.dialog is not None or self._sent is None:
            return self.dialog
        return self._sent.early.dialog_of(request)

    def _receive_cancel(self, cancel: Request, now: float) -> None:
        self.apply(CallInput.CANCEL, cancel, now)

    def _receive_bye(self, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        # The transaction forgets its request with the final response.
        bye = transaction.request
        self.core.respond(transaction, dialog, 200, now)
        # Before our final response a BYE means what CANCEL means (RFC 3261 §15).
        event = CallInput.CANCEL if self.state is CallState.INCOMING else CallInput.BYE
        self.apply(event, bye, now)

    # Effects of the state table

    def carry_out(self, effect: CallEffect, message: Message | None, now: float) -> None:
        _EFFECTS[effect](self, message, now)

    def _send_ringing(self, message: Message | None, now: float) -> None:
        if self._received is not None and isinstance(message, Response):
            self._received.send_provisional(self, message, now)

    def _send_answer(self, message: Message | None, now: float) -> None:
        if self._received is not None and isinstance(message, Response):
            self._stop_timer()
            self._received.send_answer(self.core, message, lambda at: self.apply(CallInput.NO_ACK, None, at), now)

    def _send_refusal(self, message: Message | None, now: float) -> None:
        if self._received is not None and isinstance(message, Response):
            self._received.refuse(message, now)

    def _send_terminated(self, message: Message | None, now: float) -> None:
        self._send_refusal(self._response(487), now)

    def _send_invite(self, message: Message | None, now: float) -> None:
        if self._sent is not None:
            self._sent.send(now)

    def _send_cancel(self, message: Message | None, now: float) -> None:
        if self._sent is not None:
            self._sent.cancel(self._end_headers, now)
        # A peer that answers the CANCEL but never the INVITE must not keep the call (§9.1).
        self._start_timer(self.core.settings.timers.timeout, now)

    def _send_bye(self, message: Message | None, now: float) -> None:
        if self.dialog is None:
            return
        bye = self.dialog.request("BYE")
        for name, value in self._end_headers.items():
            bye.headers.add(name, value)
        send_in_dialog(self, bye, self._receive_bye_response, now)

    def _receive_bye_response(self, response: Response | None, now: float) -> None:
        if response is None or response.status >= 200:
            self.apply(CallInput.BYE_OVER, response, now)

    def _confirm(self, message: Message | None, now: float) -> None:
        if isinstance(message, Response) and self._sent is not None:
            self._stop_timer()
            self.dialog = self._sent.dialog_of(message)
            message.body = self._sent.early.confirm(message, self.dialog)
            # `close` removes the early dialogs of all branches, so the key of this dialog is set again.
            self._sent.early.close()
            self.core.dialogs[self.dialog.key] = self
            self.session_timer.accept(self, message, now)
            self._sent.acknowledge(self.dialog, now)

    def _stop_answering(self, message: Message | None, now: float) -> None:
        if self._received is not None:
            self._received.stop_answering()

    def _emit_ringing(self, message: Message | None, now: float) -> None:
        if isinstance(message, Response) and message.status > 100:
            self.core.events.append(events.CallRinging(self, message.status, message.body))

    def _emit_answered(self, message: Message | None, now: float) -> None:
        self.core.events.append(events.CallAnswered(self, message.body if message else b""))

    def _emit_confirmed(self, message: Message | None, now: float) -> None:
        self.core.events.append(events.CallConfirmed(self, message.body if message else b""))

    def _emit_ended(self, message: Message | None, now: float) -> None:
        # The owner of some calls is told of the end before our BYE; the state ENDED follows only after it.
        if self._end_emitted:
            return
        self._end_emitted = True
        final = message if isinstance(message, Response) else Response(status=0)
        headers = message.headers if message is not None else Headers()
        self.core.events.append(
            events.CallEnded(self, self.cause or events.EndCause.LOCAL, final.status, final.reason, headers)
        )

    def _response(
        self, status: int, body: bytes = b"", headers: Mapping[str, str] = events.NO_HEADERS
    ) -> Response | None:
        """Return a response to the INVITE; None for an outgoing call."""
        if self.dialog is None or self._received is None:
            return None
        response = self.core.make_response(self.invite, self.dialog, status, body=body)
        for name, value in headers.items():
            response.headers.add(name, value)
        return response

    # Beginning and end

    def _begin(self, peer_host: str, now: float) -> None:
        self.peer_host = peer_host
        self.core.add_call(self)
        self._start_timer(self.core.settings.ring_limit, now)

    def _start_timer(self, seconds: float, now: float) -> None:
        """Give the INVITE up after this time, unless the timer is stopped or started again."""
        self._stop_timer()
        self._invite_timer = self.core.timers.at(
            now + seconds, lambda at: self.apply(CallInput.NO_RESPONSE, self._response(480), at)
        )

    def _stop_timer(self) -> None:
        if self._invite_timer is not None:
            self._invite_timer.cancel()

    def release(self) -> None:
        self._stop_timer()
        if self.renegotiation is not None:
            self.renegotiation.close()
        if self.refer_sender is not None:
            self.refer_sender.close()
        if self._session_timer is not None:
            self._session_timer.stop()
        if self._received is not None:
            self._received.close()
        self.core.remove_call(self)
        if self.dialog is not None:
            self.core.dialogs.pop(self.dialog.key, None)
        if self._sent is not None:
            self._sent.early.close()
            # Call and INVITE refer to each other: without this line only the garbage collector would free them. Late
            # responses still find the call, through the callback of the transaction.
            self._sent = None
        self.core.events.append(events.CallClosed(self))


def _receive_offer(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    is_update = transaction.request.method == "UPDATE"
    if call.is_established:
        call._renegotiate().receive(call, dialog, transaction, now)
    elif call.state in (CallState.BYE_SENT, CallState.ENDED):
        call.core.respond(transaction, dialog, 481, now)
    elif is_update and (call.outgoing or not transaction.request.body):
        call._renegotiate().receive(call, dialog, transaction, now)
    elif is_update and call.state is CallState.INCOMING:
        # The offer of the INVITE has no answer yet (RFC 3311 §5.2).
        response = respond_to(transaction.request, 500, tag=dialog.local.tag, headers=[("Retry-After", "2")])
        transaction.respond(call.core.add_common_headers(response), now)
    else:
        # Until the ACK, the first offer and answer are not complete (RFC 3261 §14.2).
        call.core.respond(transaction, dialog, 491, now)


def _receive_notify(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    is_ours = call.refer_sender is not None and call.refer_sender.receive_notify(call, transaction.request, now)
    call.core.respond(transaction, dialog, 200 if is_ours else 481, now)


def _receive_refer(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    if not call.is_established:
        call.core.respond(transaction, dialog, 603, now)
        return
    if call.refer_receiver is None:
        call.refer_receiver = ReferReceiver()
    call.refer_receiver.receive(call, dialog, transaction, now)


def _receive_prack(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    if call._received is None:
        call.core.respond(transaction, dialog, 481, now)
    else:
        call._received.receive_prack(call, dialog, transaction, now)


def send_digit(call: CallMachine, digit: str, now: float) -> None:
    """Send a digit to a peer that has no telephone events; without an established call nothing is sent."""
    if call.dialog is None or not call.is_established:
        return
    info = call.dialog.request("INFO")
    info.headers.add("Content-Type", DTMF_TYPES[0])
    info.body = f"Signal={digit}\r\nDuration={DIGIT_MILLISECONDS}\r\n".encode()

    def on_response(response: Response | None, at: float) -> None:
        # A refused digit is ignored, but 481 means that the peer does not know the dialog (RFC 5057 §5.1).
        if response is not None and response.status == 481:
            call.lose(at)

    send_in_dialog(call, info, on_response, now)


def receive_info(call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    """Respond to an INFO of the peer, and emit `DigitReceived` if its body holds a digit."""
    request = transaction.request
    content_type = request.content_type or ""
    if request.body and content_type not in DTMF_TYPES:
        response = respond_to(request, 415, tag=dialog.local.tag, headers=[("Accept", ", ".join(DTMF_TYPES))])
        transaction.respond(call.core.add_common_headers(response), now)
        return
    # An INFO without a digit is accepted as well: an empty one or a hook flash is no error.
    call.core.respond(transaction, dialog, 200, now)
    digit = parse_digit(content_type, request.body) if request.body else None
    if digit is not None:
        call.core.events.append(events.DigitReceived(call, digit))


def parse_digit(content_type: str, body: bytes) -> str | None:
    """Return the digit, one of `0123456789*#ABCD`, or None for another signal such as a hook flash."""
    form = _RELAY_BODY if content_type == "application/dtmf-relay" else _PLAIN_BODY
    match = form.fullmatch(body)
    if match is None:
        return None
    signal = match[1].decode().upper()
    return _EVENT_CODES.get(signal, signal if len(signal) == 1 else None)


_HANDLERS: Mapping[str, Callable[[SipCall, Dialog, ServerTransaction, float], None]] = {
    "BYE": SipCall._receive_bye,
    "INFO": receive_info,
    "INVITE": _receive_offer,
    "NOTIFY": _receive_notify,
    "PRACK": _receive_prack,
    "REFER": _receive_refer,
    "UPDATE": _receive_offer,
}
"""By method; requests of other methods are answered 200."""

_EFFECTS: Mapping[CallEffect, Callable[[SipCall, Message | None, float], None]] = {
    CallEffect.SEND_RINGING: SipCall._send_ringing,
    CallEffect.SEND_ANSWER: SipCall._send_answer,
    CallEffect.SEND_REFUSAL: SipCall._send_refusal,
    CallEffect.SEND_TERMINATED: SipCall._send_terminated,
    CallEffect.SEND_INVITE: SipCall._send_invite,
    CallEffect.SEND_CANCEL: SipCall._send_cancel,
    CallEffect.SEND_BYE: SipCall._send_bye,
    CallEffect.CONFIRM: SipCall._confirm,
    CallEffect.STOP_ANSWERING: SipCall._stop_answering,
    CallEffect.EMIT_RINGING: SipCall._emit_ringing,
    CallEffect.EMIT_ANSWERED: SipCall._emit_answered,
    CallEffect.EMIT_CONFIRMED: SipCall._emit_confirmed,
    CallEffect.EMIT_ENDED: SipCall._emit_ended,
}
