"""The caller against a line whose agent the test plays; on the real clock of a call, in fractions of a second."""

from __future__ import annotations

import asyncio
import wave
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.call_info import MediaStatistics
from callagent.legs.leg import FrameSink, FrameSource, Media
from callagent.phone.caller import Caller, Step
from callagent.phone.handset import Earpiece, Microphone
from callagent.speech.protocol import (
    RecognizerSettings,
    RecognizerStream,
    SpeechChunk,
    Transcript,
    VoiceSettings,
)

LOUD = b"\x10\x20" * (FRAME_BYTES // 2)
QUIET = bytes(FRAME_BYTES)


class FakeMedia:
    def start(self, sink: FrameSink, source: FrameSource) -> None:
        self.sink, self.source = sink, source

    def clear(self) -> float:
        return 0.0

    def unheard(self) -> float:
        return 0.0

    def statistics(self) -> MediaStatistics:
        return MediaStatistics()


class FakeLine:
    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.on_transfer: Callable[[str], None] = lambda target: None
        self.wire = FakeMedia()
        self.digits: list[str] = []

    @property
    def media(self) -> Media:
        return self.wire

    async def send_digits(self, digits: str) -> None:
        self.digits.append(digits)

    def lose(self, share: float) -> None:
        self.lost = share

    async def hang_up(self) -> None:
        if not self.ended.done():
            self.ended.set_result("we hung up")


class FakeVoice:
    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        yield SpeechChunk(LOUD * 5)

    async def close(self) -> None:
        return None


class Words(RecognizerStream):
    """A recogniser that knows what the agent is about to say."""

    def __init__(self, earpiece: Earpiece, words: list[str]) -> None:
        self._earpiece = earpiece
        self._words = words
        self._number = 0

    def feed(self, pcm: bytes) -> None:
        return None

    def begin(self, settings: RecognizerSettings) -> None:
        self._number += 1

    def finish(self) -> None:
        asyncio.get_running_loop().call_soon(
            self._earpiece.on_transcript, Transcript(self._words[self._number - 1], True, self._number)
        )

    def close(self) -> None:
        return None


class Call:
    """Drives the wire on a clock of its own, fast: the caller sees seconds, the test takes milliseconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
        self.now = 1000.0
        for module in ("caller", "handset"):
            monkeypatch.setattr(f"callagent.phone.{module}.monotonic", lambda: self.now)
        self.line = FakeLine()
        self.microphone = Microphone()
        self.events: list[dict[str, Any]] = []
        self.earpiece = Earpiece(lambda utterance: self.caller.report_utterance(utterance))
        self.caller = Caller(self.line, self.earpiece, self.microphone, FakeVoice(), self.events.append)
        self.earpiece.listen(Words(self.earpiece, words), self.now)
        self.sent: list[float] = []
        """Seconds at which the caller's speech left."""

    async def run(self, steps: list[Step], agent: list[tuple[float, float]], seconds: float) -> bool:
        """The agent speaks in the given spans; whether the caller was done in time."""
        running = asyncio.create_task(self.caller.run(steps))
        while self.now < 1000.0 + seconds and not running.done():
            at = self.now - 1000.0
            loud = any(begin <= at < end for begin, end in agent)
            self.earpiece.on_frame(LOUD if loud else QUIET, self.now)
            if self.microphone.next_frame():
                self.sent.append(round(at, 2))
            # Whoever waits for the earpiece with a timeout looks again at every frame.
            self.earpiece.changed.set()
            for _ in range(4):
                await asyncio.sleep(0)
            self.now += FRAME_SECONDS
        done = running.done()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return done

    def told(self, kind: str) -> list[Any]:
        return [event["text"] for event in self.events if event["event"] == kind]


async def test_a_polite_caller_speaks_when_the_agent_has_paused(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, ["hello", "one moment", "still looking", "goodbye"])
    steps = [Step("say", "where is my parcel"), Step("say", "thank you")]
    assert await call.run(steps, [(0.5, 2.0), (3.5, 4.0), (4.8, 6.0), (8.5, 9.0)], 20)
    assert call.told("agent") == ["hello", "one moment", "still looking", "goodbye"]
    assert call.told("caller") == ["where is my parcel", "thank you"]
    first, second = call.sent[0], call.sent[5]
    assert 3.0 < first < 3.3, "1.1 s after the greeting"
    assert 7.0 < second < 7.3, "and not in the gap between two utterances"


async def test_the_answer_carries_the_response_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, ["hello", "it is on its way"])
    assert await call.run([Step("say", "where is it")], [(0.0, 1.0), (3.0, 4.0)], 20)
    (answer,) = [event for event in call.events if "response_delay" in event]
    assert answer["text"] == "it is on its way"
    assert answer["response_delay"] == pytest.approx(3.0 - call.sent[-1], abs=0.05)


async def test_an_interruption_comes_into_the_agents_utterance(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, ["a very long greeting", "yes"])
    assert await call.run([Step("interrupt", "stop", 0.5)], [(1.0, 2.5), (4.0, 5.0)], 20)
    assert 1.5 <= call.sent[0] < 1.8
    assert [event["interrupting"] for event in call.events if event["event"] == "caller"] == [True]


async def test_keys_are_pressed_after_the_agents_words(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, ["your number please", "thank you"])
    assert await call.run([Step("press", "84276#")], [(0.5, 1.5), (4.0, 5.0)], 20)
    assert call.line.digits == ["84276#"]
    assert call.told("keys") == ["84276#"]


async def test_waiting_for_words(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, ["one moment", "It ARRIVES on Monday", "bye"])
    steps = [Step("wait_for", "arrives on"), Step("hang_up", "true")]
    assert await call.run(steps, [(0.5, 1.0), (3.0, 4.0), (8.0, 9.0)], 20)
    assert call.line.ended.result() == "we hung up"
    assert call.now - 1000.0 < 6.0
    assert call.told("not heard") == []


async def test_words_that_never_come_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, ["hello"])
    assert await call.run([Step("wait_for", "arrives"), Step("hang_up", "true")], [(0.5, 1.0)], 60)
    assert call.told("not heard") == ["arrives"]


async def test_a_pause_is_as_long_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, [])
    assert await call.run([Step("wait", "3"), Step("hang_up", "true")], [], 20)
    assert call.now - 1000.0 == pytest.approx(3.0, abs=0.2)


async def test_a_silent_agent_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, [])
    assert not await call.run([Step("say", "hello?")], [], 24.5)
    call = Call(monkeypatch, [])
    assert not await call.run([Step("say", "hello?")], [], 40)
    assert 25.0 <= call.sent[0] < 25.5


async def test_the_end_of_the_call_ends_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    call = Call(monkeypatch, ["goodbye"])
    call.line.ended.set_result("the server hung up")
    assert await call.run([Step("say", "hello"), Step("say", "are you there")], [], 5)
    assert call.told("caller") == []


async def test_a_file_is_played_under_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "caller.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(LOUD * 3)
    call = Call(monkeypatch, ["hello", "thanks"])
    steps = [Step("play", str(tmp_path / "caller.wav"))]
    assert await call.run(steps, [(0.0, 1.0), (4.0, 5.0)], 20)
    assert call.told("caller") == ["caller.wav"]
    assert len(call.sent) == 3
