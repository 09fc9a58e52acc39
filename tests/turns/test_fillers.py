from __future__ import annotations

import pytest

from callagent.agents import DelayResponse, LatencyControl
from callagent.turns.fillers import (
    MIN_DISTANCE,
    TRANSITIONS,
    TURN_WAIT,
    FillerEffect,
    FillerInput,
    FillerSchedule,
    WaitState,
)

FIRST, SECOND = DelayResponse("One moment.", 2.0), DelayResponse("[Ring]", 3.0)
PHRASE = DelayResponse("Let me think.", 1.0)


def waiting(
    *responses: DelayResponse, delay: float = 0.0, silence: float = 0.0, started: float = 0.0
) -> FillerSchedule:
    fillers = FillerSchedule()
    fillers.begin_wait(1, LatencyControl(delay, silence, responses), started)
    return fillers


def test_the_first_is_due_after_the_delay_and_the_next_a_silence_after_its_end() -> None:
    fillers = waiting(FIRST, SECOND, delay=1.5, silence=2.0, started=10.0)
    assert fillers.deadline == 11.5
    assert fillers.take_due(11.4) is None
    assert fillers.take_due(11.5) == FIRST
    assert (fillers.deadline, fillers.take_due(20.0)) == (None, None)
    fillers.filler_ended(started=11.6, now=12.4)
    assert fillers.deadline == pytest.approx(14.4)


def test_speech_takes_its_true_length_and_a_sound_at_least_the_length_given() -> None:
    fillers = waiting(SECOND, SECOND, FIRST, silence=1.0)
    assert fillers.take_due(0.0) == SECOND
    fillers.filler_ended(started=0.0, now=0.5)
    assert fillers.deadline == 4.0
    assert fillers.take_due(4.0) == SECOND
    fillers.filler_ended(started=4.0, now=9.0)
    assert fillers.deadline == 10.0


def test_each_is_said_once() -> None:
    fillers = waiting(FIRST)
    assert fillers.take_due(0.0) == FIRST
    fillers.filler_ended(started=0.0, now=1.0)
    assert fillers.deadline is None
    assert fillers.wants_thinking_sound


def test_two_waits_never_speak_at_once_and_keep_their_distance() -> None:
    fillers = waiting(FIRST, silence=5.0)
    fillers.begin_wait(-1, LatencyControl(0.0, 5.0, (PHRASE,)), 0.0)
    assert fillers.take_due(0.0) == FIRST
    assert (fillers.deadline, fillers.take_due(3.0)) == (None, None)
    fillers.filler_ended(0.0, 4.0)
    assert fillers.deadline == 4.0 + MIN_DISTANCE
    assert fillers.take_due(5.0) == PHRASE


def test_a_functions_response_goes_before_a_phrase_that_was_due_earlier() -> None:
    fillers = FillerSchedule()
    fillers.begin_wait(-1, LatencyControl(1.0, 0.0, (PHRASE,)), 0.0)
    fillers.begin_wait(1, LatencyControl(2.0, 0.0, (FIRST,)), 0.0)
    # Words were being said until now: both are due.
    assert fillers.take_due(3.0) == FIRST


@pytest.mark.parametrize("over", ["answer", "end"])
def test_none_starts_once_the_answer_is_ready_and_the_one_being_said_ends_its_words(over: str) -> None:
    fillers = waiting(FIRST, SECOND)
    fillers.take_due(0.0)
    effect = fillers.end_answer() if over == "answer" else fillers.end_wait(1)
    assert (effect, fillers.state) == (FillerEffect.WITHDRAW, WaitState.FINISHING)
    assert fillers.deadline is None
    fillers.filler_ended(started=0.0, now=1.0)
    assert (fillers.state, fillers.deadline, fillers.take_due(99.0)) == (WaitState.QUIET, None, None)


def test_the_response_of_one_function_is_not_taken_back_when_another_is_over() -> None:
    fillers = waiting(FIRST)
    fillers.begin_wait(2, None, 0.0)
    fillers.take_due(0.0)
    assert fillers.end_wait(2) is None
    assert fillers.state is WaitState.SAYING


def test_a_wait_that_begins_while_an_old_response_ends_has_its_turn_after_it() -> None:
    fillers = waiting(FIRST)
    fillers.take_due(0.0)
    fillers.end_wait(1)
    fillers.begin_wait(2, LatencyControl(0.0, 0.0, (PHRASE,)), 0.5)
    assert fillers.deadline is None
    fillers.filler_ended(0.0, 1.0)
    assert fillers.deadline == 1.0 + MIN_DISTANCE


def test_the_turn_itself_is_a_wait_with_a_sound_and_no_words() -> None:
    fillers = FillerSchedule()
    assert not fillers.wants_thinking_sound
    fillers.begin_wait(TURN_WAIT, None, 0.0)
    assert (fillers.wants_thinking_sound, fillers.deadline) == (True, None)
    fillers.begin_wait(1, LatencyControl(0.0, 1.0, (FIRST,)), 0.0)
    fillers.take_due(0.0)
    assert not fillers.wants_thinking_sound
    fillers.filler_ended(0.0, 1.0)
    assert fillers.wants_thinking_sound
    fillers.end_answer()
    assert not fillers.wants_thinking_sound


def test_a_cut_forgets_all() -> None:
    fillers = waiting(FIRST, SECOND)
    fillers.take_due(0.0)
    fillers.discard()
    fillers.filler_ended(0.0, 1.0)
    assert (fillers.state, fillers.deadline) == (WaitState.QUIET, None)


def test_an_end_of_nothing_and_an_empty_list_are_harmless() -> None:
    fillers = FillerSchedule()
    assert (fillers.end_wait(7), fillers.end_answer()) == (None, None)
    fillers.filler_ended(None, 1.0)
    fillers.begin_wait(1, LatencyControl(0.0, 1.0, ()), 0.0)
    assert fillers.deadline is None


def test_every_state_is_reached_and_every_input_used() -> None:
    assert {after for after, _ in TRANSITIONS.values()} == set(WaitState)
    assert {given for _, given in TRANSITIONS} == set(FillerInput)
    assert all((state, FillerInput.DISCARDED) in TRANSITIONS for state in WaitState if state is not WaitState.QUIET)
