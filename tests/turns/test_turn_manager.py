from __future__ import annotations

import asyncio
import random

import pytest

from callagent.agents import DigitSettings, ListenSettings
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.turns import CallerTurnEnded, FloorState, FloorYielded, NoInput, TurnManager
from tests.turns.fakes import LATENCY, SLOW, Conversation, Wire, hold, near, now


def test_the_caller_speaks_and_the_turn_ends_half_a_second_later() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = [("a table for four", "a cable for four")]
        await asyncio.sleep(1)
        await call.speaks(1.2, "a table", "a table for")
        spoken = now()
        await asyncio.sleep(1)
        (turn,) = call.of(CallerTurnEnded)
        assert (turn.text, turn.alternatives, turn.digits) == ("a table for four", ("a cable for four",), "")
        assert call.when(CallerTurnEnded) == near(spoken + 0.5 + 0.1)
        assert turn.timings.speech_started == near(spoken - 1.2)
        assert turn.timings.speech_ended == near(spoken)
        assert turn.timings.transcription_delay == near(0.6)
        assert turn.timings.endpointing_delay == near(0.6)
        assert taker.state is FloorState.THINKING

    hold(scenario)


def test_a_pause_shorter_than_the_endpointing_does_not_end_the_turn() -> None:
    async def scenario(call: Conversation) -> None:
        (await call.begin()).listen(ListenSettings(endpointing=0.9))
        call.ear.finals = ["my number is five five five"]
        await call.speaks(1.0)
        await asyncio.sleep(0.8)
        await call.speaks(1.0)
        await asyncio.sleep(1.2)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["my number is five five five"]
        assert len(call.ear.begun) == 1

    hold(scenario)


def test_speech_while_the_final_transcript_is_awaited_goes_on_with_the_turn() -> None:
    async def scenario(call: Conversation) -> None:
        (await call.begin()).listen()
        call.ear.finals, call.ear.delay = ["a table", "for four"], 0.4
        await call.speaks(1.0)
        await asyncio.sleep(0.55)
        await call.speaks(1.0)
        await asyncio.sleep(2)
        (turn,) = call.of(CallerTurnEnded)
        assert turn.text == "a table for four"
        assert turn.alternatives == ()

    hold(scenario)


def test_without_a_final_transcript_the_last_partial_one_stands_after_two_seconds() -> None:
    async def scenario(call: Conversation) -> None:
        (await call.begin()).listen()
        call.ear.deaf = True
        await call.speaks(1.0, "for four")
        spoken = now()
        await asyncio.sleep(4)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["for four"]
        assert call.when(CallerTurnEnded) == near(spoken + 2.5)

    hold(scenario)


def test_the_recogniser_is_told_what_is_expected() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.set_language("en-GB")
        taker.listen(ListenSettings(expected="5 5 5", keywords=("Hibari",)))
        await call.speaks(0.5)
        settings = call.ear.begun[0][1]
        assert (settings.language, settings.expected, settings.keywords) == ("en-GB", "5 5 5", ("Hibari",))

    hold(scenario)


def test_okay_is_an_answer_where_the_caller_has_the_floor() -> None:
    async def scenario(call: Conversation) -> None:
        (await call.begin()).listen()
        call.ear.finals = ["okay"]
        await call.speaks(0.4)
        await asyncio.sleep(1)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["okay"]

    hold(scenario)


def test_no_input_after_seven_seconds_from_the_end_of_the_agents_words() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Hello you")  # 1.0 s
        taker.listen()
        await asyncio.sleep(20)
        assert call.when(FloorYielded) == near(1.02)
        assert call.of(FloorYielded)[0].heard_text == "Hello you"
        assert call.when(NoInput) == near(8.02)
        assert taker.state is FloorState.THINKING
        assert len(call.of(NoInput)) == 1

    hold(scenario)


def test_the_start_functions_tenth_of_a_second_is_honoured() -> None:
    async def scenario(call: Conversation) -> None:
        (await call.begin()).listen(ListenSettings(no_input_timeout=0.1))
        await asyncio.sleep(1)
        assert call.when(NoInput) == near(0.1)

    hold(scenario)


def test_a_noise_only_holds_the_no_input_time_up() -> None:
    async def scenario(call: Conversation) -> None:
        (await call.begin()).listen()
        await asyncio.sleep(3)
        await call.speaks(0.5)
        await asyncio.sleep(9)
        # 3 s + 0.5 s noise + 0.5 s endpointing + 0.1 s empty transcript, then the 4 s that were left.
        assert call.when(NoInput) == near(8.1)
        assert call.of(CallerTurnEnded) == []

    hold(scenario)


def test_a_deaf_recogniser_leads_to_no_input_in_the_end() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen(ListenSettings(no_input_timeout=5))
        call.ear.deaf = True
        await call.speaks(1.0)
        await asyncio.sleep(10)
        assert call.of(CallerTurnEnded) == []
        assert len(call.of(NoInput)) == 1

    hold(scenario)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_agent_is_silent_in_the_callers_turn_and_the_call_goes_on(seed: int) -> None:
    """A minute of speech, noise, keys, words, fillers and slow answers at random; then silence."""
    chance = random.Random(seed)

    async def agent(call: Conversation, taker: TurnManager) -> None:
        answered = -1
        while True:
            turns = len(call.of(CallerTurnEnded) + call.of(NoInput))
            if taker.agent_has_the_floor and turns != answered:
                answered = turns
                taker.function_started(turns, LATENCY if chance.random() < 0.3 else None)
                await asyncio.sleep(chance.choice([0, 0.2, 1.5, 3]))
                taker.function_ended(turns)
                for _ in range(chance.randrange(3)):
                    taker.say("some words to say", interruptible=chance.random() < 0.7)
                    await asyncio.sleep(chance.choice([0, 0.3]))
                digits = DigitSettings(max_digits=2, while_speaking=chance.random() < 0.5)
                taker.listen(ListenSettings(digits=digits if chance.random() < 0.4 else None))
            await asyncio.sleep(0.02)

    async def caller(call: Conversation, taker: TurnManager) -> None:
        while now() < 60:
            await asyncio.sleep(chance.expovariate(1))
            call.ear.finals = [chance.choice(["", "okay", "four people"])]
            call.ear.deaf = chance.random() < 0.1
            await call.speaks(chance.choice([0.1, 0.4, 1.0]))
            if chance.random() < 0.3 and call.ear.begun:
                call.ear.partial(chance.choice(["", "okay", "four"]))
            if chance.random() < 0.3:
                taker.on_digit(chance.choice("12#"))

    async def scenario(call: Conversation) -> None:
        call.wire = Wire(buffered=chance.choice([0, 0, 10]))
        taker = await call.begin()
        talking = asyncio.create_task(agent(call, taker))
        silent_for = 0
        calling = asyncio.create_task(caller(call, taker))
        while not calling.done():
            await asyncio.sleep(0.02)
            silent_for = 0 if taker.agent_has_the_floor else silent_for + 1
            # The fade of a cut utterance may follow it.
            assert silent_for < 4 or call.wire.heard[-1] is None
        calling.result()
        call.ear.deaf = False
        before = len(call.of(NoInput))
        await asyncio.sleep(60)
        talking.cancel()
        assert len(call.of(NoInput)) >= before + 3

    hold(scenario)


def test_closing_ends_everything_that_was_started() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(delay=3))
        taker = await call.begin()
        taker.say("late")
        taker.function_started(1, LATENCY)
        await taker.__aexit__(None, None, None)
        assert call.ear.closed
        assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"synthesizer"})
        await asyncio.sleep(20)
        assert call.events == []

    hold(scenario)
