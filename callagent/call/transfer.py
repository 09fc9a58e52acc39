"""How a call leaves its agent: the last words, the way to somebody else, and what becomes of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from callagent.agents import Handoff, HandoffFailed, HangUp
from callagent.call.fallback import Fallback
from callagent.call.recorder import Recorder
from callagent.call.state import LastWordsPlayed, TransferEnded
from callagent.call_info import EndReason
from callagent.errors import CallagentError
from callagent.legs import CallLeg, SwitchedMedia, TransferOutcome, TransferStatus, TransferTarget
from callagent.log import Logger

Resolve = Callable[[Handoff], TransferTarget]


MAX_REFUSED = 10
"""Transfers beyond the limit that an agent is refused before its part of the call is over."""


class Transfer:
    """One call's, one step at a time; each ends with an event in the call's inbox."""

    def __init__(
        self,
        leg: CallLeg,
        resolve: Resolve,
        recorder: Recorder,
        emit: Callable[[LastWordsPlayed | TransferEnded], None],
        log: Logger,
        transfers: int,
    ) -> None:
        """`transfers`: how many the agent may ask for."""
        self._transfers = transfers
        self._excess: Handoff | None = None
        self._leg = leg
        self._resolve = resolve
        self._recorder = recorder
        self._emit = emit
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._handing: tuple[Handoff, TransferTarget] | None = None

    def decided(self, handoff: Handoff) -> None:
        """The agent wants this transfer. Those of the server and of who watches are not counted."""
        self._transfers -= 1
        if self._transfers < 0:
            self._excess = handoff

    @property
    def insists(self) -> bool:
        """Whether the agent goes on asking for transfers that it cannot have: it would do so for ever."""
        return self._transfers < -MAX_REFUSED

    def after(self, words: Callable[[], Awaitable[None]], leaving: HangUp | Handoff, seconds: float) -> None:
        """Leave once `words` have ended, in so many seconds at most."""
        self._task = asyncio.create_task(self._last_words(words, leaving, seconds))

    def hand_over(self, handoff: Handoff, audio: SwitchedMedia | None) -> TransferOutcome | None:
        """Begin a transfer; what it came to where it could not even begin."""
        self._handing = None
        if handoff is self._excess:
            return self._refuse_excess()
        try:
            target = self._resolve(handoff)
        except CallagentError as refusal:
            self._recorder.error("handoff", str(refusal), asyncio.get_running_loop().time())
            return TransferOutcome(TransferStatus.REFUSED, str(refusal))
        if target.left_out:
            self._note_left_out(target)
        self._handing = (handoff, target)
        self._task = asyncio.create_task(self._transfer(handoff, target, audio))
        return None

    def _refuse_excess(self) -> TransferOutcome:
        detail = "the call has had as many transfers as limits.transfers allows; no further one is made"
        self._log.warning("limit_reached", limit="transfers")
        self._recorder.limit_reached("transfers", detail, asyncio.get_running_loop().time())
        return TransferOutcome(TransferStatus.REFUSED, detail)

    def _left_out(self) -> str:
        """Which headers of the last transfer were not sent, for its agent."""
        left_out = self._handing[1].left_out if self._handing else ()
        return f" (headers left out: {', '.join(left_out)})" if left_out else ""

    def _note_left_out(self, target: TransferTarget) -> None:
        names = ", ".join(target.left_out)
        self._log.warning(
            "transfer_headers_left_out", target=target.name, headers=names, setting="sip.transfer_headers"
        )
        detail = f"left out of the transfer: {names}; sip.transfer_headers names what a project may send"
        self._recorder.error("transfer_headers", detail, asyncio.get_running_loop().time())

    def give_up_dialling(self, reason: EndReason) -> None:
        """Nobody has answered our call, and nobody is to."""
        self._task = asyncio.create_task(self._leg.hang_up(reason))

    def joined(self) -> None:
        """A bridge stands. What it came to is known now, whoever hangs up."""
        assert self._handing is not None, "only a transfer joins"
        handoff, target = self._handing
        outcome = TransferOutcome(TransferStatus.SUCCEEDED, "joined")
        self._recorder.transfer(target, outcome, asyncio.get_running_loop().time())
        self._recorder.handoff(handoff.destination, handoff.reason, outcome.status.value)

    def caller_left(self, detail: str) -> None:
        """The caller has gone before the transfer came to anything."""
        assert self._handing is not None, "a transfer is under way"
        handoff, target = self._handing
        outcome = TransferOutcome(TransferStatus.CALLER_GONE, detail)
        self._recorder.transfer(target, outcome, asyncio.get_running_loop().time())
        self._recorder.handoff(handoff.destination, handoff.reason, outcome.status.value)

    def outcome(self, handoff: Handoff, outcome: TransferOutcome, outages: Fallback) -> EndReason | HandoffFailed:
        """What follows for the call."""
        if outcome.limit:
            self._recorder.limit_reached(outcome.limit, outcome.detail, asyncio.get_running_loop().time())
        self._recorder.handoff(handoff.destination, handoff.reason, outcome.status.value)
        if outcome.status is TransferStatus.SUCCEEDED:
            return EndReason.HANDOFF
        if outcome.status is TransferStatus.CALLER_GONE:
            return EndReason.CALLER_HANGUP
        if handoff is outages.leaving:
            self._log.error("fallback_failed", target=handoff.destination, detail=outcome.detail)
            return EndReason.ERROR
        self._log.warning("handoff_failed", destination=handoff.destination, detail=outcome.detail)
        return HandoffFailed(handoff.destination, outcome.detail + self._left_out())

    async def stop(self, seconds: float) -> None:
        """End what runs, waiting for it no longer than that."""
        if self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=seconds)
        self._task = None

    async def _last_words(
        self, words: Callable[[], Awaitable[None]], leaving: HangUp | Handoff, seconds: float
    ) -> None:
        try:
            async with asyncio.timeout(seconds):
                await words()
        except TimeoutError:
            self._log.warning("last_words_not_played")
        except Exception:
            # The edge of a call: words that cannot be played do not keep the caller on a silent line.
            self._log.exception("last_words_not_played")
        self._emit(LastWordsPlayed(leaving))

    async def _transfer(self, handoff: Handoff, target: TransferTarget, audio: SwitchedMedia | None) -> None:
        try:
            outcome = await self._leg.transfer(target, audio)
        except Exception as error:
            # The edge of a call: the agent has the caller back, whatever became of the transfer.
            self._log.exception("transfer_failed", target=target.name)
            outcome = TransferOutcome(TransferStatus.FAILED, repr(error))
        self._emit(TransferEnded(handoff, target, outcome))
