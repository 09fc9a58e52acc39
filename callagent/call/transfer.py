"""How a call leaves its agent: it plays the last words, transfers the caller, and decides what the outcome leads to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from callagent.agents import Handoff, HandoffFailed, HangUp
from callagent.call.recorder import Recorder
from callagent.call.state import LastWordsPlayed, TransferEnded
from callagent.call_info import EndReason
from callagent.errors import CallagentError
from callagent.legs import CallLeg, SwitchedMedia, TransferOutcome, TransferStatus, TransferTarget
from callagent.log import Logger

MAX_REFUSED_TRANSFERS = 10
"""How many transfers beyond the limit an agent is refused before its part of the call is over."""


class Transfer:
    """The last words, then the transfer: each is a task that ends with an event in the call's inbox."""

    def __init__(
        self,
        leg: CallLeg,
        resolve: Callable[[Handoff], TransferTarget],
        recorder: Recorder,
        emit: Callable[[LastWordsPlayed | TransferEnded], None],
        log: Logger,
        allowed: int,
    ) -> None:
        """`allowed`: how many transfers the agent may ask for."""
        self._leg = leg
        self._resolve = resolve
        self._recorder = recorder
        self._emit = emit
        self._log = log
        self._requests_left = allowed
        """How many more transfers the agent may ask for; negative: how many it has asked for beyond the limit."""
        self._excess: Handoff | None = None
        """The agent's latest request beyond the limit."""
        self._task: asyncio.Task[None] | None = None
        self._current: tuple[Handoff, TransferTarget] | None = None

    def count_request(self, handoff: Handoff) -> None:
        """Count a transfer that the agent asks for. Those of the server and of people who watch are not counted."""
        # Refusals are counted too: an agent that answers each refusal with the next request must come to an end.
        self._requests_left -= 1
        if self._requests_left < 0:
            self._excess = handoff

    @property
    def exhausted(self) -> bool:
        """Whether the agent keeps asking for transfers beyond its limit."""
        return self._requests_left < -MAX_REFUSED_TRANSFERS

    def play_last_words(self, words: Callable[[], Awaitable[None]], leaving: HangUp | Handoff, seconds: float) -> None:
        """Emit `LastWordsPlayed` once `words` returns, or after `seconds`."""
        self._task = asyncio.create_task(self._wait_for_words(words, leaving, seconds))

    def begin(self, handoff: Handoff, media: SwitchedMedia | None) -> TransferOutcome | None:
        """Begin a transfer; `TransferEnded` follows. Return the outcome at once if it is refused here."""
        self._current = None
        # Compared by identity: a person who watches may ask for the same destination, and is not refused.
        if handoff is self._excess:
            return self._refuse_excess()
        try:
            target = self._resolve(handoff)
        except CallagentError as refusal:
            self._recorder.error("handoff", str(refusal), _now())
            return TransferOutcome(TransferStatus.REFUSED, str(refusal))
        # A header that may not be sent is logged and recorded, but does not prevent the transfer.
        if target.left_out:
            self._report_left_out(target)
        self._current = (handoff, target)
        self._task = asyncio.create_task(self._transfer(handoff, target, media))
        return None

    def give_up_dialling(self, reason: EndReason) -> None:
        """Cancel a call of ours that nobody has answered yet."""
        self._task = asyncio.create_task(self._leg.hang_up(reason))

    def record_joined(self) -> None:
        """Record the transfer as succeeded: caller and target speak with each other, whoever hangs up later."""
        self._record_outcome(TransferOutcome(TransferStatus.SUCCEEDED, "joined"))

    def record_caller_left(self, detail: str) -> None:
        """Record that the caller was gone before the outcome of the transfer was known."""
        self._record_outcome(TransferOutcome(TransferStatus.CALLER_GONE, detail))

    def conclude(self, handoff: Handoff, outcome: TransferOutcome, *, last: bool) -> EndReason | HandoffFailed:
        """Record the outcome; return why the call ends, or what to tell an agent that has the caller back.

        `last`: the transfer was the fallback, and no agent waits for its outcome.
        """
        if outcome.limit:
            self._recorder.limit_reached(outcome.limit, outcome.detail, _now())
        self._recorder.handoff(handoff.destination, handoff.reason, outcome.status.value)
        if outcome.status is TransferStatus.SUCCEEDED:
            return EndReason.HANDOFF
        # The leg reports the hang-up as well. Whichever comes first ends the call; the first reason stands.
        if outcome.status is TransferStatus.CALLER_GONE:
            return EndReason.CALLER_HANGUP
        if last:
            self._log.error("fallback_failed", target=handoff.destination, detail=outcome.detail)
            return EndReason.ERROR
        self._log.warning("handoff_failed", destination=handoff.destination, detail=outcome.detail)
        return HandoffFailed(handoff.destination, outcome.detail + self._describe_left_out())

    async def stop(self, seconds: float) -> None:
        """Cancel what runs and wait for it, but no longer than `seconds`."""
        if self._task and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=seconds)
        self._task = None

    # private

    def _record_outcome(self, outcome: TransferOutcome) -> None:
        assert self._current is not None, "a transfer is under way"
        handoff, target = self._current
        self._recorder.transfer(target, outcome, _now())
        self._recorder.handoff(handoff.destination, handoff.reason, outcome.status.value)

    def _refuse_excess(self) -> TransferOutcome:
        detail = "the call has had as many transfers as limits.transfers allows; no further one is made"
        self._log.warning("limit_reached", limit="transfers")
        self._recorder.limit_reached("transfers", detail, _now())
        return TransferOutcome(TransferStatus.REFUSED, detail)

    def _report_left_out(self, target: TransferTarget) -> None:
        """Log and record headers of the project that the settings do not allow to be sent."""
        names = ", ".join(target.left_out)
        self._log.warning(
            "transfer_headers_left_out", target=target.name, headers=names, setting="sip.transfer_headers"
        )
        detail = f"left out of the transfer: {names}; sip.transfer_headers names what a project may send"
        self._recorder.error("transfer_headers", detail, _now())

    def _describe_left_out(self) -> str:
        left_out = self._current[1].left_out if self._current else ()
        return f" (headers left out: {', '.join(left_out)})" if left_out else ""

    async def _wait_for_words(
        self, words: Callable[[], Awaitable[None]], leaving: HangUp | Handoff, seconds: float
    ) -> None:
        # The boundary of a call: words that cannot be played do not leave the caller on a silent line.
        with self._log.contain("last_words_not_played"):
            try:
                async with asyncio.timeout(seconds):
                    await words()
            except TimeoutError:
                self._log.warning("last_words_not_played")
        self._emit(LastWordsPlayed(leaving))

    async def _transfer(self, handoff: Handoff, target: TransferTarget, media: SwitchedMedia | None) -> None:
        # The boundary of a call: the agent has the caller back, whatever became of the transfer.
        with self._log.contain("transfer_failed", target=target.name) as boundary:
            outcome = await self._leg.transfer(target, media)
        if boundary.error is not None:
            outcome = TransferOutcome(TransferStatus.FAILED, repr(boundary.error))
        self._emit(TransferEnded(handoff, target, outcome))


def _now() -> float:
    return asyncio.get_running_loop().time()
