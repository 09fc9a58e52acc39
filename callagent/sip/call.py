"""One call: its INVITE, its dialog, and what happens inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callagent.sip.answering import Answering
from callagent.sip.call_states import CALL_TABLE, CallEffect, CallInput, CallState
from callagent.sip.dialog import Dialog
from callagent.sip.events import (
    CallAnswered,
    CallClosed,
    CallConfirmed,
    CallEnded,
    CallRinging,
    EndCause,
)
from callagent.sip.in_dialog import receive_in_dialog
from callagent.sip.message import CSeq, Headers, Message, Request, Response
from callagent.sip.reoffer import Reoffers
from callagent.sip.timers import Timer
from callagent.sip.transaction_layer import ClientTransaction, Hop, ServerTransaction
from callagent.sip.transfer import TransferReceiver, TransferSender
from callagent.sip.uri import Uri
from callagent.sip.wire import Wire

NO_HEADERS: Mapping[str, str] = {}

_CAUSES = {
    CallInput.HANG_UP: EndCause.LOCAL,
    CallInput.CANCEL: EndCause.CANCELLED,
    CallInput.BYE: EndCause.REMOTE,
    CallInput.NO_ACK: EndCause.TIMEOUT,
    CallInput.NO_RESPONSE: EndCause.TIMEOUT,
    CallInput.FAILURE: EndCause.REFUSED,
}


class SipCall:
    """Made by the user agent; its verbs take `now` and may be called in any state: what does not fit does nothing."""

    def __init__(self, wire: Wire, invite: Request, *, outgoing: bool) -> None:
        self.invite = invite
        """The INVITE that began the call, sent or received."""
        self.outgoing = outgoing
        self.state = CallState.DIALLING if outgoing else CallState.INCOMING
        self.dialog: Dialog | None = None
        """None until the peer of an outgoing call has answered."""
        self.wire = wire
        self.reoffers = Reoffers(wire, self)
        self.transfer = TransferSender(wire, self)
        self.transfer_request = TransferReceiver(wire, self)
        self._server: ServerTransaction | None = None
        self._client: ClientTransaction | None = None
        self._answering: Answering | None = None
        self._bye_headers: Mapping[str, str] = NO_HEADERS
        self._cause: EndCause | None = None
        self._told = False
        self._timer: Timer | None = None

    @classmethod
    def receive(cls, wire: Wire, transaction: ServerTransaction, now: float) -> SipCall:
        """The call of a new INVITE."""
        call = cls(wire, transaction.request, outgoing=False)
        call._server = transaction
        transaction.on_cancel = call.receive_cancel
        peer = transaction.source
        contact = wire.contact(transaction.request.uri.user, peer)
        call.dialog = Dialog.of_server(transaction.request, wire.new_tag(), peer, contact)
        wire.dialogs[call.dialog.key] = call
        wire.calls.add(call)
        call._limit(wire.settings.ring_limit, now)
        return call

    @classmethod
    def dial(cls, wire: Wire, invite: Request, hop: Hop, now: float) -> SipCall:
        """Send an INVITE that is complete but for its Via."""
        call = cls(wire, invite, outgoing=True)
        wire.calls.add(call)
        call._client = wire.request(invite, hop, call._hear_invite, now)
        call._limit(wire.settings.ring_limit, now)
        return call

    @property
    def established(self) -> bool:
        return self.state is CallState.ESTABLISHED

    # Verbs

    def ring(self, now: float) -> None:
        self._apply(CallInput.RING, self._final(180), now)

    def answer(self, body: bytes, now: float) -> None:
        """Take the call: 200 with our answer, or our offer when the INVITE had none."""
        self._apply(CallInput.ANSWER, self._final(200, body), now)

    def hang_up(self, now: float, *, status: int = 480, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Refuse with `status`, CANCEL or BYE, as the state asks. `headers` go along; `ValueError` for bad ones."""
        # What cannot be written raises before anything has changed.
        Headers(headers.items())
        self._bye_headers = headers
        self._apply(CallInput.HANG_UP, self._final(status, headers=headers), now)

    def refer(self, target: Uri, now: float, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Ask the peer to call `target` instead; `TransferProgressed` tells how it goes."""
        if self.dialog is None or not self.established:
            raise ValueError("Only an established call can be transferred")
        self.transfer.send(self.dialog, target, headers, now)

    def report_transfer(self, status: int, now: float) -> None:
        if self.dialog is not None and self.established:
            self.transfer_request.report(self.dialog, status, now)

    def reoffer(self, body: bytes, now: float) -> None:
        if self.dialog is not None and self.established:
            self.reoffers.send(self.dialog, body, now)

    def accept_offer(self, body: bytes, now: float) -> None:
        if self.dialog is not None:
            self.reoffers.accept(self.dialog, body, now)

    def refuse_offer(self, now: float, status: int = 488) -> None:
        if self.dialog is not None:
            self.reoffers.refuse(self.dialog, status, now)

    # From the user agent

    def receive_cancel(self, now: float) -> None:
        self._apply(CallInput.CANCEL, None, now)

    def receive_ack(self, ack: Request, now: float) -> None:
        if self._answering is not None and ack.cseq.number == self._answering.cseq:
            self._apply(CallInput.ACK, ack, now)
        else:
            self.reoffers.acknowledge(ack)

    def receive_request(self, transaction: ServerTransaction, now: float) -> None:
        """A request in the dialog, of a method that we allow."""
        dialog = self.dialog
        if dialog is None:
            self.wire.reply(transaction, 481, now)
        elif not dialog.is_in_order(transaction.request):
            self.wire.respond(transaction, dialog, 500, now)
        else:
            dialog.peer = transaction.source
            receive_in_dialog(self, dialog, transaction, now)

    def receive_bye(self, bye: Request, now: float) -> None:
        # Before our answer it is the caller giving up, as CANCEL is.
        event = CallInput.CANCEL if self.state is CallState.INCOMING else CallInput.BYE
        self._apply(event, bye, now)

    def _hear_invite(self, response: Response | None, now: float) -> None:
        if response is None:
            self._apply(CallInput.NO_RESPONSE, None, now)
        elif response.status < 200:
            self._apply(CallInput.PROVISIONAL, response, now)
        elif response.status >= 300:
            self._apply(CallInput.FAILURE, response, now)
        elif self.dialog is None and self.state is not CallState.ENDED:
            self._apply(CallInput.SUCCESS, response, now)
        else:
            self._hear_success_again(response, now)

    def _hear_success_again(self, response: Response, now: float) -> None:
        """The same 2xx again gets its ACK again; one of another branch, or too late, is a call that nobody wants."""
        known = self.dialog
        dialog = self._dialog_of(response)
        if known is not None and dialog.key == known.key:
            dialog = known
        self._acknowledge(dialog)
        if dialog is not known:
            self.wire.request(dialog.request("BYE"), dialog.next_hop(), _ignore, now)

    def _acknowledge(self, dialog: Dialog) -> None:
        self.wire.acknowledge(dialog.request("ACK", self.invite.cseq.number), dialog.next_hop())

    def _dialog_of(self, response: Response) -> Dialog:
        assert self._client is not None
        return Dialog.of_client(self.invite, response, self._client.hop, self.invite.contacts[0])

    def _apply(self, event: CallInput, message: Message | None, now: float) -> None:
        row = CALL_TABLE.get((self.state, event))
        if row is None:
            return
        if self._cause is None:
            self._cause = _CAUSES.get(event)
        self.state, effects = row
        for effect in effects:
            _EFFECTS[effect](self, message, now)
        if self.state is CallState.ENDED:
            self._close()

    def _send_response(self, message: Message | None, now: float) -> None:
        if self._server is None or not isinstance(message, Response):
            return
        if message.status >= 200:
            self._server.on_cancel = None
        self._server.respond(message, now)

    def _send_answer(self, message: Message | None, now: float) -> None:
        if self._server is not None and isinstance(message, Response):
            self._stop_timer()
            self._answering = Answering(
                self.wire, self._server, message, lambda at: self._apply(CallInput.NO_ACK, None, at)
            )
            self._answering.start(now)

    def _send_terminated(self, message: Message | None, now: float) -> None:
        self._send_response(self._final(487), now)

    def _send_cancel(self, message: Message | None, now: float) -> None:
        assert self._client is not None
        self.wire.request(cancel_of(self.invite), self._client.hop, _ignore, now)
        # A peer that answers the CANCEL and never the INVITE must not keep the call (§9.1).
        self._limit(self.wire.settings.timers.timeout, now)

    def _send_bye(self, message: Message | None, now: float) -> None:
        if self.dialog is None:
            return
        bye = self.dialog.request("BYE")
        for name, value in self._bye_headers.items():
            bye.headers.add(name, value)
        self.wire.request(bye, self.dialog.next_hop(), self._hear_bye, now)

    def _hear_bye(self, response: Response | None, now: float) -> None:
        if response is None or response.status >= 200:
            self._apply(CallInput.BYE_OVER, response, now)

    def _confirm(self, message: Message | None, now: float) -> None:
        if isinstance(message, Response):
            self._stop_timer()
            self.dialog = self._dialog_of(message)
            self.wire.dialogs[self.dialog.key] = self
            self._acknowledge(self.dialog)

    def _stop_answering(self, message: Message | None, now: float) -> None:
        if self._answering is not None:
            self._answering.stop()
            self._answering = None
        if self._server is not None:
            self._server.on_cancel = None

    def _tell_ringing(self, message: Message | None, now: float) -> None:
        if isinstance(message, Response) and message.status > 100:
            self.wire.events.append(CallRinging(self, message.status))

    def _tell_answered(self, message: Message | None, now: float) -> None:
        self.wire.events.append(CallAnswered(self, message.body if message else b""))

    def _tell_confirmed(self, message: Message | None, now: float) -> None:
        self.wire.events.append(CallConfirmed(self, message.body if message else b""))

    def _tell_ended(self, message: Message | None, now: float) -> None:
        if self._told:
            return
        self._told = True
        final = message if isinstance(message, Response) else Response(status=0)
        headers = message.headers if message is not None else Headers()
        self.wire.events.append(CallEnded(self, self._cause or EndCause.LOCAL, final.status, final.reason, headers))

    def _final(self, status: int, body: bytes = b"", headers: Mapping[str, str] = NO_HEADERS) -> Response | None:
        """A response to the INVITE of an incoming call."""
        if self.dialog is None or self._server is None:
            return None
        response = self.wire.response(self.invite, self.dialog, status, body=body)
        for name, value in headers.items():
            response.headers.add(name, value)
        return response

    def _limit(self, seconds: float, now: float) -> None:
        """Give the INVITE up when nothing else happens."""
        self._stop_timer()
        refusal = self._final(480)
        self._timer = self.wire.timers.at(now + seconds, lambda at: self._apply(CallInput.NO_RESPONSE, refusal, at))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close(self) -> None:
        self._stop_timer()
        self.reoffers.close()
        self.transfer.close()
        self.wire.calls.discard(self)
        if self.dialog is not None:
            self.wire.dialogs.pop(self.dialog.key, None)
        self.wire.events.append(CallClosed(self))


_EFFECTS: Mapping[CallEffect, Callable[[SipCall, Message | None, float], None]] = {
    CallEffect.SEND_RINGING: SipCall._send_response,
    CallEffect.SEND_ANSWER: SipCall._send_answer,
    CallEffect.SEND_REFUSAL: SipCall._send_response,
    CallEffect.SEND_TERMINATED: SipCall._send_terminated,
    CallEffect.SEND_CANCEL: SipCall._send_cancel,
    CallEffect.SEND_BYE: SipCall._send_bye,
    CallEffect.CONFIRM: SipCall._confirm,
    CallEffect.STOP_ANSWERING: SipCall._stop_answering,
    CallEffect.TELL_RINGING: SipCall._tell_ringing,
    CallEffect.TELL_ANSWERED: SipCall._tell_answered,
    CallEffect.TELL_CONFIRMED: SipCall._tell_confirmed,
    CallEffect.TELL_ENDED: SipCall._tell_ended,
}


def _ignore(response: Response | None, now: float) -> None:
    """For requests whose outcome changes nothing."""


def cancel_of(invite: Request) -> Request:
    """The CANCEL of an INVITE that was sent (§9.1)."""
    headers = Headers([("Via", str(invite.via)), ("Max-Forwards", "70")])
    for name in ("Route", "From", "To", "Call-ID"):
        for value in invite.headers.values(name):
            headers.add(name, value)
    headers.add("CSeq", str(CSeq(invite.cseq.number, "CANCEL")))
    return Request(headers, method="CANCEL", uri=invite.uri)
