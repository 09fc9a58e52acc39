"""Carries out the agent's actions that do not end or transfer the call: speech, listening, sounds, DTMF, recording."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from callagent import agents
from callagent.call.recorder import Recorder
from callagent.call.recording_tap import RecordingTap
from callagent.errors import CallagentError
from callagent.legs import CallLeg
from callagent.log import get_logger
from callagent.speech import VoiceSettings
from callagent.turns import TurnManager

log = get_logger(__name__)


class AgentActions:
    """The agent's actions in one call, except those that end or transfer it."""

    def __init__(
        self,
        leg: CallLeg,
        turns: TurnManager,
        recorder: Recorder,
        tap: RecordingTap,
        has_voice: Callable[[str, str], bool],
        language: str,
    ) -> None:
        self.turns = turns
        self._leg = leg
        self._recorder = recorder
        self._tap = tap
        self._has_voice = has_voice
        self._voice = VoiceSettings(language=language)
        self._dtmf_tasks: set[asyncio.Task[None]] = set()
        self.digits_hidden = False
        """Whether the digits that the caller keys now are secret."""

    @property
    def language(self) -> str:
        """The language that the agent speaks now."""
        return self._voice.language

    def perform_lasting(self, action: agents.Action, now: float) -> bool:
        """Carry out an action that counts even after an interruption of the reply; return False for other actions."""
        # An interruption does not stop a function that runs: what it did has to be recorded.
        match action:
            case agents.FunctionEnded(number=number):
                self._recorder.function_ended(action, now)
                self.turns.function_ended(number)
            case agents.WaitEnded(number=number):
                self.turns.function_ended(number)
            case agents.StepEntered() | agents.ModelAnswered() | agents.MetricWritten():
                self._recorder.agent_event(action, now)
            case agents.LimitReached(limit=limit, detail=detail):
                self._recorder.limit_reached(limit, detail, now)
            case agents.ControlRecording(wish=wish):
                self._tap.control(wish)
            case _:
                return False
        return True

    def perform(self, action: agents.Action, now: float) -> None:
        """Carry out an action that counts only while the reply is not interrupted."""
        match action:
            case agents.Say(channel="dtmf", text=digits):
                self._send_dtmf(digits)
            case agents.Say(text=text) if text.strip():
                self.turns.say(text, interruptible=action.interruptible, pcm=action.pcm, cancellable=action.cancellable)
            case agents.FunctionStarted(number=number, latency=latency):
                self._recorder.function_started(action, now)
                self.turns.function_started(number, latency)
            case agents.WaitStarted(number=number, latency=latency):
                self.turns.function_started(number, latency)
            case agents.Listen(settings=settings):
                # Digits stay hidden until the next `Listen`: the caller may press more keys than were asked for.
                self.digits_hidden = settings.digits is not None and settings.digits.is_pii
                self._tap.hide_caller(self.digits_hidden)
                self.turns.listen(settings)
            case agents.SetVoice(provider=provider, name=name):
                if self._check_available("voice", f"{provider}/{name}", self._has_voice(provider, name), now):
                    self._speak_with(replace(self._voice, name=f"{provider}/{name}"))
            # Both the recogniser and the voice change: an agent that asks in French expects French answers.
            case agents.SetLanguage(code=code):
                self.turns.set_language(code)
                self._speak_with(replace(self._voice, language=code))
            case agents.SetBackground(name=name, loudness=loudness):
                self._check_available("sound", name, self.turns.set_background(name, loudness), now)
            case agents.SetThinkingSound(name=name, loudness=loudness):
                self._check_available("sound", name, self.turns.set_thinking_sound(name, loudness), now)

    async def wait_finished(self) -> None:
        """Wait until every word is played and every digit is sent."""
        await asyncio.gather(self.turns.played_out(), *self._dtmf_tasks)

    async def stop(self, seconds: float) -> None:
        """Cancel the sending of digits, and wait at most `seconds` until it has stopped."""
        for task in self._dtmf_tasks:
            task.cancel()
        if self._dtmf_tasks:
            await asyncio.wait(self._dtmf_tasks, timeout=seconds)

    # private

    def _speak_with(self, settings: VoiceSettings) -> None:
        """Use another voice or language, from the next utterance on."""
        self._voice = settings
        self.turns.set_voice(settings)

    def _check_available(self, what: str, name: str, available: bool, now: float) -> bool:
        """Record an error if a voice or sound is not available."""
        if not available:
            self._recorder.error(what, f"{what} '{name}' is not available", now)
        return available

    def _send_dtmf(self, digits: str) -> None:
        task = asyncio.create_task(self._send_digits(digits))
        self._dtmf_tasks.add(task)
        task.add_done_callback(self._dtmf_tasks.discard)

    async def _send_digits(self, digits: str) -> None:
        try:
            await self._leg.send_digits(digits)
        except (CallagentError, ValueError) as error:
            log.warning("digits_not_sent", error=str(error))
