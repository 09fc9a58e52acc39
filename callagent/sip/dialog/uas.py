"""Repeats the 2xx of an INVITE until its ACK comes (RFC 3261 §13.3.1.4)."""

from __future__ import annotations

from collections.abc import Callable

from callagent.sip.dialog.core import Wire
from callagent.sip.message import Response
from callagent.sip.transaction import ServerTransaction, Timer


class Answering:
    def __init__(
        self,
        wire: Wire,
        transaction: ServerTransaction,
        response: Response,
        on_missing: Callable[[float], None],
    ) -> None:
        """`on_missing` is called when no ACK came within 64*T1."""
        self._wire = wire
        self.cseq = transaction.request.cseq.number
        self._transaction = transaction
        self._response = response
        self._on_missing = on_missing
        self._repeat: Timer | None = None
        self._deadline: Timer | None = None

    def start(self, now: float) -> None:
        settings = self._wire.settings.timers
        self._deadline = self._wire.timers.at(now + settings.timeout, self._give_up)
        self._transaction.respond(self._response, now)
        self._arm(settings.t1, now)

    def stop(self) -> None:
        for timer in (self._repeat, self._deadline):
            if timer is not None:
                timer.cancel()

    def _arm(self, interval: float, now: float) -> None:
        def repeat(at: float) -> None:
            self._transaction.respond(self._response, at)
            self._arm(min(2 * interval, self._wire.settings.timers.t2), at)

        self._repeat = self._wire.timers.at(now + interval, repeat)

    def _give_up(self, now: float) -> None:
        self.stop()
        self._on_missing(now)
