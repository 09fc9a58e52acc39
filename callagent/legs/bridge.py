"""A bridge through us: we call the target, and pass frames of audio between it and the caller.

Each media session decodes to PCM frames and encodes from them, so that the two sides need no codec in common.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from callagent.call_info import EndReason
from callagent.legs import leg as leg_contract
from callagent.log import get_logger

DROP_SECONDS = 2.0
"""A target that hangs up so soon after its answer has not been reached: the caller returns to the agent."""

log = get_logger(__name__)


class TargetLeg(Protocol):
    """The part of the target's leg that a bridge needs."""

    on_early_media: Callable[[leg_contract.Media], None] | None

    def listen(self, on_event: Callable[[leg_contract.LegEvent], None]) -> None: ...

    async def answer(self) -> leg_contract.Media: ...

    async def send_digits(self, digits: str) -> None: ...

    def leave(self, reason: EndReason) -> None:
        """Hang up without waiting for the peer to confirm."""


Dial = Callable[[leg_contract.TransferTarget], Awaitable[TargetLeg]]
"""Call a target. Raises `ValueError` or `OSError` if there is no way to it, and `LegGone` if no media port is free."""


@dataclass(frozen=True, slots=True)
class _CallerPressed:
    """The caller pressed a key."""

    digit: str


class Bridge:
    """One attempt to connect a caller with a target; `run` lasts until the attempt fails or the conversation ends."""

    def __init__(
        self,
        target: leg_contract.TransferTarget,
        audio: leg_contract.SwitchedMedia,
        send_to_caller: Callable[[str], Awaitable[None]],
        on_joined: Callable[[], None],
    ) -> None:
        """`send_to_caller` sends digits to the caller; `on_joined` is called when the target has answered."""
        self.is_joined = False
        self._target = target
        self._audio = audio
        self._send_to_caller = send_to_caller
        self._on_joined = on_joined
        # The target's events and the caller's keys come from callbacks; one coroutine handles them in order.
        self._inbox: asyncio.Queue[leg_contract.LegEvent | _CallerPressed] = asyncio.Queue()
        self._to_caller, self._to_target = leg_contract.FrameRelay(), leg_contract.FrameRelay()
        self._started = False

    async def run(self, dial: Dial) -> leg_contract.TransferOutcome:
        """Call the target, and return when it was not reached or one of the two has left.

        Afterwards the agent has the caller's audio back, even if the coroutine is cancelled.
        """
        try:
            leg = await dial(self._target)
        except (ValueError, OSError, leg_contract.LegGone) as error:
            return leg_contract.failed_by(error)
        try:
            leg.listen(self._inbox.put_nowait)
            refusal = await self._ring(leg)
            return refusal or await self._join(leg)
        finally:
            # Also if cancelled by the end of the caller's leg: the target must not stay ringing, or in an empty call.
            self.is_joined = False
            self._audio.return_to_agent()
            leg.leave(EndReason.HANDOFF)

    def forward_digit(self, digit: str) -> None:
        """Send a key that the caller pressed to the target."""
        self._inbox.put_nowait(_CallerPressed(digit))

    async def _ring(self, leg: TargetLeg) -> leg_contract.TransferOutcome | None:
        """Wait for the target's answer; return the outcome if it did not answer, or None."""
        if self._target.early_media:
            leg.on_early_media = self._start
        media, refusal = await wait_for_answer(leg, self._target.ring_seconds)
        if media is not None:
            self._start(media)
        return refusal

    def _start(self, media: leg_contract.Media) -> None:
        """Let the caller hear the target: ringing tones and announcements, or the person. Idempotent."""
        if not self._started:
            self._started = True
            media.start(self._to_caller.put, self._to_target.take)
            self._audio.play_from(self._to_caller)

    async def _join(self, leg: TargetLeg) -> leg_contract.TransferOutcome:
        """Let the two speak with each other until one leaves."""
        loop = asyncio.get_running_loop()
        answered = loop.time()
        self._audio.send_to(self._to_target)
        self.is_joined = True
        self._on_joined()
        while True:
            match await self._inbox.get():
                case _CallerPressed(digit=digit):
                    await leg.send_digits(digit)
                case leg_contract.DigitPressed(digit=digit):
                    # Keys cross the bridge in both directions, because either side may be a menu.
                    await self._send_to_caller(digit)
                case leg_contract.LegFailed(detail=detail):
                    return leg_contract.TransferOutcome(
                        leg_contract.TransferStatus.FAILED, f"the target was lost: {detail}"
                    )
                case leg_contract.CallerHungUp():
                    if loop.time() - answered < DROP_SECONDS:
                        return leg_contract.TransferOutcome(
                            leg_contract.TransferStatus.FAILED, "the target hung up at once"
                        )
                    return leg_contract.TransferOutcome(leg_contract.TransferStatus.SUCCEEDED, "the target hung up")


async def wait_for_answer(
    leg: TargetLeg, seconds: float
) -> tuple[leg_contract.Media | None, leg_contract.TransferOutcome | None]:
    """Wait for the target's answer; return its media, or the outcome of an attempt that failed."""
    try:
        async with asyncio.timeout(seconds):
            return await leg.answer(), None
    except TimeoutError:
        return None, leg_contract.TransferOutcome(
            leg_contract.TransferStatus.NO_ANSWER, f"not answered within {seconds:g} s"
        )
    except leg_contract.LegGone as gone:
        return None, leg_contract.TransferOutcome(
            _STATUSES.get(gone.status, leg_contract.TransferStatus.FAILED), str(gone), gone.limit
        )


# The meaning of a target's final SIP response (RFC 3261 §21); all others are failures.
_STATUSES = {
    408: leg_contract.TransferStatus.NO_ANSWER,
    480: leg_contract.TransferStatus.NO_ANSWER,
    487: leg_contract.TransferStatus.NO_ANSWER,
    486: leg_contract.TransferStatus.REFUSED,
    600: leg_contract.TransferStatus.REFUSED,
    603: leg_contract.TransferStatus.REFUSED,
    607: leg_contract.TransferStatus.REFUSED,
}
