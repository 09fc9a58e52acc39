"""The person on the test phone: follows a script against a line, and tells what is heard and when."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any

from callagent.phone.ear import Ear, Heard
from callagent.phone.line import Line
from callagent.phone.mouth import Mouth, synthesised, wav_file
from callagent.phone.script import Step
from callagent.speech.protocol import Voice

Report = Callable[[dict[str, Any]], None]
"""Takes one event: `{"at": seconds since the answer, "event": …}`."""

_TURN_PAUSE = 1.1
"""Seconds of the agent's silence after which a polite caller speaks."""
_PATIENCE = 25.0
"""Seconds a caller waits for the agent to say something."""


class Caller:
    """One call's script. `run` returns when it is done or the call is over."""

    def __init__(self, line: Line, ear: Ear, mouth: Mouth, voice: Voice | None, report: Report) -> None:
        self._line = line
        self._ear = ear
        self._mouth = mouth
        self._voice = voice
        self._report = report
        self._answered = monotonic()
        self._spoke_at: float | None = None
        self._seen = 0
        """How many of the agent's utterances were there when we last did something."""
        self._matched = 0

    async def run(self, steps: Sequence[Step]) -> None:
        """Follow the script, then listen until the agent has nothing more to say."""
        for step in steps:
            if self._line.ended.done():
                return
            await self._take(step)
        await self._agent_pauses()
        while self._ear.recognising:
            await self._change(2.0)

    def heard(self, utterance: Heard) -> None:
        """Report an utterance of the agent; the first one after our words carries the response delay."""
        event: dict[str, Any] = {"at": round(utterance.started, 3), "event": "agent", "text": utterance.text}
        event["seconds"] = round((utterance.ended or utterance.started) - utterance.started, 2)
        if self._spoke_at is not None and utterance.started > self._spoke_at:
            event["response_delay"] = round(utterance.started - self._spoke_at, 3)
            self._spoke_at = None
        self._report(event)

    async def _take(self, step: Step) -> None:
        match step.verb:
            case "say" | "play":
                await self._agent_pauses()
                await self._speak(step)
            case "interrupt":
                await self._agent_speaks(step.after)
                await self._speak(step)
            case "press":
                await self._agent_pauses()
                self._report({"at": self._now(), "event": "keys", "text": step.value})
                await self._line.send_digits(step.value)
                self._seen = len(self._ear.utterances)
            case "wait_for":
                await self._agent_says(re.compile(step.value, re.IGNORECASE))
            case "pause":
                await self._until(lambda: False, float(step.value))
            case "hang_up":
                await self._line.hang_up()

    async def _speak(self, step: Step) -> None:
        pcm = wav_file(Path(step.value)) if step.verb == "play" else await self._words(step.value)
        self._seen = len(self._ear.utterances)
        label = Path(step.value).name if step.verb == "play" else step.value
        self._report({"at": self._now(), "event": "caller", "text": label, "interrupting": step.verb == "interrupt"})
        await self._mouth.speak(pcm)
        self._spoke_at = self._mouth.last_voiced - self._answered

    async def _words(self, text: str) -> bytes:
        assert self._voice is not None, "checked when the phone was set up"
        return await synthesised(self._voice, text)

    async def _agent_pauses(self) -> None:
        """Until the agent has said something since we last did, and has been silent long enough."""
        await self._until(lambda: len(self._ear.utterances) > self._seen, _PATIENCE)
        while not self._line.ended.done():
            latest = self._ear.utterances[-1] if self._ear.utterances else None
            if latest is None or (latest.ended is not None and self._now() - latest.ended >= _TURN_PAUSE):
                return
            await self._change(0.05)

    async def _agent_speaks(self, seconds: float) -> None:
        def long_enough() -> bool:
            since = self._ear.speaking_since
            return since is not None and len(self._ear.utterances) > self._seen and self._now() - since >= seconds

        await self._until(long_enough, _PATIENCE)

    async def _agent_says(self, pattern: re.Pattern[str]) -> None:
        def said() -> bool:
            for heard in self._ear.utterances[self._matched :]:
                if heard.text and pattern.search(heard.text):
                    self._matched = heard.number
                    return True
            return False

        if not await self._until(said, _PATIENCE):
            self._report({"at": self._now(), "event": "not heard", "text": pattern.pattern})

    async def _until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for `condition`, the end of the call or `seconds`; whether the condition held."""
        deadline = monotonic() + seconds
        while not (held := condition()) and not self._line.ended.done() and monotonic() < deadline:
            await self._change(0.05)
        return held

    async def _change(self, seconds: float) -> None:
        self._ear.changed.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._ear.changed.wait()
        except TimeoutError:
            pass

    def _now(self) -> float:
        return round(monotonic() - self._answered, 3)
