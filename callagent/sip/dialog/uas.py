"""The UAS side of an INVITE: its responses, and the retransmission of a 2xx until the ACK (RFC 3261 §13.3)."""

from __future__ import annotations

from collections.abc import Callable

from callagent.sip.dialog.call_machine import CallMachine
from callagent.sip.dialog.core import UserAgentCore
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.prack import OPTION_TAG, ReliableProvisional
from callagent.sip.message import Request, Response
from callagent.sip.transaction import ServerTransaction, Timer


class AnswerRetransmission:
    """A 2xx to an INVITE, sent again with growing intervals until its ACK arrives (RFC 3261 §13.3.1.4)."""

    def __init__(
        self,
        core: UserAgentCore,
        transaction: ServerTransaction,
        response: Response,
        on_missing: Callable[[float], None],
    ) -> None:
        """`on_missing` is called if no ACK arrives within 64*T1."""
        self._core = core
        self.cseq = transaction.request.cseq.number
        self._transaction = transaction
        self._response = response
        self._on_missing = on_missing
        self._repeat: Timer | None = None
        self._deadline: Timer | None = None

    def start(self, now: float) -> None:
        """Send the 2xx for the first time."""
        settings = self._core.settings.timers
        self._deadline = self._core.timers.at(now + settings.timeout, self._give_up)
        self._transaction.respond(self._response, now)
        self._arm(settings.t1, now)

    def stop(self) -> None:
        for timer in (self._repeat, self._deadline):
            if timer is not None:
                timer.cancel()

    def _arm(self, interval: float, now: float) -> None:
        def repeat(at: float) -> None:
            self._transaction.respond(self._response, at)
            self._arm(min(2 * interval, self._core.settings.timers.t2), at)

        self._repeat = self._core.timers.at(now + interval, repeat)

    def _give_up(self, now: float) -> None:
        self.stop()
        self._on_missing(now)


class IncomingInvite:
    """The INVITE of an incoming call: its transaction, and the responses that were sent to it."""

    def __init__(self, transaction: ServerTransaction) -> None:
        self._transaction = transaction
        self._provisional: ReliableProvisional | None = None
        """Made for a caller that requires reliable provisional responses."""
        self._answer: AnswerRetransmission | None = None

    def send_provisional(self, call: CallMachine, response: Response, now: float) -> None:
        """Send a 1xx, reliably if the caller requires it (RFC 3262 §3)."""
        if OPTION_TAG not in call.invite.headers.flags("Require"):
            self._transaction.respond(response, now)
            return
        if self._provisional is None:
            self._provisional = ReliableProvisional()
        self._provisional.send(call, self._transaction, response, now)

    def send_answer(
        self, core: UserAgentCore, response: Response, on_missing: Callable[[float], None], now: float
    ) -> None:
        """Send a 2xx until its ACK arrives; `on_missing` is called if none does."""
        self.close()
        self._answer = AnswerRetransmission(core, self._transaction, response, on_missing)
        self._answer.start(now)

    def refuse(self, response: Response, now: float) -> None:
        """Send a final response other than 2xx."""
        self._transaction.on_cancel = None
        self.close()
        self._transaction.respond(response, now)

    def receive_prack(self, call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        """Respond to a PRACK."""
        if self._provisional is None:
            call.core.respond(transaction, dialog, 481, now)
        else:
            self._provisional.receive_prack(call, dialog, transaction, now)

    def is_answered_by(self, ack: Request) -> bool:
        """Whether the ACK is that of our 2xx, which is still being sent."""
        return self._answer is not None and ack.cseq.number == self._answer.cseq

    def stop_answering(self) -> None:
        """End the retransmission of the 2xx. From now on a CANCEL of the INVITE has no effect."""
        if self._answer is not None:
            self._answer.stop()
            self._answer = None
        self._transaction.on_cancel = None

    def close(self) -> None:
        """Stop the retransmission of a provisional response."""
        if self._provisional is not None:
            self._provisional.stop()
