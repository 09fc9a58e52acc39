"""What the agent does in a call, but for leaving it: words, listening, fillers, sound, keys, the recording."""

from __future__ import annotations

import asyncio

from callagent.agents import (
    Action,
    ControlRecording,
    FunctionEnded,
    FunctionStarted,
    LimitReached,
    Listen,
    MetricWritten,
    ModelAnswered,
    Say,
    SetBackground,
    SetLanguage,
    SetThinkingSound,
    SetVoice,
    StepEntered,
    WaitEnded,
    WaitStarted,
)
from callagent.call.recorder import Recorder
from callagent.call.recording_tap import RecordingTap
from callagent.call.voice import SpeechSettings
from callagent.errors import CallagentError
from callagent.legs import CallLeg
from callagent.log import get_logger
from callagent.turns import TurnManager

log = get_logger(__name__)


class AgentActions:
    """One call's."""

    def __init__(
        self, leg: CallLeg, taker: TurnManager, recorder: Recorder, voice: SpeechSettings, tape: RecordingTap
    ) -> None:
        self._leg = leg
        self._taker = taker
        self._recorder = recorder
        self._voice = voice
        self._tape = tape
        self._keys: set[asyncio.Task[None]] = set()
        self.digits_hidden = False
        """Whether the caller keys what nobody may know."""

    def note(self, action: Action, now: float) -> bool:
        """Do what holds even if the caller has interrupted the reply; whether `action` was of that kind."""
        match action:
            case FunctionEnded(number=number):
                self._recorder.function_ended(action, now)
                self._taker.function_ended(number)
            case WaitEnded(number=number):
                self._taker.function_ended(number)
            case StepEntered() | ModelAnswered() | MetricWritten():
                self._recorder.did(action, now)
            case LimitReached(limit=limit, detail=detail):
                self._recorder.limit_reached(limit, detail, now)
            case ControlRecording(wish=wish):
                self._tape.control(wish)
            case _:
                return False
        return True

    def perform(self, action: Action, now: float) -> None:
        """Do what is for the caller's ears and hands."""
        match action:
            case Say(channel="dtmf", text=digits):
                self._key(digits)
            case Say(text=text) if text.strip():
                self._taker.say(
                    text, interruptible=action.interruptible, pcm=action.pcm, cancellable=action.cancellable
                )
            case FunctionStarted(number=number, latency=latency):
                self._recorder.function_started(action, now)
                self._taker.function_started(number, latency)
            case WaitStarted(number=number, latency=latency):
                self._taker.function_started(number, latency)
            case Listen(settings=settings):
                self.digits_hidden = settings.digits is not None and settings.digits.is_pii
                self._tape.hide_caller(self.digits_hidden)
                self._taker.listen(settings)
            case SetVoice() | SetLanguage() | SetBackground() | SetThinkingSound():
                self._voice.apply(action)

    async def finished(self) -> None:
        """When every word is played and every key sent."""
        await asyncio.gather(self._taker.played_out(), *self._keys)

    async def stop(self, seconds: float) -> None:
        """End what is still being keyed, waiting for it no longer than that."""
        for task in self._keys:
            task.cancel()
        if self._keys:
            await asyncio.wait(self._keys, timeout=seconds)

    def _key(self, digits: str) -> None:
        task = asyncio.create_task(self._send_digits(digits))
        self._keys.add(task)
        task.add_done_callback(self._keys.discard)

    async def _send_digits(self, digits: str) -> None:
        try:
            await self._leg.send_digits(digits)
        except (CallagentError, ValueError) as error:
            log.warning("digits_not_sent", error=str(error))
