from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from callagent.agents.action import DelayResponse, DigitSettings, LatencyControl, ListenSettings
from callagent.speech.protocol import SpeechChunk, VoiceSettings
from callagent.speech.scripted import ScriptedVoice, VoiceScript
from callagent.turns import (
    BargedIn,
    CallerTurnEnded,
    Ears,
    FloorState,
    FloorYielded,
    NoInput,
    PlayoutPaused,
    PlayoutResumed,
    SpeechFailed,
    TurnReopened,
    TurnSettings,
    TurnTaker,
    UtteranceFinished,
    UtteranceKind,
    UtteranceStarted,
)
from callagent.turns.speaker import MOST_WAITING
from tests.turns.fakes import SLOW, Conversation, LoudnessActivity, Wire, hold, now

QUESTION = "For how many people do you want it"


def near(seconds: float) -> object:
    """Within two frames: whatever happens on a frame's edge."""
    return pytest.approx(seconds, abs=0.045)


# The caller's turn


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
        assert turn.record.speech_started == near(spoken - 1.2)
        assert turn.record.speech_ended == near(spoken)
        assert turn.record.transcription_delay == near(0.6)
        assert turn.record.endpointing_delay == near(0.6)
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


# No input


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
        assert taker.record.barge_in_reaction == near(0.08)
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
        await asyncio.sleep(5)
        assert len(call.of(PlayoutResumed)) == 1
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


# Key presses


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
        call.ears = Ears(None, LoudnessActivity())
        taker = await call.begin()
        taker.say(QUESTION)
        taker.listen(ListenSettings(digits=DigitSettings(max_digits=1)))
        await call.speaks(3)
        assert call.of(PlayoutPaused) == []
        taker.on_digit("7")
        assert call.of(CallerTurnEnded)[0].digits == "7"

    hold(scenario)


# The agent's voice


def test_utterances_are_said_in_order_and_the_first_audio_is_noted() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.listen()
        call.ear.finals = ["hello"]
        await call.speaks(0.5)
        await asyncio.sleep(1.5)
        for text in ("One.", "Two.", "Three."):
            taker.say(text)
        taker.listen()
        await taker.played_out()
        assert [event.utterance.text for event in call.of(UtteranceFinished)] == ["One.", "Two.", "Three."]
        assert call.of(FloorYielded)[-1].heard_text == "One. Two. Three."
        record = call.of(CallerTurnEnded)[0].record
        assert record is taker.record
        assert record.first_audio == near(2.02)
        assert record.response_delay == near(1.52)
        assert record.playout_ended == near(now())

    hold(scenario)


def test_a_failing_voice_is_told_and_the_turn_goes_on() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(failing=("broken",)))
        taker = await call.begin()
        taker.say("broken")
        taker.say("whole")
        taker.listen()
        await asyncio.sleep(2)
        assert [event.utterance.text for event in call.of(SpeechFailed)] == ["broken"]
        assert taker.state is FloorState.LISTENING

    hold(scenario)


def test_a_hanging_voice_is_given_up() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(delay=60))
        taker = await call.begin()
        taker.say("late")
        taker.listen()
        await asyncio.sleep(6)
        assert "5 s" in call.of(SpeechFailed)[0].detail
        assert taker.state is FloorState.LISTENING

    hold(scenario)


def test_a_slow_voice_makes_gaps_that_are_counted() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(seconds_per_character=0.05, chunk_delay=1.0))
        taker = await call.begin()
        taker.say("one two three")
        taker.listen()
        await asyncio.sleep(5)
        assert taker.underruns == 2
        assert call.of(FloorYielded)

    hold(scenario)


def test_a_recording_is_played_as_it_is() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.say("the tune", kind=UtteranceKind.RECORDING, pcm=b"\1\2" * 400)
        taker.listen()
        await asyncio.sleep(1)
        played = b"".join(frame for frame in call.wire.heard if frame)
        assert played == (b"\1\2" * 400).ljust(960, b"\0")
        assert call.voice.spoken == []

    hold(scenario)


# Fillers

LATENCY = LatencyControl(1.0, 2.0, (DelayResponse("One moment", 1.0), DelayResponse("Nearly done", 1.0)))


def test_fillers_are_said_while_a_function_runs_and_stop_with_it() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        await asyncio.sleep(4.5)  # the first from 1 s to 2.1 s, the second from 4.1 s
        taker.function_ended(1)
        taker.say("Booked")
        taker.listen()
        await taker.played_out()
        starts = [(event.utterance.text, event.at) for event in call.of(UtteranceStarted)]
        assert starts == [("One moment", near(1.02)), ("Nearly done", near(4.16)), ("Booked", near(5.36))]
        assert call.of(FloorYielded)[0].heard_text == "Booked"
        assert [span.name for span in taker.record.fillers] == ["One moment", "Nearly done"]
        assert taker.record.fillers[0].ended == near(2.14)
        assert taker.record.first_audio == near(5.36)

    hold(scenario)


def test_a_filler_that_waits_behind_words_is_taken_back_when_the_answer_is_there() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.say("Let me have a look at that for you")
        taker.function_started(1, LATENCY)
        await asyncio.sleep(2)
        taker.function_ended(1)
        taker.say("Booked")
        taker.listen()
        await taker.played_out()
        assert [event.utterance.text for event in call.of(UtteranceFinished)] == [
            "Let me have a look at that for you",
            "Booked",
        ]

    hold(scenario)


def test_a_filler_taken_back_with_nothing_else_to_say_leaves_the_floor_to_the_caller() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(VoiceScript(delay=1.0))
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        await asyncio.sleep(1.5)
        taker.function_ended(1)
        taker.listen()
        await asyncio.sleep(2)
        assert taker.state is FloorState.LISTENING
        assert call.of(UtteranceStarted) == []

    hold(scenario)


def test_a_barge_in_stops_the_filler_and_the_rest_of_them() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        call.ear.finals = ["forget it"]
        await asyncio.sleep(1.5)
        await call.speaks(0.6, "forget it")
        await asyncio.sleep(9)
        assert [event.heard_text for event in call.of(BargedIn)] == [""]
        assert len(call.of(UtteranceStarted)) == 1
        assert [turn.text for turn in call.of(CallerTurnEnded)] == ["forget it"]

    hold(scenario)


def test_a_filler_that_waits_to_be_synthesised_is_taken_back() -> None:
    async def scenario(call: Conversation) -> None:
        call.voice = ScriptedVoice(SLOW)
        taker = await call.begin()
        for text in ("Let me look at that", "in all the books", "that we have here"):
            taker.say(text)
        taker.function_started(1, LATENCY)
        await asyncio.sleep(1.5)
        taker.function_ended(1)
        taker.listen()
        await taker.played_out()
        assert call.voice.spoken == ["Let me look at that", "in all the books", "that we have here"]
        assert taker.state is FloorState.LISTENING

    hold(scenario)


def test_a_function_without_delay_responses_is_waited_for_in_silence() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        taker.function_started(1, LATENCY)
        taker.function_ended(1)
        taker.function_started(2, None)
        taker.function_ended(1)
        await asyncio.sleep(30)
        assert call.events == []
        assert taker.state is FloorState.THINKING

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


def test_a_voice_that_breaks_costs_its_utterance() -> None:
    class Broken(ScriptedVoice):
        async def speak(self, text: str, settings: VoiceSettings) -> AsyncIterator[SpeechChunk]:
            if text == "broken":
                raise ZeroDivisionError
            async for chunk in super().speak(text, settings):
                yield chunk

    async def scenario(call: Conversation) -> None:
        call.voice = Broken()
        taker = await call.begin()
        for text in ("broken", "whole", "broken"):
            taker.say(text)
        taker.listen()
        await asyncio.sleep(3)
        assert [event.detail for event in call.of(SpeechFailed)] == ["ZeroDivisionError()"] * 2
        assert call.of(FloorYielded)[0].heard_text == "whole"

    hold(scenario)


def test_an_agent_that_never_stops_talking_is_told() -> None:
    async def scenario(call: Conversation) -> None:
        taker = await call.begin()
        for number in range(MOST_WAITING + 1):
            taker.say(f"{number}")
        assert [event.utterance.text for event in call.of(SpeechFailed)] == [str(MOST_WAITING)]

    hold(scenario)


def test_the_voice_can_be_changed_between_utterances() -> None:
    async def scenario(call: Conversation) -> None:
        other = ScriptedVoice()
        taker = await call.begin()
        taker.say("one")
        await taker.played_out()
        taker.set_voice(VoiceSettings(name="other"), other)
        taker.say("two")
        await taker.played_out()
        assert (call.voice.spoken, other.spoken) == (["one"], ["two"])

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


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_agent_is_silent_in_the_callers_turn_and_the_call_goes_on(seed: int) -> None:
    """A minute of speech, noise, keys, words, fillers and slow answers at random; then silence."""
    chance = random.Random(seed)

    async def agent(call: Conversation, taker: TurnTaker) -> None:
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

    async def caller(call: Conversation, taker: TurnTaker) -> None:
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
        assert {task.get_name() for task in asyncio.all_tasks()}.isdisjoint({"speaker"})
        await asyncio.sleep(20)
        assert call.events == []

    hold(scenario)
