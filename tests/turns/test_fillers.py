from __future__ import annotations

import pytest

from callagent.agents import DelayResponse, LatencyControl
from callagent.turns.fillers import DISTANCE, TRANSITIONS, TURN, Effect, FillerSchedule, Input, WaitState

FIRST, SECOND = DelayResponse("One moment.", 2.0), DelayResponse("[Ring]", 3.0)
PHRASE = DelayResponse("Let me think.", 1.0)


def waiting(
    *responses: DelayResponse, delay: float = 0.0, silence: float = 0.0, started: float = 0.0
) -> FillerSchedule:
    arbiter = FillerSchedule()
    arbiter.begin(1, LatencyControl(delay, silence, responses), started)
    return arbiter


def test_the_first_is_due_after_the_delay_and_the_next_a_silence_after_its_end() -> None:
    arbiter = waiting(FIRST, SECOND, delay=1.5, silence=2.0, started=10.0)
    assert arbiter.deadline == 11.5
    assert arbiter.due(11.4) is None
    assert arbiter.due(11.5) == FIRST
    assert (arbiter.deadline, arbiter.due(20.0)) == (None, None)
    arbiter.heard(started=11.6, now=12.4)
    assert arbiter.deadline == pytest.approx(14.4)


def test_speech_takes_its_true_length_and_a_sound_at_least_the_length_given() -> None:
    arbiter = waiting(SECOND, SECOND, FIRST, silence=1.0)
    assert arbiter.due(0.0) == SECOND
    arbiter.heard(started=0.0, now=0.5)
    assert arbiter.deadline == 4.0
    assert arbiter.due(4.0) == SECOND
    arbiter.heard(started=4.0, now=9.0)
    assert arbiter.deadline == 10.0


def test_each_is_said_once() -> None:
    arbiter = waiting(FIRST)
    assert arbiter.due(0.0) == FIRST
    arbiter.heard(started=0.0, now=1.0)
    assert arbiter.deadline is None
    assert arbiter.wants_sound


def test_two_waits_never_speak_at_once_and_keep_their_distance() -> None:
    arbiter = waiting(FIRST, silence=5.0)
    arbiter.begin(-1, LatencyControl(0.0, 5.0, (PHRASE,)), 0.0)
    assert arbiter.due(0.0) == FIRST
    assert (arbiter.deadline, arbiter.due(3.0)) == (None, None)
    arbiter.heard(0.0, 4.0)
    assert arbiter.deadline == 4.0 + DISTANCE
    assert arbiter.due(5.0) == PHRASE


def test_a_functions_response_goes_before_a_phrase_that_was_due_earlier() -> None:
    arbiter = FillerSchedule()
    arbiter.begin(-1, LatencyControl(1.0, 0.0, (PHRASE,)), 0.0)
    arbiter.begin(1, LatencyControl(2.0, 0.0, (FIRST,)), 0.0)
    # Words were being said until now: both are due.
    assert arbiter.due(3.0) == FIRST


@pytest.mark.parametrize("over", ["answer", "end"])
def test_none_starts_once_the_answer_is_ready_and_the_one_being_said_ends_its_words(over: str) -> None:
    arbiter = waiting(FIRST, SECOND)
    arbiter.due(0.0)
    effect = arbiter.answer() if over == "answer" else arbiter.end(1)
    assert (effect, arbiter.state) == (Effect.TAKE_BACK, WaitState.FINISHING)
    assert arbiter.deadline is None
    arbiter.heard(started=0.0, now=1.0)
    assert (arbiter.state, arbiter.deadline, arbiter.due(99.0)) == (WaitState.QUIET, None, None)


def test_the_response_of_one_function_is_not_taken_back_when_another_is_over() -> None:
    arbiter = waiting(FIRST)
    arbiter.begin(2, None, 0.0)
    arbiter.due(0.0)
    assert arbiter.end(2) is None
    assert arbiter.state is WaitState.SAYING


def test_a_wait_that_begins_while_an_old_response_ends_has_its_turn_after_it() -> None:
    arbiter = waiting(FIRST)
    arbiter.due(0.0)
    arbiter.end(1)
    arbiter.begin(2, LatencyControl(0.0, 0.0, (PHRASE,)), 0.5)
    assert arbiter.deadline is None
    arbiter.heard(0.0, 1.0)
    assert arbiter.deadline == 1.0 + DISTANCE


def test_the_turn_itself_is_a_wait_with_a_sound_and_no_words() -> None:
    arbiter = FillerSchedule()
    assert not arbiter.wants_sound
    arbiter.begin(TURN, None, 0.0)
    assert (arbiter.wants_sound, arbiter.deadline) == (True, None)
    arbiter.begin(1, LatencyControl(0.0, 1.0, (FIRST,)), 0.0)
    arbiter.due(0.0)
    assert not arbiter.wants_sound
    arbiter.heard(0.0, 1.0)
    assert arbiter.wants_sound
    arbiter.answer()
    assert not arbiter.wants_sound


def test_a_cut_forgets_all() -> None:
    arbiter = waiting(FIRST, SECOND)
    arbiter.due(0.0)
    arbiter.cut()
    arbiter.heard(0.0, 1.0)
    assert (arbiter.state, arbiter.deadline) == (WaitState.QUIET, None)


def test_an_end_of_nothing_and_an_empty_list_are_harmless() -> None:
    arbiter = FillerSchedule()
    assert (arbiter.end(7), arbiter.answer()) == (None, None)
    arbiter.heard(None, 1.0)
    arbiter.begin(1, LatencyControl(0.0, 1.0, ()), 0.0)
    assert arbiter.deadline is None


def test_every_state_is_reached_and_every_input_used() -> None:
    assert {after for after, _ in TRANSITIONS.values()} == set(WaitState)
    assert {given for _, given in TRANSITIONS} == set(Input)
    assert all((state, Input.CUT) in TRANSITIONS for state in WaitState if state is not WaitState.QUIET)
