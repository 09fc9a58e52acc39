"""One call: its INVITE, its dialog, and what happens inside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from callagent.sip.dialog.call_states import CALL_TABLE, CallEffect, CallInput, CallState
from callagent.sip.dialog.core import Wire
from callagent.sip.dialog.dialog import Dialog, asks_for_sips
from callagent.sip.dialog.events import CallAnswered, CallClosed, CallConfirmed, CallEnded, CallRinging, EndCause
from callagent.sip.dialog.prack import ReliableRinging
from callagent.sip.dialog.refer import TransferReceiver, TransferSender, instead_of
from callagent.sip.dialog.reinvite import Reoffers
from callagent.sip.dialog.requests import send_within
from callagent.sip.dialog.session_timer import SessionTimer
from callagent.sip.dialog.uac import Dialling, Way
from callagent.sip.dialog.uas import Answering
from callagent.sip.message import Headers, Message, Request, Response, Uri
from callagent.sip.transaction import ServerTransaction, Timer

NO_HEADERS: Mapping[str, str] = {}

_CAUSES = {
    CallInput.HANG_UP: EndCause.LOCAL,
    CallInput.CANCEL: EndCause.CANCELLED,
    CallInput.BYE: EndCause.REMOTE,
    CallInput.NO_ACK: EndCause.TIMEOUT,
    CallInput.NO_RESPONSE: EndCause.TIMEOUT,
    CallInput.FAILURE: EndCause.REFUSED,
    CallInput.LOST: EndCause.LOST,
}


class SipCall:
    """Made by the user agent; its verbs take `now` and may be called in any state: what does not fit does nothing."""

    def __init__(self, wire: Wire, invite: Request, *, outgoing: bool) -> None:
        self.invite = invite
        """The INVITE that began the call, received, or sent last."""
        self.outgoing = outgoing
        self.state = CallState.DIALLING if outgoing else CallState.INCOMING
        self.dialog: Dialog | None = None
        """None until the peer of an outgoing call has answered."""
        self.wire = wire
        self.reoffers = Reoffers()
        self.transfer = TransferSender()
        self.transfer_request = TransferReceiver()
        self.session = SessionTimer()
        self.ringing = ReliableRinging()
        self._host = ""
        self._server: ServerTransaction | None = None
        self.dialling: Dialling | None = None
        self.attempts_spent = False
        """Whether our call failed where only the bound on attempts kept it from the next server."""
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
        # The same INVITE once more is this call, not another.
        transaction.repeatable = False
        peer = transaction.source
        contact = wire.contact(transaction.request.uri.user, peer, secure=asks_for_sips(transaction.request))
        call.dialog = Dialog.of_server(transaction.request, wire.new_tag(), peer, contact)
        wire.dialogs[call.dialog.key] = call
        call._begin(peer.host, now)
        return call

    @classmethod
    def dial(cls, wire: Wire, invite: Request, way: Way, now: float) -> SipCall:
        """Send an INVITE that is complete but for its Via."""
        call = cls(wire, invite, outgoing=True)
        call.dialling = Dialling(wire, call, way)
        call.session.ask(call, invite.headers)
        call.reoffers.last = invite.body
        call._begin(way.hops[0].host, now)
        call.dialling.send(now)
        return call

    @property
    def established(self) -> bool:
        return self.state is CallState.ESTABLISHED

    # Verbs

    def ring(self, now: float, body: bytes = b"") -> None:
        """180; or 183 with our answer in `body`, for what is to be heard before the call is taken."""
        self.apply(CallInput.RING, self._final(183 if body else 180, body), now)

    def answer(self, body: bytes, now: float) -> None:
        """Take the call: 200 with our answer, or our offer when the INVITE had none."""
        response = self._final(200, body)
        if response is not None and self.state is CallState.INCOMING:
            self.reoffers.last = body
            self.session.agree(self, self.invite, response, now)
        self.apply(CallInput.ANSWER, response, now)

    def hang_up(self, now: float, *, status: int = 480, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """Refuse with `status`, CANCEL or BYE, as the state asks. `headers` go along; `ValueError` for bad ones."""
        # What cannot be written raises before anything has changed.
        Headers(headers.items())
        self._bye_headers = headers
        self.apply(CallInput.HANG_UP, self._final(status, headers=headers), now)

    def refer(
        self, target: Uri, now: float, headers: Mapping[str, str] = NO_HEADERS, to: SipCall | None = None
    ) -> None:
        """Ask the peer to call `target` instead; `TransferProgressed` tells how it goes.

        Given `to`, an established call of ours with the target, the peer is asked to take our place in it.
        """
        if self.dialog is None or not self.established:
            raise ValueError("Only an established call can be transferred")
        self.transfer.send(self, self.dialog, target if to is None else instead_of(to, target), headers, now)

    def report_transfer(self, status: int, now: float) -> None:
        if self.dialog is not None and self.established:
            self.transfer_request.report(self, self.dialog, status, now)

    def reoffer(self, body: bytes, now: float) -> None:
        if self.dialog is not None and self.established:
            self.reoffers.send(self, self.dialog, body, now)

    def accept_offer(self, body: bytes, now: float) -> None:
        self.reoffers.accept(self, body, now)

    def refuse_offer(self, now: float, status: int = 488) -> None:
        self.reoffers.refuse(self, status, now)

    # From the user agent

    def lose(self, now: float) -> None:
        """The peer has vanished, or answered 408 or 481 within the call (RFC 3261 §12.2.1.2, RFC 5057)."""
        self._bye_headers = NO_HEADERS
        self.apply(CallInput.LOST, None, now)

    def receive_cancel(self, cancel: Request, now: float) -> None:
        self.apply(CallInput.CANCEL, cancel, now)

    def receive_ack(self, ack: Request, now: float) -> None:
        if self._answering is not None and ack.cseq.number == self._answering.cseq:
            self.apply(CallInput.ACK, ack, now)
        else:
            self.reoffers.acknowledge(self, ack)

    def receive_bye(self, bye: Request, now: float) -> None:
        # Before our answer it is the caller giving up, as CANCEL is.
        event = CallInput.CANCEL if self.state is CallState.INCOMING else CallInput.BYE
        self.apply(event, bye, now)

    def apply(self, event: CallInput, message: Message | None, now: float) -> None:
        """Take one input: change the state, then let the effects happen."""
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
        if message.status < 200 and self.ringing.wanted(self.invite):
            self.ringing.send(self, self._server, message, now)
            return
        if message.status >= 200:
            self._server.on_cancel = None
            self.ringing.stop()
        self._server.respond(message, now)

    def _send_answer(self, message: Message | None, now: float) -> None:
        if self._server is not None and isinstance(message, Response):
            self._stop_timer()
            self.ringing.stop()
            self._answering = Answering(
                self.wire, self._server, message, lambda at: self.apply(CallInput.NO_ACK, None, at)
            )
            self._answering.start(now)

    def _send_terminated(self, message: Message | None, now: float) -> None:
        self._send_response(self._final(487), now)

    def _send_invite(self, message: Message | None, now: float) -> None:
        if self.dialling is not None:
            self.dialling.send(now)

    def _send_cancel(self, message: Message | None, now: float) -> None:
        if self.dialling is not None:
            self.dialling.cancel(self._bye_headers, now)
        # A peer that answers the CANCEL and never the INVITE must not keep the call (§9.1).
        self._limit(self.wire.settings.timers.timeout, now)

    def _send_bye(self, message: Message | None, now: float) -> None:
        if self.dialog is None:
            return
        bye = self.dialog.request("BYE")
        for name, value in self._bye_headers.items():
            bye.headers.add(name, value)
        send_within(self, bye, self._hear_bye, now)

    def _hear_bye(self, response: Response | None, now: float) -> None:
        if response is None or response.status >= 200:
            self.apply(CallInput.BYE_OVER, response, now)

    def _confirm(self, message: Message | None, now: float) -> None:
        if isinstance(message, Response) and self.dialling is not None:
            self._stop_timer()
            self.dialog = self.dialling.dialog_of(message)
            message.body = self.dialling.early.confirm(message, self.dialog)
            self.dialling.early.close()
            self.wire.dialogs[self.dialog.key] = self
            self.session.accept(self, message, now)
            self.dialling.acknowledge(self.dialog, now)

    def _stop_answering(self, message: Message | None, now: float) -> None:
        if self._answering is not None:
            self._answering.stop()
            self._answering = None
        if self._server is not None:
            self._server.on_cancel = None

    def _tell_ringing(self, message: Message | None, now: float) -> None:
        if isinstance(message, Response) and message.status > 100:
            self.wire.events.append(CallRinging(self, message.status, message.body))

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

    def _begin(self, host: str, now: float) -> None:
        self._host = host
        self.wire.begin(self, host)
        self._limit(self.wire.settings.ring_limit, now)

    def _limit(self, seconds: float, now: float) -> None:
        """Give the INVITE up when nothing else happens."""
        self._stop_timer()
        self._timer = self.wire.timers.at(
            now + seconds, lambda at: self.apply(CallInput.NO_RESPONSE, self._final(480), at)
        )

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close(self) -> None:
        self._stop_timer()
        self.reoffers.close()
        self.transfer.close()
        self.session.stop()
        self.ringing.stop()
        self.wire.end(self, self._host)
        if self.dialog is not None:
            self.wire.dialogs.pop(self.dialog.key, None)
        if self.dialling is not None:
            self.dialling.early.close()
            # What its INVITE still hears finds the call by itself; in a circle the two would wait for the collector.
            self.dialling = None
        self.wire.events.append(CallClosed(self))


_EFFECTS: Mapping[CallEffect, Callable[[SipCall, Message | None, float], None]] = {
    CallEffect.SEND_RINGING: SipCall._send_response,
    CallEffect.SEND_ANSWER: SipCall._send_answer,
    CallEffect.SEND_REFUSAL: SipCall._send_response,
    CallEffect.SEND_TERMINATED: SipCall._send_terminated,
    CallEffect.SEND_INVITE: SipCall._send_invite,
    CallEffect.SEND_CANCEL: SipCall._send_cancel,
    CallEffect.SEND_BYE: SipCall._send_bye,
    CallEffect.CONFIRM: SipCall._confirm,
    CallEffect.STOP_ANSWERING: SipCall._stop_answering,
    CallEffect.TELL_RINGING: SipCall._tell_ringing,
    CallEffect.TELL_ANSWERED: SipCall._tell_answered,
    CallEffect.TELL_CONFIRMED: SipCall._tell_confirmed,
    CallEffect.TELL_ENDED: SipCall._tell_ended,
}
