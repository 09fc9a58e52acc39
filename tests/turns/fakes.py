"""A caller, a wire and a recogniser that follow a script on the virtual clock."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from callagent.agents import DelayResponse, LatencyControl
from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.speech.protocol import RecognizerSettings, Transcript
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnEvent, TurnManager, TurnSettings

LOUD = struct.pack("<h", 8000) * (FRAME_BYTES // 2)
SILENT = bytes(FRAME_BYTES)


class LoudnessActivity:
    """A loud frame is voice."""

    def feed(self, frame: bytes) -> float:
        return 1.0 if frame == LOUD else 0.0

    def reset(self) -> None: ...


class Ear:
    """A recogniser and its stream: hears what the test says that it hears."""

    def __init__(self) -> None:
        self.begun: list[tuple[float, RecognizerSettings]] = []
        self.finished: list[float] = []
        self.fed = 0
        self.closed = False
        self.finals: list[str | tuple[str, ...]] = []
        """What each `finish()` is answered with, in order; then with nothing said."""
        self.delay = 0.1
        self.deaf = False
        """No final transcript ever comes."""

    async def open(self, on_transcript: Callable[[Transcript], None]) -> Ear:
        self._on_transcript = on_transcript
        return self

    def feed(self, pcm: bytes) -> None:
        self.fed += 1

    def begin(self, settings: RecognizerSettings) -> None:
        self.begun.append((now(), settings))

    def finish(self) -> None:
        self.finished.append(now())
        said = self.finals.pop(0) if self.finals else ""
        texts = (said,) if isinstance(said, str) else said
        transcript = Transcript(texts[0], True, len(self.begun), texts[1:])
        if not self.deaf:
            asyncio.get_running_loop().call_later(self.delay, self._on_transcript, transcript)

    def partial(self, text: str) -> None:
        self._on_transcript(Transcript(text, False, len(self.begun)))

    def close(self) -> None:
        self.closed = True


class Wire:
    """Frames both ways every 20 ms, and what the peer heard."""

    def __init__(self, buffered: int = 0) -> None:
        self.heard: list[bytes | None] = []
        """What reached the caller's ear, by tick."""
        self.speaking = False
        """The caller."""
        self._buffered = buffered
        """Frames that the far side holds back, as a carrier's stream does."""
        self._buffer: list[bytes] = []
        self.cleared: list[float] = []

    def start(self, sink: Callable[[bytes, float], None], source: Callable[[], bytes | None]) -> None:
        self._sink, self._source = sink, source

    def clear(self) -> float:
        dropped = len(self._buffer) * FRAME_SECONDS
        self._buffer.clear()
        self.cleared.append(dropped)
        return dropped

    def unheard(self) -> float:
        return len(self._buffer) * FRAME_SECONDS

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        start, tick = loop.time(), 0
        while True:
            tick += 1
            await asyncio.sleep(start + tick * FRAME_SECONDS - loop.time())
            self._sink(LOUD if self.speaking else SILENT, loop.time())
            if (frame := self._source()) is not None:
                self._buffer.append(frame)
            full = len(self._buffer) > self._buffered or (frame is None and self._buffer)
            self.heard.append(self._buffer.pop(0) if full else None)

    def heard_between(self, start: float, end: float) -> list[bytes | None]:
        return self.heard[round(start / FRAME_SECONDS) : round(end / FRAME_SECONDS)]


class Conversation:
    """A turn manager with its surroundings."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.ear = Ear()
        self.voice = ScriptedVoice()
        self.wire = Wire()
        self.events: list[TurnEvent] = []
        self.told_at: list[float] = []
        self.ears = CallerInput(self.ear, LoudnessActivity())
        self.sounds: Callable[[str], bytes | None] = lambda name: None

    async def begin(self, settings: TurnSettings = TurnSettings(allow_on_first_turn=True)) -> TurnManager:  # noqa: B008
        self.taker = await self._stack.enter_async_context(
            TurnManager(self.ears, self.voice, self._emit, settings, self.sounds)
        )
        self.taker.start(self.wire)
        pump = asyncio.get_running_loop().create_task(self.wire.run())
        self._stack.callback(pump.cancel)
        return self.taker

    def _emit(self, event: TurnEvent) -> None:
        self.events.append(event)
        self.told_at.append(now())

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def when(self, kind: type[Any], number: int = 0) -> float:
        """When the call was told."""
        return [at for event, at in zip(self.events, self.told_at, strict=True) if isinstance(event, kind)][number]

    async def speaks(self, seconds: float, *partials: str) -> None:
        """The caller speaks for so long; a partial transcript comes each 0.3 s."""
        self.wire.speaking = True
        rest = seconds
        for partial in partials:
            await asyncio.sleep(0.3)
            self.ear.partial(partial)
            rest -= 0.3
        await asyncio.sleep(rest)
        self.wire.speaking = False


def now() -> float:
    return asyncio.get_running_loop().time()


def hold(scenario: Callable[[Conversation], Coroutine[Any, Any, None]]) -> None:
    """Run a scenario on the virtual clock."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await scenario(Conversation(stack))

    run(main(), limit=600)


SLOW = VoiceScript(seconds_per_character=0.1)
"""Ten characters a second: lengths can be counted in the head."""
QUESTION = "For how many people do you want it"
LATENCY = LatencyControl(1.0, 2.0, (DelayResponse("One moment", 1.0), DelayResponse("Nearly done", 1.0)))


def near(seconds: float) -> object:
    """Within two frames: whatever happens on a frame's edge."""
    return pytest.approx(seconds, abs=0.045)
