"""Whole calls at random on the virtual clock, and what must never be heard in them.

Every 20 ms of the agent's voice tells which word of which utterance it is, so that what the caller heard is known from
the wire alone, whatever the turn manager thinks.
"""

from __future__ import annotations

import array
import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from callagent.agents import (
    AgentRecord,
    CallerTurn,
    DelayResponse,
    DigitSettings,
    Emit,
    FunctionEnded,
    FunctionStarted,
    HandoffFailed,
    LatencyControl,
    Listen,
    ListenSettings,
    Say,
    WaitEnded,
    WaitStarted,
)
from callagent.audio import FRAME_SAMPLES, FRAME_SECONDS
from callagent.call import Call, CallServices, CallSettings
from callagent.call_info import NO_HEADERS, EndReason, MediaStatistics
from callagent.legs.leg import FrameSink, FrameSource
from callagent.speech.protocol import RecognizerSettings, SpeechChunk, Transcript, VoiceSettings, WordTime
from callagent.turns import (
    BargedIn,
    CallerInput,
    FloorState,
    PlayoutPaused,
    TurnEvent,
    TurnManager,
    TurnReopened,
    TurnSettings,
    UtteranceKind,
    UtteranceStarted,
)
from tests.call.test_call import MemoryStore
from tests.fakes import LOUD, QUIET, FakeLeg, FakeProject, LoudnessActivity

AGENTS = frozenset({FloorState.THINKING, FloorState.SPEAKING, FloorState.CUTTING_IN, FloorState.HALTED})
TICK = FRAME_SECONDS + 0.001
YIELD_SECONDS = 0.1
"""60 ms make speech sure; then the frame on its way and the fade."""
WORDS = ("a", "table", "for", "four", "tomorrow", "evening", "please", "at", "seven", "reservation", "outside", "yes")


@dataclass(frozen=True, slots=True)
class Word:
    """What a frame's mark stands for."""

    utterance: str
    place: int
    frames: int


class MarkedVoice:
    """Speaks frames that tell which word they belong to and which of its frames they are. Gives word times."""

    def __init__(self, chance: random.Random) -> None:
        self.words: dict[int, Word] = {}
        self._chance = chance

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        start = 0.0
        await asyncio.sleep(self._chance.choice((0.0, 0.05, 0.3)))
        for place, word in enumerate(text.split()):
            # An odd number: no word is ever heard to exactly its half.
            frames, mark = (2 * len(word)) | 1, len(self.words) + 1
            self.words[mark] = Word(text, place, frames)
            end = start + frames * FRAME_SECONDS
            pcm = b"".join(struct.pack("<160h", *([mark] * 100), *([frame + 1] * 60)) for frame in range(frames))
            yield SpeechChunk(pcm, (WordTime(word, start, end),))
            start = end
            if self._chance.random() < 0.1:
                await asyncio.sleep(0.1)

    async def close(self) -> None:
        return None


class Wire:
    """A leg's media: frames both ways every 20 ms. A carrier's holds `buffered` frames that it has not played."""

    def __init__(self, buffered: int) -> None:
        self.heard: list[tuple[float, int, int]] = []
        """What reached the caller's ear: when, the word's mark, which frame of it."""
        self.speaking = False
        self.on_heard: Callable[[float, int], None] = lambda at, mark: None
        self._buffered = buffered
        self._buffer: list[bytes] = []
        self._task: asyncio.Task[None] | None = None

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(sink, source))

    async def _run(self, sink: FrameSink, source: FrameSource) -> None:
        loop = asyncio.get_running_loop()
        start, tick = loop.time(), 0
        while True:
            tick += 1
            await asyncio.sleep(start + tick * FRAME_SECONDS - loop.time())
            sink(LOUD if self.speaking else QUIET, loop.time())
            # As a carrier's leg does: kept so far ahead, as long as there is something to say.
            while len(self._buffer) <= self._buffered and (frame := source()) is not None:
                self._buffer.append(frame)
            if self._buffer:
                self._hear(self._buffer.pop(0), loop.time())

    def _hear(self, frame: bytes, now: float) -> None:
        samples = array.array("h", frame)
        assert len(samples) == FRAME_SAMPLES
        # A frame that fades out has no sound by then.
        if samples[60] and samples[150]:
            self.heard.append((now, samples[60], samples[150]))
            self.on_heard(now, samples[60])

    @property
    def newest(self) -> int:
        """The mark of the frame taken last and not yet played; 0: there is none."""
        return array.array("h", self._buffer[-1])[60] if self._buffer else 0

    def clear(self) -> float:
        dropped = len(self._buffer) * FRAME_SECONDS
        self._buffer.clear()
        return dropped

    def unheard(self) -> float:
        return len(self._buffer) * FRAME_SECONDS

    def statistics(self) -> MediaStatistics:
        return MediaStatistics()

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


class Ear:
    """Recogniser and stream: hears what the caller is saying when an utterance begins."""

    def __init__(self, chance: random.Random) -> None:
        self.saying = ""
        self._chance = chance
        self._heard: list[str] = []
        self._closed = False

    async def open(self, on_transcript: Callable[[Transcript], None]) -> Ear:
        self._on_transcript = on_transcript
        return self

    def feed(self, pcm: bytes) -> None: ...

    def begin(self, settings: RecognizerSettings) -> None:
        self._heard.append(self.saying)
        number = len(self._heard)
        words = self.saying.split()
        for count in range(1, len(words) + 1):
            self._send(0.3 * count, Transcript(" ".join(words[:count]), False, number))

    def finish(self) -> None:
        number = len(self._heard)
        self._send(self._chance.uniform(0.02, 0.5), Transcript(self._heard[-1], True, number))

    def close(self) -> None:
        self._closed = True

    def _send(self, seconds: float, transcript: Transcript) -> None:
        def send() -> None:
            if not self._closed:
                self._on_transcript(transcript)

        asyncio.get_running_loop().call_later(seconds, send)


@dataclass
class Waited:
    began: float
    ended: float | None = None


@dataclass
class RandomAgent:
    """Thinks, runs functions, says something; notes what it did and what it is told."""

    chance: random.Random
    told: Callable[[str, bool, list[str]], None]
    said: list[tuple[float, str]] = field(default_factory=list)
    uninterruptible: set[str] = field(default_factory=set)
    waits: dict[int, Waited] = field(default_factory=dict)
    turns: int = 0
    functions: int = 0
    _reply: list[str] = field(default_factory=list)
    _texts: int = 0

    async def start(self, emit: Emit) -> None:
        emit(self._say(interruptible=False))
        emit(Listen())

    async def reply(self, turn: CallerTurn | HandoffFailed, emit: Emit) -> None:
        self.turns += 1
        self._reply = []
        for _ in range(self.chance.choice((1, 1, 2, 3))):
            for _ in range(self.chance.choice((0, 1, 1, 2))):
                await self._wait(emit)
            for _ in range(self.chance.choice((1, 1, 2, 3))):
                emit(self._say(interruptible=self.chance.random() > 0.15))
                await asyncio.sleep(self.chance.choice((0.0, 0.0, 0.4, 1.5)))
        emit(Listen(self.chance.choice((ListenSettings(), ListenSettings(digits=DigitSettings(max_digits=2))))))

    async def _wait(self, emit: Emit) -> None:
        function = self.chance.random() < 0.6
        self.functions += 1
        number = self.functions if function else -self.functions
        self.waits[number] = waited = Waited(now())
        texts = tuple(DelayResponse(f"filler {number} {place} moment", 1.0) for place in range(3))
        latency = LatencyControl(self.chance.choice((0.0, 0.3, 1.0)), self.chance.choice((0.0, 1.0)), texts)
        emit(FunctionStarted(number, "look_up", {}, latency) if function else WaitStarted(number, latency))
        await asyncio.sleep(self.chance.choice((0.01, 0.3, 1.02, 2.5, 6.0)))
        waited.ended = now()
        emit(FunctionEnded(number, "look_up", {}, "", None, 1.0) if function else WaitEnded(number))

    def _say(self, *, interruptible: bool) -> Say:
        self._texts += 1
        text = " ".join((f"u{self._texts}", *self.chance.choices(WORDS, k=self.chance.randint(1, 8))))
        self.said.append((now(), text))
        self._reply.append(text)
        if not interruptible:
            self.uninterruptible.add(text)
        return Say(text, interruptible)

    def heard(self, text: str, *, cut: bool) -> None:
        self.told(text, cut, self._reply)

    def filler_spoken(self, text: str) -> None: ...

    async def end(self, reason: EndReason, attempt: int, headers: Mapping[str, str] = NO_HEADERS) -> bool:
        return True

    async def close(self) -> None: ...

    def record(self) -> AgentRecord:
        return AgentRecord()


class RandomCall:
    """One call. `faults` is what must not have happened."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.faults: list[str] = []
        self.interruptions = self.fillers = self.reopened = self.pauses = 0
        self.cut_texts = 0
        """Interruptions in which something had been heard and something had not."""
        self._spoke_since = 0.0
        self._caller_floor_since: float | None = None
        self._paused = False
        self._over = 0
        """Frames in a row of the agent over the caller."""
        self._utterance = ""
        self._left: set[str] = set()

    async def play(self, seconds: float = 40.0) -> None:
        loop = asyncio.get_running_loop()
        self.voice, self.ear = MarkedVoice(self.chance), Ear(self.chance)
        self.wire = Wire(self.chance.choice((0, 0, 5, 10)))
        self.agent = RandomAgent(self.chance, self._told)
        leg: Any = FakeLeg()
        leg.media = self.wire

        def make_turn_manager(emit: Callable[[TurnEvent], None]) -> TurnManager:
            def noted(event: TurnEvent) -> None:
                self._note(event)
                emit(event)

            return TurnManager(CallerInput(self.ear, LoudnessActivity()), self.voice, noted, TurnSettings())

        services = CallServices(MemoryStore(), lambda handoff: None)  # type: ignore[arg-type, return-value]
        project: Any = FakeProject(self.agent)  # type: ignore[arg-type]
        self.call = Call(leg, project, make_turn_manager, services, CallSettings())
        self.wire.on_heard = self._heard
        caller = loop.create_task(self._caller(leg, seconds))
        await self.call.run()
        self.wire.close()
        caller.cancel()

    # the caller

    async def _caller(self, leg: FakeLeg, seconds: float) -> None:
        until = now() + seconds
        while now() < until:
            await asyncio.sleep(self.chance.choice((0.5, 0.7, 1.2, 2.0, 4.0)) * self.chance.uniform(0.5, 1.5))
            what = self.chance.random()
            if what < 0.1:
                leg.presses(self.chance.choice("0123456789#"))
            elif what < 0.25:
                await self._speak("mm-hm", 0.35)
            elif what < 0.4:
                await self._speak("", self.chance.uniform(0.04, 0.5))
            else:
                words = self.chance.choices(WORDS, k=self.chance.randint(1, 6))
                await self._speak(" ".join(words), 0.3 * len(words) + self.chance.uniform(0.05, 0.4))
        leg.hangs_up()

    async def _speak(self, text: str, seconds: float) -> None:
        self.ear.saying = text
        self.wire.speaking, self._spoke_since = True, now()
        await asyncio.sleep(seconds)
        self.wire.speaking = False

    # what must not happen

    def _note(self, event: TurnEvent) -> None:
        match event:
            case PlayoutPaused():
                self._paused = True
                self.pauses += 1
            case TurnReopened():
                self.reopened += 1
            case BargedIn():
                self.interruptions += 1
                self._paused = True
            case UtteranceStarted(utterance=utterance, at=at) if utterance.kind is UtteranceKind.FILLER:
                self.fillers += 1
                self._filler_started(utterance.text, at)

    def _filler_started(self, text: str, at: float) -> None:
        waited = self.agent.waits[int(text.split()[1])]
        if waited.ended is not None and waited.ended < at - TICK:
            self._fault(f"'{text}' began {at - waited.ended:.3f} s after what it was for was over")
        ready = [said for said, _ in self.agent.said if waited.began < said < at - TICK]
        if ready:
            self._fault(f"'{text}' began {at - ready[0]:.3f} s after the answer was ready")

    def _heard(self, at: float, mark: int) -> None:
        """A frame of the agent's voice reached the caller's ear."""
        word = self.voice.words.get(mark)
        if word is None:
            self._fault(f"frame {mark} is of no word: two were mixed")
            return
        if word.utterance != self._utterance:
            if word.utterance in self._left and not self._paused:
                self._fault(f"'{word.utterance}' went on after another utterance")
            self._left.add(self._utterance)
            self._utterance, self._paused = word.utterance, False
        self._check_floor(at)
        # What is taken by a carrier and not yet played counts as what is said now.
        taken = self.voice.words.get(self.wire.newest, word).utterance
        may_not = self.agent.uninterruptible & {word.utterance, taken}
        interruptible = not may_not and self.agent.turns > 0
        over = interruptible and self.wire.speaking and at - self._spoke_since > YIELD_SECONDS
        self._over = self._over + 1 if over else 0
        # The first frame of an utterance finds out that the caller is speaking, the second is on its way.
        if self._over > 2:
            self._fault(f"'{word.utterance}' was spoken over the caller")

    def _check_floor(self, at: float) -> None:
        if self.call.floor in AGENTS:
            self._caller_floor_since = None
        elif self._caller_floor_since is None:
            self._caller_floor_since = at
        elif at - self._caller_floor_since > TICK:
            self._fault(f"the agent spoke in {self.call.floor}")

    def _told(self, text: str, cut: bool, reply: list[str]) -> None:
        """The agent is told what the caller heard of its reply: it must be what the ear got, to the word."""
        got: dict[int, set[int]] = {}
        for _, mark, frame in self.wire.heard:
            got.setdefault(mark, set()).add(frame)
        words = [
            word.utterance.split()[word.place]
            for mark, word in self.voice.words.items()
            if word.utterance in reply and 2 * len(got.get(mark, ())) > word.frames
        ]
        if text.split() != words and reply:
            self._fault(f"heard {words}, the agent was told {text.split()}")
        self.cut_texts += cut and 0 < len(words) < sum(len(said.split()) for said in reply)

    def _fault(self, what: str) -> None:
        self.faults.append(f"{now():.2f}: {what}")


def now() -> float:
    return asyncio.get_running_loop().time()
