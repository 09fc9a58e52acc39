"""Where one recogniser fails the next hears the utterance again; every `finish()` is answered once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from callagent.audio import FRAME_BYTES
from callagent.errors import ProviderError, ProviderRefused
from callagent.failover import Member
from callagent.speech import RecognizerSettings, Transcript
from callagent.speech.failover import FailoverRecognizer, FailoverStream
from callagent.testing.virtual_time import run

FRAME = b"\1\0" * 160
SILENCE = bytes(FRAME_BYTES)


@dataclass
class Stream:
    """Writes down how many loud frames it was fed between `begin()` and `finish()`."""

    ears: Recogniser
    on_transcript: Callable[[Transcript], None]
    failed: ProviderError | None = None
    count: int = 0
    loud: int = 0
    closed: bool = False

    def feed(self, pcm: bytes) -> None:
        self.loud += pcm == FRAME
        if self.loud == self.ears.cut_after:
            self.failed = ProviderError("cut")

    def begin(self, settings: RecognizerSettings) -> None:
        self.count += 1
        self.loud = 0
        self.on_transcript(Transcript(f"{self.ears.name}?", False, self.count))
        if self.ears.refuses:
            self.failed = self.ears.refuses

    def finish(self) -> None:
        if self.failed is None and not self.ears.deaf:
            final = Transcript(f"{self.ears.name}{self.loud}", True, self.count, ("x",), 0.5)
            asyncio.get_running_loop().call_later(self.ears.delay, self.on_transcript, final)

    def close(self) -> None:
        self.closed = True


@dataclass
class Recogniser:
    name: str
    delay: float = 0.2
    deaf: bool = False
    cut_after: int = -1
    refuses: ProviderError | None = None
    fails_to_open: bool = False
    streams: list[Stream] = field(default_factory=list)

    async def open(self, on_transcript: Callable[[Transcript], None]) -> Stream:
        await asyncio.sleep(0.05)
        if self.fails_to_open:
            raise ProviderError("not there")
        self.streams.append(Stream(self, on_transcript))
        return self.streams[-1]

    async def close(self) -> None:
        return None


@dataclass
class Talk:
    heard: list[tuple[float, Transcript]] = field(default_factory=list)
    stream: FailoverStream | None = None

    def take(self, transcript: Transcript) -> None:
        self.heard.append((asyncio.get_running_loop().time(), transcript))

    async def says(self, frames: int = 10, after: float = 5.0) -> float:
        """An utterance of so many frames and silence after it; when it was finished."""
        assert self.stream is not None
        self.stream.begin(RecognizerSettings())
        await self._feed(FRAME, frames)
        self.stream.finish()
        finished = asyncio.get_running_loop().time()
        await self._feed(SILENCE, round(after / 0.02))
        return finished

    async def _feed(self, frame: bytes, count: int) -> None:
        assert self.stream is not None
        for _ in range(count):
            self.stream.feed(frame)
            await asyncio.sleep(0.02)

    @property
    def finals(self) -> list[Transcript]:
        return [transcript for _, transcript in self.heard if transcript.final]


def talk(*recognisers: Recogniser, utterances: int = 1, embedded: bool = False) -> tuple[Talk, list[float]]:
    """What is heard of some utterances, and how long each final took."""
    caller = Talk()

    async def call() -> list[float]:
        members = [Member(one.name, one) for one in recognisers]
        if embedded:
            members[-1] = Member("local", recognisers[-1], embedded=True)
        recognizer = FailoverRecognizer(members)
        caller.stream = await recognizer.open(caller.take)
        finished = [await caller.says() for _ in range(utterances)]
        caller.stream.close()
        await recognizer.close()
        times = [at for at, transcript in caller.heard if transcript.final]
        return [at - end for at, end in zip(times, finished, strict=True)]

    return caller, run(call())


def test_the_first_is_asked_while_it_answers() -> None:
    first, second = Recogniser("a"), Recogniser("b")
    caller, delays = talk(first, second, utterances=2)
    assert caller.finals == [Transcript("a10", True, 1, ("x",), 0.5), Transcript("a10", True, 2, ("x",), 0.5)]
    assert delays == pytest.approx([0.2, 0.2])
    assert second.streams == []
    assert first.streams[0].closed


def test_what_is_said_before_the_stream_is_open_is_not_lost() -> None:
    caller, _ = talk(Recogniser("a"))
    assert caller.finals[0].text == "a10"


def test_one_that_cannot_be_opened_is_passed_over() -> None:
    caller, delays = talk(Recogniser("a", fails_to_open=True), Recogniser("b"))
    assert caller.finals[0].text == "b10"
    assert delays[0] < 0.5


def test_one_cut_within_the_utterance_is_replaced_and_the_next_hears_all_of_it() -> None:
    caller, delays = talk(Recogniser("a", cut_after=5), Recogniser("b"))
    assert caller.finals == [Transcript("b10", True, 1, ("x",), 0.5)]
    assert delays[0] < 0.5


def test_one_that_gives_no_final_within_1_25_s_is_replaced() -> None:
    caller, delays = talk(Recogniser("a", deaf=True), Recogniser("b"))
    assert [final.text for final in caller.finals] == ["b10"]
    assert delays[0] == pytest.approx(1.5, abs=0.05)


def test_a_final_that_comes_too_late_is_not_heard() -> None:
    caller, _ = talk(Recogniser("a", delay=2.1), Recogniser("b"))
    assert [final.text for final in caller.finals] == ["b10"]


def test_after_three_failures_the_next_is_asked_at_once_and_later_the_first_again() -> None:
    first, second = Recogniser("a", deaf=True), Recogniser("b")
    caller = Talk()

    async def call() -> None:
        recognizer = FailoverRecognizer([Member("a", first), Member("b", second)])
        caller.stream = await recognizer.open(caller.take)
        for _ in range(4):
            await caller.says(after=3)
        first.deaf = False
        for _ in range(4):
            await caller.says(after=3)
        caller.stream.close()

    run(call())
    texts = [final.text for final in caller.finals]
    assert texts[:4] == ["b10"] * 4
    assert texts[-1] == "a10"
    assert [final.utterance for final in caller.finals] == list(range(1, 9))


def test_a_refused_key_is_not_tried_again() -> None:
    first, second = Recogniser("a", refuses=ProviderRefused("bad key", 401)), Recogniser("b")
    caller, _ = talk(first, second, utterances=3)
    assert [final.text for final in caller.finals] == ["b10"] * 3
    assert len(first.streams) == 1


def test_where_all_fail_what_was_understood_stands() -> None:
    caller, delays = talk(Recogniser("a", deaf=True), Recogniser("b", deaf=True), utterances=2)
    assert caller.finals == [Transcript("b?", True, 1), Transcript("b?", True, 2)]
    assert delays[0] == pytest.approx(5.3, abs=0.1)


def test_where_nobody_can_be_opened_every_utterance_is_answered_empty() -> None:
    caller, _ = talk(Recogniser("a", fails_to_open=True), utterances=3)
    assert caller.finals == [Transcript("", True, number) for number in (1, 2, 3)]


def test_the_only_recogniser_is_opened_again_when_it_is_cut() -> None:
    only = Recogniser("a", cut_after=5)

    async def heal() -> None:
        while not only.streams or only.streams[0].failed is None:
            await asyncio.sleep(0.01)
        only.cut_after = -1

    caller = Talk()

    async def call() -> None:
        caller.stream = await FailoverRecognizer([Member("a", only)]).open(caller.take)
        async with asyncio.TaskGroup() as group:
            group.create_task(heal())
            group.create_task(caller.says())
        caller.stream.close()

    run(call())
    assert [final.text for final in caller.finals] == ["a10"]
    assert len(only.streams) == 2


def test_the_embedded_one_is_waited_for() -> None:
    caller, _ = talk(Recogniser("a", fails_to_open=True), Recogniser("b", delay=4.0), embedded=True)
    assert [final.text for final in caller.finals] == ["b10"]


def test_nothing_is_told_after_closing() -> None:
    caller = Talk()

    async def call() -> None:
        recogniser = Recogniser("a")
        caller.stream = await FailoverRecognizer([Member("a", recogniser)]).open(caller.take)
        caller.stream.begin(RecognizerSettings())
        caller.stream.close()
        caller.stream.finish()
        await asyncio.sleep(10)

    run(call())
    assert caller.heard == []
