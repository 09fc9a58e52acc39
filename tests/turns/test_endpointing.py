from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from callagent.agents import DigitSettings, ListenSettings
from callagent.turns import CallerInput, CallerTurnEnded
from callagent.turns.endpointing import EndpointingTimes, silence_to_wait, spoken_digits
from tests.turns.fakes import Conversation, hold, near, now

SETTINGS = EndpointingTimes(normal=0.5, finished=0.35, unfinished=1.2)


@pytest.mark.parametrize(
    ("text", "digits", "opinion", "seconds"),
    [
        ("a table for four", 0, None, 0.5),
        ("a table for four and", 0, None, 1.2),
        ("My name is", 0, None, 1.2),
        ("My name is.", 0, 0.99, 1.2),
        ("well,", 0, None, 1.2),
        ("a table for four", 0, 0.9, 0.35),
        ("a table for four", 0, 0.1, 1.2),
        ("five five five oh", 7, None, 1.2),
        ("555-0142", 7, None, 0.5),
        ("yes", 7, None, 0.5),
        ("", 7, None, 0.5),
    ],
)
def test_the_silence_that_ends_a_turn(text: str, digits: int, opinion: float | None, seconds: float) -> None:
    assert silence_to_wait(SETTINGS, text, digits, opinion) == seconds


def test_a_longer_setting_is_not_shortened_by_words_and_a_shorter_one_not_lengthened_by_a_sure_model() -> None:
    assert silence_to_wait(replace(SETTINGS, normal=2.0), "and", 0, None) == 2.0
    assert silence_to_wait(replace(SETTINGS, normal=0.3), "yes", 0, 0.9) == 0.3


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("it's five five five", 3),
        ("double five, oh one", 4),
        ("555 0142", 7),
        ("one two, no wait", 0),
        ("triple seven", 3),
        ("four.", 1),
        ("", 0),
    ],
)
def test_spoken_digits_are_counted_at_the_end(text: str, count: int) -> None:
    assert spoken_digits(text) == count


def test_after_and_the_caller_has_time_to_go_on() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["a table for four and", "a high chair"]
        await call.speaks(1.0, "a table")
        await asyncio.sleep(0.9)
        assert call.of(CallerTurnEnded) == []
        await call.speaks(0.8)
        spoken = now()
        await asyncio.sleep(1.0)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["a table for four and a high chair"]
        assert call.when(CallerTurnEnded) == near(spoken + 0.5 + 0.1)

    hold(scenario)


def test_who_says_nothing_after_and_is_answered_all_the_same() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["a table and"]
        await call.speaks(1.0)
        spoken = now()
        await asyncio.sleep(2.0)
        assert call.when(CallerTurnEnded) == near(spoken + 1.2)

    hold(scenario)


def test_fewer_digits_than_asked_for_are_waited_for() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen(ListenSettings(digits=DigitSettings(max_digits=7), unfinished=1.5))
        call.ear.finals = ["five five five", "oh one four two"]
        await call.speaks(1.0)
        await asyncio.sleep(1.2)
        await call.speaks(1.0)
        await asyncio.sleep(1.0)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["five five five oh one four two"]

    hold(scenario)


def test_an_eager_final_is_the_last_partial() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen(ListenSettings(eager_final=True))
        call.ear.finals, call.ear.delay = ["a table for four"], 1.0
        await call.speaks(1.0, "a table", "a table for four")
        spoken = now()
        await asyncio.sleep(2.0)
        (turn,) = call.of(CallerTurnEnded)
        assert turn.text == "a table for four"
        assert call.when(CallerTurnEnded) == near(spoken + 0.5)

    hold(scenario)


class Model:
    """A turn model of one opinion, which takes a while to form."""

    def __init__(self, opinion: float | None, seconds: float = 0.04) -> None:
        self.opinion = opinion
        self.seconds = seconds
        self.heard: list[int] = []

    async def finished(self, pcm: bytes) -> float | None:
        self.heard.append(len(pcm))
        await asyncio.sleep(self.seconds)
        return self.opinion

    async def close(self) -> None: ...


@pytest.mark.parametrize(("opinion", "waited"), [(0.9, 0.35), (0.1, 1.2), (None, 0.5)])
def test_a_turn_model_shortens_or_lengthens_the_silence(opinion: float | None, waited: float) -> None:
    async def scenario(call: Conversation) -> None:
        model = Model(opinion)
        call.ears = CallerInput(call.ear, call.ears.voice_activity, turn_model=model)
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["a table for four"]
        await call.speaks(1.0)
        spoken = now()
        await asyncio.sleep(2.0)
        assert model.heard == [pytest.approx(2 * 8000 * (spoken + 0.2), abs=700)]
        assert call.when(CallerTurnEnded) == near(spoken + waited + 0.1)

    hold(scenario)


def test_a_model_that_is_slow_is_overtaken_by_the_silence() -> None:
    async def scenario(call: Conversation) -> None:
        call.ears = CallerInput(call.ear, call.ears.voice_activity, turn_model=Model(0.1, seconds=5.0))
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["a table for four"]
        await call.speaks(1.0)
        spoken = now()
        await asyncio.sleep(2.0)
        assert call.when(CallerTurnEnded) == near(spoken + 0.6)

    hold(scenario)
