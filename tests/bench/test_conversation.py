"""What the conversation benchmark makes of an agent whose times are known, on the virtual clock."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import struct
import wave
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from callagent.audio import FRAME_SECONDS
from callagent.bench import conversation
from callagent.bench.conversation import (
    CallerSide,
    Plan,
    Result,
    Speech,
    Trial,
    Utterance,
    ask,
    exchange,
    filler_seconds,
    speech_of,
    words_within,
)
from callagent.bench.measurement import BenchServer, percentiles
from callagent.errors import UserError
from callagent.phone import nearest_rank
from callagent.testing.virtual_time import run
from tests.fakes import LOUD, QUIET

QUESTION = Utterance((LOUD,) * 50, 0.1, 0.9)
INTERRUPTION = Utterance((LOUD,) * 75, 0.25, 1.31)
CONFIGURED = 0.75
FADE = struct.pack("<160h", *([5000] * 40), *([0] * 120))
FRAME = FRAME_SECONDS + 1e-6


@dataclass
class Agent:
    """Answers the question, is interrupted, answers again: each so many seconds after the caller's true sounds."""

    reaction: float = 0.1
    late: float = 0.02
    resumes: float = math.inf
    """After its silence it goes on for 0.2 s."""
    asked: float = 0.0
    interrupted: float = math.inf
    over: float = math.inf

    def sounds(self, now: float) -> bool:
        filler = self.asked + CONFIGURED
        if filler <= now < filler + 0.5:
            return True
        stopped = self.interrupted + self.reaction
        if filler + 1.0 <= now < stopped:
            return True
        answer = self.over + CONFIGURED + self.late
        return stopped + self.resumes <= now < stopped + self.resumes + 0.2 or answer <= now < answer + 0.5


def exchanged(agent: Agent, cleared: Callable[[], int] = lambda: 0) -> Trial:
    async def play() -> Trial:
        loop = asyncio.get_running_loop()
        side = CallerSide(loop.time)
        agent.asked = math.inf
        playing = loop.create_task(frames(side))
        trial = await exchange(side, Plan(QUESTION, INTERRUPTION, 1.0, CONFIGURED), cleared)
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing
        return trial

    async def frames(side: CallerSide) -> None:
        loop = asyncio.get_running_loop()
        start, tick, said = loop.time(), 0, 0
        sounded = False
        while True:
            tick += 1
            await asyncio.sleep(start + tick * FRAME_SECONDS - loop.time())
            said += side.next_frame() is not None
            if said == 50:
                agent.asked = side.end if math.isinf(agent.asked) else agent.asked
            elif said > 50:
                agent.interrupted, agent.over = side.onset, side.end
            sounds = agent.sounds(loop.time())
            side.on_frame(LOUD if sounds else FADE if sounded else QUIET, loop.time())
            sounded = sounds

    return run(play())


def test_times_are_counted_from_the_callers_true_sounds() -> None:
    trial = exchanged(Agent(reaction=0.12, late=0.03))
    assert trial.barge_in == pytest.approx(0.12, abs=FRAME)
    assert trial.overhead == pytest.approx(0.03, abs=FRAME)
    assert not trial.missed


def test_an_agent_that_does_not_stop_is_infinitely_late() -> None:
    trial = exchanged(Agent(reaction=20.0, late=math.inf))
    assert trial.barge_in == math.inf
    assert trial.missed


def test_an_agent_that_stops_and_does_not_answer_has_stopped() -> None:
    trial = exchanged(Agent(late=math.inf))
    assert trial.barge_in == pytest.approx(0.1, abs=FRAME)
    assert trial.missed


def test_one_that_goes_on_before_it_answers_has_not_stopped_at_first() -> None:
    assert exchanged(Agent(resumes=0.5)).barge_in == pytest.approx(0.1 + 0.5 + 0.2, abs=FRAME)


def test_messages_that_emptied_the_buffer_are_counted_from_the_interruption_on() -> None:
    counts = iter((3, 4))
    assert exchanged(Agent(), lambda: next(counts)).clears == 1


async def test_after_a_miss_the_rest_goes_on_in_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    dialled: list[str] = []
    outcomes = iter((Trial(overhead=0.1), Trial(), Trial(overhead=0.2), Trial()))

    @contextlib.asynccontextmanager
    async def greeted(server: object, wire: str, caller: str) -> AsyncIterator[tuple[CallerSide, Callable[[], int]]]:
        dialled.append(caller)
        yield CallerSide(), lambda: 0

    async def exchanged(*_: object) -> Trial:
        return next(outcomes)

    monkeypatch.setattr(conversation, "_greeted", greeted)
    monkeypatch.setattr(conversation, "exchange", exchanged)
    plan = Plan(QUESTION, INTERRUPTION, 1.0, CONFIGURED)
    measured = await conversation._call(BenchServer(0, 0, ""), "sip", "bench0", [plan] * 4)
    assert [trial.missed for trial in measured] == [False, True, False, True]
    assert dialled == ["bench0", "bench0"]


def test_a_packet_that_left_late_makes_its_sound_late() -> None:
    clock = iter((10.0, 10.02, 10.5))
    wire = CallerSide(lambda: next(clock))
    wire.speak(Utterance((LOUD,) * 3, 0.005, 0.05))
    for _ in range(3):
        assert wire.end == math.inf
        assert wire.next_frame() == LOUD
    assert wire.next_frame() is None
    assert wire.onset == pytest.approx(9.985)
    assert wire.end == pytest.approx(10.49)


def test_the_fade_out_of_a_frame_is_not_heard() -> None:
    wire = CallerSide()
    for number, frame in enumerate([LOUD, LOUD, QUIET, LOUD, FADE]):
        wire.on_frame(frame, 5 + number * FRAME_SECONDS)
    wire.on_frame(LOUD, 9.0)
    assert wire.stopped_at == pytest.approx(5.08)
    assert wire.heard == pytest.approx(4 * FRAME_SECONDS)


def test_a_question_without_an_answer() -> None:
    async def play() -> float:
        side = CallerSide(asyncio.get_running_loop().time)
        side.speak(QUESTION)
        return await ask(side, QUESTION, 1.0)

    assert run(play()) == math.inf


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.12, 0), (0.125, 1), (0.42, 1), (0.43, 2), (3.7 + 0.125, 16), (60, 90)]
)
def test_a_word_counts_when_half_of_it_was_heard(seconds: float, words: int) -> None:
    assert len(conversation.SENTENCE.split()) == 15
    assert words_within(seconds) == words


def test_a_filler_belongs_to_the_nearest_start_of_a_function() -> None:
    assert filler_seconds([1.0, 5.0], 5.02) == pytest.approx(0.02)
    assert filler_seconds([1.0, 5.0], 4.999) == pytest.approx(-0.001)
    assert filler_seconds([1.0, 5.0], math.inf) == math.inf
    assert filler_seconds([], 5.0) == math.inf


def test_what_was_over_its_goal_names_the_recording_and_how_late_the_machine_was() -> None:
    trials = [
        Trial("quick.wav", (0.0, 5.0), barge_in=0.3, overhead=0.1),
        Trial("slow.wav", (5.0, 10.0), barge_in=0.3011, overhead=0.02),
        Trial("missed.wav", (10.0, 15.0)),
    ]
    assert conversation.slow_interruptions(trials, [(4.0, 30.0), (6.0, 7.25), (9.0, 1.0), (16.0, 40.0)]) == [
        {"figure": "barge_in_ms", "recording": "slow.wav", "ms": 301.1, "control_late_ms": 7.2},
        {"figure": "barge_in_ms", "recording": "missed.wav", "ms": None, "control_late_ms": 0.0},
        {"figure": "answer_overhead_ms", "recording": "missed.wav", "ms": None, "control_late_ms": 0.0},
    ]


@pytest.mark.parametrize(
    ("count", "share", "rank"),
    [(1, 0.99, 1), (2, 0.5, 1), (3, 0.5, 2), (20, 0.95, 19), (100, 0.99, 99), (101, 0.99, 100)],
)
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(count: int, share: float, rank: int) -> None:
    assert nearest_rank([float(number) for number in range(1, count + 1)], share) == rank


def recording(path: Path, *sounds: float) -> None:
    """Sounds with 0.4 s of silence between them."""
    samples = b"".join(b"\x00\x20" * round(8000 * seconds) + bytes(6400) for seconds in sounds)
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(samples)


def test_recordings_of_two_turns_are_left_out_and_the_others_used_evenly(tmp_path: Path) -> None:
    for number in range(8):
        recording(tmp_path / f"{number}.wav", 0.5 + number / 10)
    recording(tmp_path / "pause.wav", 0.5, 0.5)
    recording(tmp_path / "silent.wav", 0.0)
    speech = speech_of(tmp_path, 4)
    assert speech.left_out == 2
    assert [round(said.ends, 1) for said in speech.interruptions] == [0.5, 0.7, 0.9, 1.1]
    assert len(speech_of(tmp_path, 20).interruptions) == 20
    assert {said.ends for said in speech_of(tmp_path, 20).interruptions[:8]} == {
        said.ends for said in speech_of(tmp_path, 8).interruptions
    }


def test_a_folder_without_speech_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no WAV files"):
        speech_of(tmp_path, 4)


GOOD = {"barge_in_ms": [100.0] * 200, "answer_overhead_ms": [10.0] * 200}


def test_goals() -> None:
    assert Result(GOOD).met
    assert Result(GOOD, [1] * 200, [(3, 3)] * 200).met
    assert not Result(GOOD, [1] * 199 + [2]).met
    assert not Result(GOOD, None, [(3, 3)] * 199 + [(3, 4)]).met
    assert not Result({**GOOD, "barge_in_ms": []}).met


def test_what_was_missed_counts_at_the_99th_percentile() -> None:
    assert Result({**GOOD, "barge_in_ms": [100.0] * 198 + [math.inf] * 2}).met
    assert not Result({**GOOD, "barge_in_ms": [100.0] * 197 + [math.inf] * 3}).met


@pytest.mark.parametrize("as_json", [True, False])
def test_what_is_printed(as_json: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def measured(wire: str, speech: Speech) -> Result:
        assert (wire, len(speech.interruptions)) == ("twilio", 200)
        return Result({**GOOD, "barge_in_ms": [100.0, math.inf]}, [1, 2], [(3, 3), (3, None)])

    monkeypatch.setattr(conversation, "_measure", measured)
    options = argparse.Namespace(trials=None, embedded=False, callers=None, wire="twilio", json=as_json)
    assert conversation.bench_conversation(options) == 1
    printed = capsys.readouterr().out
    if as_json:
        assert '"p99": null, "max": null, "missed": 1' in printed
        assert (
            '"heard_words": {"interruptions": 2, "wrong": 1}, "clears": {"trials": 2, "not_exactly_one": 1}' in printed
        )
    else:
        assert "1 missed" in printed
        assert "words heard: wrong in the record of 1 of 2 interruptions" in printed
        assert "clear messages: other than one in 1 of 2 interruptions" in printed


@pytest.mark.acceptance("bench")
@pytest.mark.parametrize("wire", ["sip", "twilio"])
async def test_on_the_wire_nothing_is_missed_and_every_heard_word_is_right(wire: str) -> None:
    result = await conversation._measure(wire, speech_of(conversation.AGENT / "callers", 16))
    assert all(map(math.isfinite, [*result.figures["barge_in_ms"], *result.figures["answer_overhead_ms"]]))
    assert len(result.heard) == 16
    assert result.heard_wrong == 0
    assert result.odd_clears == 0
    assert len(result.clears or ()) == (16 if wire == "twilio" else 0)
    assert percentiles(result.figures["barge_in_ms"])["p50"] <= 200
    assert percentiles(result.figures["answer_overhead_ms"])["p50"] <= 40
