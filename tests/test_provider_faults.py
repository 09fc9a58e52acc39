"""Two hundred faults of recognisers, models and voices in whole calls on the virtual clock; calls without any provider.

Every word has a level of its own on the wire, so that what the caller heard is read from the frames.
"""

from __future__ import annotations

import asyncio
import random
import struct
from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from callagent.agents import CallerTurn, Emit, Handoff, HandoffFailed, HangUp, Listen, ModelAnswered, Say
from callagent.audio import FRAME_SECONDS, SAMPLE_RATE
from callagent.call import Call, CallServices, CallSettings, ProvidersFailed, SpeechMade
from callagent.call_info import EndReason
from callagent.errors import ProviderError, ProviderRefused
from callagent.failover import Member
from callagent.legs.leg import TransferTarget
from callagent.models import Delta, FailoverModel, Message, ModelSettings, Tool
from callagent.records import CallRecord
from callagent.server.outbound import TargetRefused
from callagent.speech import (
    ApologisingVoice,
    CachedVoice,
    FailoverRecognizer,
    FailoverVoice,
    RecognizerSettings,
    SpeechChunk,
    TimedVoice,
    Transcript,
    VoiceSettings,
    WatchedRecognizer,
    WordTime,
)
from callagent.testing.virtual_time import run
from callagent.turns import CallerInput, TurnManager, TurnSettings
from tests.call.test_call import MemoryStore
from tests.fakes import FakeAgent, FakeLeg, FakeMedia, FakeProject, LoudnessActivity

FAULTS = ("refuse", "401", "429", "500", "black hole", "drip", "cut", "garbage")
ROLES = ("recognizer", "model", "voice")
ANSWERS = (
    "alpha bravo charlie delta echo. foxtrot golf hotel india juliet.",
    "kilo lima mike november oscar papa. quebec romeo sierra tango.",
)
WORDS = [word for answer in ANSWERS for word in answer.split()]
PACE = 15.0
"""Characters in a second."""
SPEECH = ((3.0, 4.0), (13.0, 14.0))
"""When the caller speaks, in seconds since the answer."""


def error_of(fault: str) -> ProviderError:
    match fault:
        case "401":
            return ProviderRefused("the key is refused", 401)
        case "429":
            return ProviderRefused("too many requests", 429, 7.0)
    return ProviderError(fault)


@dataclass
class WordVoice:
    """Speaks each word at a level of its own, ten times as fast as it sounds; `fault` befalls its second utterance."""

    fault: str = ""
    cut: float = 0.5
    timed: bool = True
    asked: list[float] = field(default_factory=list)

    async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
        self.asked.append(asyncio.get_running_loop().time())
        fault = self.fault if len(self.asked) > 1 else ""
        if fault == "black hole":
            await asyncio.Event().wait()
        await asyncio.sleep(0.1)
        if fault and fault not in ("drip", "cut"):
            raise error_of(fault)
        total = sum(len(word) + 1 for word in text.split()) / PACE
        start = 0.0
        for word in text.split():
            seconds = (len(word) + 1) / PACE
            cut = fault == "cut" and start + seconds > self.cut * total
            await asyncio.sleep(3 * seconds if fault == "drip" else seconds / 10)
            level = 1000 + 100 * WORDS.index(word) if word in WORDS else 500
            samples = round((self.cut * total - start if cut else seconds) * SAMPLE_RATE)
            times = (WordTime(word, start, start + seconds),) if self.timed else ()
            yield SpeechChunk(array("h", [level] * samples).tobytes(), times)
            if cut:
                raise ProviderError("the connection was cut")
            start += seconds

    async def close(self) -> None:
        return None


class WordStream:
    """Hears `one`, `two`, …; `fault` befalls its first utterance."""

    def __init__(self, fault: str, on_transcript: Callable[[Transcript], None]) -> None:
        self._fault = fault
        self._on_transcript = on_transcript
        self._count = 0
        self._fed = 0
        self.failed: ProviderError | None = None

    def feed(self, pcm: bytes) -> None:
        self._fed += 1
        if self._fault == "cut" and self._count and self._fed > 30:
            self.failed = ProviderError("the connection was cut")

    def begin(self, settings: RecognizerSettings) -> None:
        self._count += 1
        self._fed = 0
        if self._fault in ("refuse", "401", "429", "500", "garbage"):
            self.failed = error_of(self._fault)

    def finish(self) -> None:
        loop = asyncio.get_running_loop()
        if self._fault == "drip":
            for number in range(20):
                loop.call_later(0.5 * number, self._on_transcript, Transcript("o" * number, False, self._count))
        elif not self._fault:
            final = Transcript("words of the caller", True, self._count)
            loop.call_later(0.2, self._on_transcript, final)

    def close(self) -> None:
        return None


@dataclass
class WordRecognizer:
    fault: str = ""

    async def open(self, on_transcript: Callable[[Transcript], None]) -> WordStream:
        return WordStream(self.fault, on_transcript)

    async def close(self) -> None:
        return None


@dataclass
class WordModel:
    """Answers word by word; where it is cut is before the first sentence's end."""

    fault: str = ""
    cut: int = 0

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        if self.fault == "black hole":
            await asyncio.Event().wait()
        await asyncio.sleep(0.2)
        if self.fault and self.fault not in ("drip", "cut"):
            raise error_of(self.fault)
        for number, word in enumerate(ANSWERS[len(messages) - 1].split()):
            if self.fault == "cut" and number >= self.cut:
                raise ProviderError("the connection was cut")
            await asyncio.sleep(4.0 if self.fault == "drip" else 0.02)
            yield Delta(text=word + " ")

    async def close(self) -> None:
        return None


@dataclass
class ModelAgent(FakeAgent):
    """Asks the model in each turn and says its sentences as they come."""

    model: Any = None
    asked: int = 0

    async def reply(self, turn: CallerTurn | HandoffFailed, emit: Emit) -> None:
        self.turns.append(turn)
        loop = asyncio.get_running_loop()
        begun, sentence, error = loop.time(), "", None
        if isinstance(turn, CallerTurn) and turn.text:
            self.asked += 1
            try:
                async for delta in self.model.stream([{}] * self.asked, (), ModelSettings()):
                    sentence += delta.text
                    if sentence.rstrip().endswith("."):
                        emit(Say(sentence.strip()))
                        sentence = ""
            except ProviderError as failure:
                error = str(failure)
            emit(ModelAnswered(begun, None, loop.time(), error=error))
        if error or not (isinstance(turn, CallerTurn) and turn.text):
            emit(Say("Sorry, once more please."))
        emit(Listen())


class TappedMedia(FakeMedia):
    """Keeps the level of each frame sent."""

    def start(self, sink: Any, source: Any) -> None:
        self.levels: list[int] = []

        def tapped() -> bytes | None:
            frame = source()
            self.levels.append(struct.unpack_from("<h", frame, 160)[0] if frame else 0)
            return frame

        super().start(sink, tapped)


@dataclass
class Trial:
    record: CallRecord
    leg: FakeLeg
    levels: list[int]
    agent: ModelAgent
    failures: dict[str, int] = field(default_factory=dict)

    @property
    def words(self) -> list[str]:
        """What the caller heard of the answers: words of which at least half was sent, in order."""
        runs: list[list[int]] = []
        for level in self.levels:
            if runs and runs[-1][0] == level:
                runs[-1][1] += 1
            else:
                runs.append([level, 1])
        return [WORDS[(level - 1000) // 100] for level, frames in runs if level >= 1000 and self._half(level, frames)]

    def _half(self, level: int, frames: int) -> bool:
        word = WORDS[(level - 1000) // 100]
        return frames * FRAME_SECONDS >= (len(word) + 1) / PACE / 2 - FRAME_SECONDS

    def silences(self) -> list[float]:
        """After each of the caller's utterances, the longest silence until the answer's last sound, in seconds."""
        found = []
        for (_, ended), until in zip(SPEECH, (SPEECH[1][0], 24.0), strict=True):
            levels = self.levels[round(ended / FRAME_SECONDS) : round(until / FRAME_SECONDS)]
            last = max((place for place, level in enumerate(levels) if level), default=len(levels))
            longest = current = 0
            for level in levels[:last]:
                current = 0 if level else current + 1
                longest = max(longest, current)
            found.append(longest * FRAME_SECONDS)
        return found


@dataclass(frozen=True)
class Cast:
    """The providers of a call, the preferred one first."""

    recognizers: tuple[WordRecognizer, ...] = (WordRecognizer(), WordRecognizer())
    models: tuple[WordModel, ...] = (WordModel(), WordModel())
    voices: tuple[WordVoice, ...] = ()
    fallback: str = ""


async def play(cast: Cast) -> Trial:
    recognizer = FailoverRecognizer([Member(f"ear{number}", one) for number, one in enumerate(cast.recognizers)])
    model = FailoverModel([(f"openai/{number}", one) for number, one in enumerate(cast.models)])
    voices = cast.voices or (WordVoice(), WordVoice())
    voice = FailoverVoice([Member(f"voice{number}", CachedVoice(one, 0)) for number, one in enumerate(voices)])
    leg = FakeLeg()
    media = leg.media = TappedMedia()
    media.speech = list(SPEECH)
    # The greeting is said by the voice while all is well.
    agent = ModelAgent(greeting=(Say("Hello."), Listen()), model=model)
    asyncio.get_running_loop().call_later(45.0, leg.hangs_up)

    def make_turn_manager(emit: Any) -> TurnManager:
        ears = CallerInput(
            WatchedRecognizer(recognizer, lambda: emit(ProvidersFailed("recognizer"))),
            LoudnessActivity(),
        )
        own = ApologisingVoice(voice, lambda: emit(ProvidersFailed("voice")))
        timed = TimedVoice(own, lambda text, asked, answered: emit(SpeechMade(text, asked, answered)))
        return TurnManager(ears, timed, emit, TurnSettings(final_wait=5.0))

    settings = CallSettings(fallback=cast.fallback, filler_after=1.2)
    services = CallServices(MemoryStore(), resolve, lambda provider, name: False)  # type: ignore[arg-type]
    record = await Call(leg, FakeProject(agent), make_turn_manager, services, settings).run()
    lineups = (recognizer.lineup, model.lineup, voice.lineup)
    failures = {lineup.role: sum(member.breaker.failures for member in lineup.members) for lineup in lineups}
    return Trial(record, leg, media.levels, agent, failures)


def resolve(handoff: Handoff) -> TransferTarget:
    if handoff.destination != "reception":
        raise TargetRefused("not a target")
    return TransferTarget("reception", "sip:reception@192.0.2.1", handoff.method)


def cast_of(role: str, fault: str, dice: random.Random) -> Cast:
    match role:
        case "recognizer":
            return Cast(recognizers=(WordRecognizer(fault), WordRecognizer()))
        case "model":
            return Cast(models=(WordModel(fault, cut=dice.randrange(0, 5)), WordModel()))
    timed = dice.random() < 0.5
    return Cast(voices=(WordVoice(fault, dice.uniform(0.05, 0.95), timed), WordVoice(timed=timed)))


def test_two_hundred_faults_in_whole_calls() -> None:
    dice = random.Random(5)
    usual = run(play(Cast()))
    assert usual.words == WORDS
    beyond: list[float] = []
    for number in range(200):
        role, fault = ROLES[number % len(ROLES)], FAULTS[number // len(ROLES) % len(FAULTS)]
        trial = run(play(cast_of(role, fault, dice)))
        assert trial.record.end_reason == EndReason.CALLER_HANGUP.value, (role, fault)
        assert trial.failures[role] >= 1, (role, fault)
        assert trial.words == WORDS, (role, fault, trial.words)
        beyond += [now - before for now, before in zip(trial.silences(), usual.silences(), strict=True)]
    within = sum(seconds <= 1.5 for seconds in beyond)
    assert within >= 0.99 * len(beyond), sorted(beyond)[-20:]
    assert max(beyond) < 2.5


ALL_OUT = [
    (Cast(models=(WordModel("500"), WordModel("black hole"))), "model"),
    (Cast(recognizers=(WordRecognizer("500"), WordRecognizer("black hole"))), "recognizer"),
    (Cast(voices=(WordVoice("500"), WordVoice("garbage"))), "voice"),
]


@pytest.mark.parametrize(("cast", "role"), ALL_OUT, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("fallback", ["reception", "", "nowhere"])
def test_without_providers_the_caller_hears_so_and_is_passed_on(cast: Cast, role: str, fallback: str) -> None:
    trial = run(play(replace(cast, fallback=fallback)))
    after = trial.levels[round(SPEECH[0][1] / FRAME_SECONDS) :]
    assert any(after), "the caller hears something"
    if fallback == "reception":
        assert "transfer refer sip:reception@192.0.2.1" in trial.leg.did
        assert trial.record.end_reason == EndReason.HANDOFF.value
    else:
        assert not any(done.startswith("transfer") for done in trial.leg.did)
        assert trial.record.end_reason == EndReason.ERROR.value
    what = "model" if role == "model" else "outage"
    assert any(error["what"] == what for error in trial.record.errors)
    assert trial.record.total_duration < 40


@pytest.mark.parametrize("role", ROLES)
def test_a_failure_stands_in_the_record(role: str) -> None:
    trial = run(play(cast_of(role, "500", random.Random(1))))
    failure = trial.record.provider_failures[0]
    assert (failure["role"], failure["error"]) == (role, "500")
    assert SPEECH[0][0] < failure["at"] < 20


def test_the_time_to_the_answer_is_split() -> None:
    turn = run(play(Cast())).record.turns[1]
    latency = {name: value or 0.0 for name, value in turn.latency.items()}
    assert latency["endpointing"] == pytest.approx(0.7, abs=0.05)
    assert latency["voice"] == pytest.approx(0.1 + 6 / PACE / 10, abs=0.01)
    assert latency["wire"] <= 0.05
    (request,) = turn.requests
    assert request.duration_ms == pytest.approx(400, abs=50)
    said = request.requested_at + 0.2 + 5 * 0.02
    assert turn.instants["voice_asked"] == pytest.approx(said, abs=0.03)


def test_one_outage_of_a_model_is_no_end() -> None:
    trial = run(play(Cast(models=(WordModel("500"), WordModel("cut")))))
    assert trial.record.num_turns >= 2
    assert HangUp not in {type(turn) for turn in trial.agent.turns}
