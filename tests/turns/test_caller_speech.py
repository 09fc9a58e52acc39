from __future__ import annotations

import asyncio

from callagent.agents import DigitSettings, ListenSettings
from callagent.turns import BargedIn, CallerInput, CallerTurnEnded, FloorState, FloorYielded, NoInput, PlayoutPaused
from tests.turns.fakes import QUESTION, Conversation, LoudnessActivity, hold, near


def test_digits_end_with_the_time_between_two_keys() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen(ListenSettings(digits=DigitSettings(inter_digit_timeout=1.5, is_pii=True)))
        await asyncio.sleep(4)
        for digit in "55":
            taker.on_digit(digit)
            await asyncio.sleep(1)
        await asyncio.sleep(9)
        (turn,) = call.of(CallerTurnEnded)
        assert (turn.text, turn.digits, turn.is_pii) == ("", "55", True)
        assert call.when(CallerTurnEnded) == near(6.5)
        assert call.of(NoInput) == []

    hold(scenario)


def test_digits_collected_while_the_agent_speaks_stop_it() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION)
        taker.on_digit("4")
        taker.listen(ListenSettings(digits=DigitSettings(max_digits=2, while_speaking=True)))
        await asyncio.sleep(0.5)
        taker.on_digit("2")
        assert len(call.of(BargedIn)) == 1
        assert [turn.digits for turn in call.of(CallerTurnEnded)] == ["42"]
        await asyncio.sleep(0.1)
        assert set(call.wire.heard[-3:]) == {None}

    hold(scenario)


def test_digits_pressed_over_an_uninterruptible_utterance_count_when_it_is_over() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say("Enter your number", interruptible=False)
        taker.listen(ListenSettings(digits=DigitSettings(max_digits=2, while_speaking=True)))
        await asyncio.sleep(0.3)
        taker.on_digit("4")
        taker.on_digit("2")
        assert call.of(CallerTurnEnded) == []
        await asyncio.sleep(2)
        assert call.when(CallerTurnEnded) == call.when(FloorYielded)
        assert call.of(CallerTurnEnded)[0].digits == "42"

    hold(scenario)


def test_digits_pressed_while_the_agent_speaks_are_otherwise_ignored() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION)
        taker.on_digit("1")
        taker.listen(ListenSettings(digits=DigitSettings(max_digits=1)))
        await asyncio.sleep(0.5)
        taker.on_digit("2")
        await asyncio.sleep(3)
        taker.on_digit("3")
        assert [turn.digits for turn in call.of(CallerTurnEnded)] == ["3"]

    hold(scenario)


def test_keys_that_nobody_asked_for_change_nothing() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        taker.on_digit("1")
        await asyncio.sleep(3)
        assert call.of(CallerTurnEnded) == []
        assert taker.state is FloorState.LISTENING

    hold(scenario)


def test_without_speech_the_first_key_is_waited_for_as_long_as_the_agent_says() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen(ListenSettings(speech=False, digits=DigitSettings(first_digit_timeout=3)))
        await call.speaks(1.0)
        await asyncio.sleep(5)
        assert call.when(NoInput) == near(3)

    hold(scenario)


def test_without_a_recogniser_keys_still_count_and_speech_does_not() -> None:
    async def scenario(call: Conversation) -> None:
        call.ears = CallerInput(None, LoudnessActivity())
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen(ListenSettings(digits=DigitSettings(max_digits=1)))
        await call.speaks(3)
        assert call.of(PlayoutPaused) == []
        taker.on_digit("7")
        assert call.of(CallerTurnEnded)[0].digits == "7"

    hold(scenario)
