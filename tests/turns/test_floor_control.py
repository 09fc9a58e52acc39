from __future__ import annotations

import asyncio

import pytest

from callagent.agents import DigitSettings, ListenSettings
from callagent.speech.scripted import ScriptedVoice
from callagent.turns import (
    BargedIn,
    CallerTurnEnded,
    FloorState,
    FloorYielded,
    NoInput,
    PlayoutPaused,
    PlayoutResumed,
    TurnReopened,
    TurnSettings,
    UtteranceFinished,
    UtteranceStarted,
)
from tests.turns.fakes import QUESTION, SLOW, Conversation, Wire, hold, near, now

# Barge-in


def test_the_playout_is_silent_within_one_frame_of_sure_speech_and_the_words_take_the_floor() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        call.ear.finals = ["a table for four"]
        await asyncio.sleep(1.0)
        await call.speaks(1.5, "a table")
        paused = call.when(PlayoutPaused)
        assert paused == near(1.08)
        assert set(call.wire.heard_between(paused + 0.021, 2.5)) == {None}
        (barge,) = call.of(BargedIn)
        assert barge.heard_text == "For how"  # 0.4 s, 0.4 s; "many" is half done
        assert barge.at == paused
        assert call.when(BargedIn) == near(1.3)
        assert taker.timings.barge_in_reaction == near(0.08)
        await asyncio.sleep(1.0)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["a table for four"]
        assert call.of(UtteranceFinished) == []

    hold(scenario)


def test_after_a_cough_the_agent_goes_on_with_the_interrupted_word() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        call.ear.deaf = True
        await asyncio.sleep(1.0)  # within "many", 0.8 s to 1.3 s
        await call.speaks(0.3)
        spoken = now()
        await asyncio.sleep(6)
        assert call.when(PlayoutResumed) == near(spoken + 2.0)
        whole = call.voice.seconds(QUESTION)
        played = call.when(PlayoutPaused) - call.of(UtteranceStarted)[0].at
        assert call.when(UtteranceFinished) == near(spoken + 2.0 + whole - 0.8)
        assert 0.8 < played < 1.3
        assert call.of(BargedIn) == []
        assert call.of(FloorYielded)[0].heard_text == QUESTION

    hold(scenario)


def test_the_agent_goes_on_at_once_when_the_recogniser_heard_no_words() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        await asyncio.sleep(0.5)
        await call.speaks(0.3)
        spoken = now()
        await asyncio.sleep(1)
        assert call.when(PlayoutResumed) == near(spoken + 0.2 + 0.1)

    hold(scenario)


def test_mm_hm_does_not_take_the_floor_and_is_no_part_of_the_next_turn() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        call.ear.finals = ["Mm-hm.", "four"]
        await asyncio.sleep(0.5)
        await call.speaks(0.4, "mm-hm")
        spoken = now()
        await asyncio.sleep(5)
        assert len(call.of(PlayoutResumed)) == 1
        assert call.when(PlayoutResumed) == near(spoken + 0.2 + 0.1)
        assert call.of(BargedIn) == []
        await call.speaks(0.5)
        await asyncio.sleep(1)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["four"]

    hold(scenario)


def test_okay_over_the_agents_last_word_is_the_answer() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Shall I book it then")  # 2.1 s
        taker.listen()
        call.ear.finals = ["okay"]
        await asyncio.sleep(1.6)
        await call.speaks(0.4)
        await asyncio.sleep(1)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["okay"]

    hold(scenario)


def test_noise_without_end_does_not_silence_the_agent() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        await asyncio.sleep(0.5)
        call.wire.speaking = True
        await asyncio.sleep(10)
        assert call.when(PlayoutResumed) == near(0.58 + 4.0)
        assert len(call.of(PlayoutPaused)) == 1
        assert len(call.of(UtteranceFinished)) == 1

    hold(scenario)


def test_words_over_an_uninterruptible_utterance_become_the_next_turn() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("This call is recorded for us", interruptible=False)  # 2.9 s
        taker.listen()
        call.ear.finals = ["a table for four"]
        await asyncio.sleep(0.5)
        await call.speaks(0.8, "a table")
        await asyncio.sleep(3)
        assert call.of(PlayoutPaused) == []
        assert call.when(UtteranceFinished) == near(2.92)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["a table for four"]
        assert call.when(CallerTurnEnded) == near(2.92)

    hold(scenario)


def test_speech_that_outlasts_an_uninterruptible_utterance_is_heard_to_its_end() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say("Hello", interruptible=False)
        taker.listen()
        call.ear.finals = ["I want a table"]
        await call.speaks(2.0, "I want")
        assert taker.state is FloorState.HEARING
        await asyncio.sleep(1)
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["I want a table"]

    hold(scenario)


def test_an_interruptible_utterance_after_an_uninterruptible_one_yields_to_speech_going_on() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Recorded.", interruptible=False)  # 1 s
        taker.say("How can I help you today?")
        taker.listen()
        await call.speaks(2.0)
        assert call.when(PlayoutPaused) == near(1.04)

    hold(scenario)


@pytest.mark.parametrize(
    ("settings", "listen"),
    [
        (TurnSettings(), ListenSettings()),  # the greeting
        (TurnSettings(allow_on_first_turn=True, barge_in=False), ListenSettings()),
        (TurnSettings(allow_on_first_turn=True), ListenSettings(barge_in=False)),
        (TurnSettings(allow_on_first_turn=True), ListenSettings(speech=False)),
    ],
)
def test_no_barge_in_where_it_is_not_allowed(settings: TurnSettings, listen: ListenSettings) -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin(settings)
        taker.say(QUESTION)
        taker.listen(listen)
        await call.speaks(1.0, "a table", "a table for")
        assert call.of(PlayoutPaused) == []
        assert call.of(BargedIn) == []

    hold(scenario)


def test_what_a_cut_reply_still_says_is_dropped() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION)
        await asyncio.sleep(0.5)
        await call.speaks(0.5, "no")
        assert call.of(BargedIn)
        assert taker.say("And at what time?") is None
        taker.listen(ListenSettings(no_input_timeout=0.1))
        await asyncio.sleep(0.3)
        assert call.voice.spoken == [QUESTION]

    hold(scenario)


def test_on_a_wire_with_a_buffer_the_unheard_part_is_cleared_and_said_again() -> None:
    async def scenario(call: Conversation) -> None:
        call.wire = Wire(buffered=25)
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        await asyncio.sleep(1.5)
        await call.speaks(1.0, "no")
        assert call.wire.cleared == [0.5]
        # Taken until 1.58 s, heard 0.5 s less.
        assert call.of(BargedIn)[0].heard_text == "For how"

    hold(scenario)


def test_on_a_wire_with_a_buffer_what_may_not_be_interrupted_is_heard_to_its_end() -> None:
    async def scenario(call: Conversation) -> None:
        call.wire = Wire(buffered=25)
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Recorded.", interruptible=False)  # taken until 1 s, heard until 1.5 s
        taker.listen()
        await asyncio.sleep(1.1)
        await call.speaks(0.2)
        await asyncio.sleep(1.0)
        assert call.wire.cleared == []
        assert call.of(PlayoutPaused) == []
        assert call.of(FloorYielded)[0].heard_text == "Recorded."

    hold(scenario)


def test_on_a_wire_with_a_buffer_speech_that_outlasts_such_an_utterance_is_let_in_at_its_end() -> None:
    async def scenario(call: Conversation) -> None:
        call.wire = Wire(buffered=25)
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Recorded.", interruptible=False)
        taker.say("How can I help you today?")
        taker.listen()
        call.ear.finals = ["I have a question"]
        await asyncio.sleep(0.8)
        await call.speaks(2.0)
        await asyncio.sleep(0.5)
        assert call.when(PlayoutPaused) == near(1.5)
        assert call.of(BargedIn)[0].heard_text == "Recorded."

    hold(scenario)


def test_on_a_wire_with_a_buffer_the_end_is_told_when_it_was_heard() -> None:
    async def scenario(call: Conversation) -> None:
        call.wire = Wire(buffered=25)
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Hello you")
        taker.listen()
        await asyncio.sleep(3)
        assert call.when(FloorYielded) == near(1.52)

    hold(scenario)


# Thinking


def test_the_caller_going_on_reopens_the_turn_before_the_reply_is_heard() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["I want a table", "for four"]
        await call.speaks(1.0)
        await asyncio.sleep(0.8)
        await call.speaks(0.8, "for")
        (reopened,) = call.of(TurnReopened)
        assert reopened.text == "I want a table"
        assert taker.state is FloorState.HEARING
        await asyncio.sleep(1)
        first, second = call.of(CallerTurnEnded)
        assert (first.text, first.added) == ("I want a table", "I want a table")
        assert (second.text, second.added) == ("I want a table for four", "for four")
        assert call.of(BargedIn) == []

    hold(scenario)


def test_a_reopened_turn_is_taken_as_it_was_before() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen(ListenSettings(endpointing=0.8, expected="5 5 5"))
        call.ear.finals = ["one two three", "four five six"]
        await call.speaks(1.0)
        await asyncio.sleep(1.2)
        await call.speaks(1.0, "four")
        spoken = now()
        await asyncio.sleep(1.2)
        assert [settings.expected for _, settings in call.ear.begun] == ["5 5 5", "5 5 5"]
        assert call.when(CallerTurnEnded, 1) == near(spoken + 0.9)
        taker.say(QUESTION)
        await asyncio.sleep(0.5)
        await call.speaks(0.5)
        assert call.ear.begun[-1][1].expected == ""

    hold(scenario)


def test_a_reply_that_is_ready_waits_until_the_noise_turned_out_to_be_none() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["I want a table"]
        await call.speaks(1.0)
        await asyncio.sleep(0.8)
        call.wire.speaking = True
        await asyncio.sleep(0.2)
        taker.say("For how many?")
        taker.listen()
        await asyncio.sleep(0.2)
        assert call.of(UtteranceStarted) == []
        call.wire.speaking = False
        await asyncio.sleep(0.5)
        assert call.when(UtteranceStarted) == near(2.2 + 0.3 + 0.02)
        assert call.of(TurnReopened) == []

    hold(scenario)


def test_key_presses_are_not_lost_when_the_caller_speaks_before_the_reply() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen(ListenSettings(digits=DigitSettings(max_digits=2)))
        taker.on_digit("1")
        taker.on_digit("2")
        await call.speaks(0.8, "hello there")
        assert call.of(TurnReopened) == []
        assert call.of(BargedIn)[0].heard_text == ""

    hold(scenario)


# What could leave a call stuck


def test_noise_over_an_agent_that_then_says_nothing_does_not_silence_its_next_words() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        call.wire.speaking = True
        await asyncio.sleep(0.5)
        assert taker.state is FloorState.CUTTING_IN
        taker.listen()
        assert taker.state is FloorState.HEARING
        call.wire.speaking = False
        call.ear.finals = ["a table"]
        await asyncio.sleep(1.5)
        assert call.of(CallerTurnEnded)
        taker.say("For how many?")
        await asyncio.sleep(0.5)
        assert call.of(UtteranceStarted)

    hold(scenario)


def test_words_that_the_final_transcript_takes_back_are_answered_as_silence_soon() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen()
        await asyncio.sleep(0.5)
        await call.speaks(0.5, "you")
        spoken = now()
        await asyncio.sleep(5)
        assert call.of(BargedIn)
        assert call.of(CallerTurnEnded) == []
        assert call.when(NoInput) == near(spoken + 0.5 + 0.1 + 1.0)

    hold(scenario)


def test_a_reopened_turn_to_which_nothing_is_added_after_all_is_handed_over_again() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["a table for four"]
        await call.speaks(1.0)
        await asyncio.sleep(1)
        await call.speaks(0.5, "you")
        await asyncio.sleep(2)
        assert len(call.of(TurnReopened)) == 1
        assert [(turn.text, turn.added) for turn in call.of(CallerTurnEnded)][1:] == [("a table for four", "")]

    hold(scenario)


def test_a_rewind_into_the_utterance_before_tells_its_end_once() -> None:
    async def scenario(call: Conversation) -> None:
        call.wire = Wire(buffered=25)
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Hello you")
        taker.say("What can I do for you?")
        taker.listen()
        await asyncio.sleep(1.1)  # "Hello you" is taken, its last half second not heard
        await call.speaks(0.3)
        await asyncio.sleep(6)
        assert call.of(PlayoutResumed)
        assert [event.utterance.number for event in call.of(UtteranceStarted)] == [1, 2]
        assert [event.utterance.number for event in call.of(UtteranceFinished)] == [1, 2]
        assert call.of(FloorYielded)[0].heard_text == "Hello you What can I do for you?"

    hold(scenario)
