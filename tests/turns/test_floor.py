from __future__ import annotations

import itertools

import pytest

from callagent.turns.floor import (
    AGENT_HAS_THE_FLOOR,
    TRANSITIONS,
    Floor,
    FloorEffect,
    FloorInput,
    FloorState,
    FloorTimes,
)

TIMES = FloorTimes(
    no_input=7, endpointing=0.5, final_wait=2, resume_after=3, noise_limit=4, longest_turn=60, inter_digit=1.5
)
S, G, E = FloorState, FloorInput, FloorEffect
WAYS: dict[FloorState, tuple[FloorInput, ...]] = {
    S.THINKING: (),
    S.SPEAKING: (G.AUDIO,),
    S.CUTTING_IN: (G.AUDIO, G.BARGE),
    S.HALTED: (G.AUDIO, G.BARGE, G.SILENCE),
    S.LISTENING: (G.YIELD,),
    S.HEARING: (G.YIELD, G.SPEECH),
    S.PAUSED: (G.YIELD, G.SPEECH, G.SILENCE),
    S.ENDING: (G.YIELD, G.SPEECH, G.SILENCE, G.DEADLINE),
    S.KEYING: (G.YIELD, G.KEY),
}
"""How each state is reached from the start of a call."""


def floor_in(state: FloorState, now: float = 0.0) -> Floor:
    floor = Floor(TIMES)
    for given in WAYS[state]:
        floor.apply(given, now)
    assert floor.state is state
    return floor


@pytest.mark.parametrize(("key", "row"), TRANSITIONS.items(), ids=lambda value: str(value))
def test_every_row_of_the_table(
    key: tuple[FloorState, FloorInput], row: tuple[FloorState, tuple[FloorEffect, ...]]
) -> None:
    floor = floor_in(key[0])
    assert floor.apply(key[1], 1.0) == row[1]
    assert floor.state is row[0]


@pytest.mark.parametrize(
    ("state", "given"), [pair for pair in itertools.product(S, G) if pair not in TRANSITIONS], ids=str
)
def test_every_other_input_changes_nothing(state: FloorState, given: FloorInput) -> None:
    floor = floor_in(state)
    deadline = floor.deadline
    assert floor.apply(given, 1.0) == ()
    assert (floor.state, floor.deadline) == (state, deadline)


def test_every_state_is_reached_and_left() -> None:
    assert {row[0] for row in TRANSITIONS.values()} == set(S) == {state for state, _ in TRANSITIONS}
    assert set(WAYS) == set(S)


@pytest.mark.parametrize(
    ("state", "wait"),
    [
        (S.LISTENING, 7),
        (S.HEARING, 60),
        (S.PAUSED, 0.5),
        (S.ENDING, 2),
        (S.KEYING, 1.5),
        (S.CUTTING_IN, 4),
        (S.HALTED, 3),
        (S.THINKING, None),
        (S.SPEAKING, None),
    ],
)
def test_each_state_has_its_deadline_and_leaves_by_it(state: FloorState, wait: float | None) -> None:
    floor = floor_in(state, now=100.0)
    assert floor.deadline == (None if wait is None else 100.0 + wait)
    assert ((state, G.DEADLINE) in TRANSITIONS) == (wait is not None)


def test_the_agent_has_the_floor_in_exactly_the_states_that_the_caller_may_take_it_in() -> None:
    taking = {state for (state, _), row in TRANSITIONS.items() if E.TAKE_FLOOR in row[1]}
    assert taking == AGENT_HAS_THE_FLOOR


def test_endpointing_counts_from_the_true_end_of_speech() -> None:
    floor = floor_in(S.HEARING, now=10.0)
    floor.apply(G.SILENCE, 12.2, since=12.0)
    assert floor.deadline == 12.5


def test_the_longest_turn_counts_from_its_first_speech_through_all_pauses() -> None:
    floor = floor_in(S.HEARING, now=10.0)
    floor.apply(G.SILENCE, 12.0)
    floor.apply(G.SPEECH, 12.3)
    assert floor.deadline == 70.0


def test_a_noise_leaves_the_no_input_time_that_was_left() -> None:
    floor = floor_in(S.LISTENING, now=0.0)
    for given, now in ((G.SPEECH, 3.0), (G.SILENCE, 4.0), (G.DEADLINE, 4.5), (G.EMPTY, 5.0)):
        floor.apply(given, now)
    assert (floor.state, floor.deadline) == (S.LISTENING, 9.0)


def test_a_noise_at_the_last_moment_leaves_a_second() -> None:
    floor = floor_in(S.LISTENING, now=0.0)
    for given, now in ((G.SPEECH, 6.9), (G.SILENCE, 8.0), (G.DEADLINE, 8.5), (G.EMPTY, 9.0)):
        floor.apply(given, now)
    assert floor.deadline == 10.0


def test_words_that_took_the_floor_and_prove_to_be_none_leave_a_second() -> None:
    floor = floor_in(S.CUTTING_IN, now=0.0)
    for given, now in ((G.WORDS, 1.0), (G.SILENCE, 2.0), (G.DEADLINE, 2.5), (G.EMPTY, 3.0)):
        floor.apply(given, now)
    assert (floor.state, floor.deadline) == (S.LISTENING, 4.0)


def test_each_key_gives_time_for_the_next() -> None:
    floor = floor_in(S.KEYING, now=0.0)
    floor.apply(G.KEY, 1.0)
    assert floor.deadline == 2.5


def test_giving_up_on_the_final_transcript_happens_once() -> None:
    floor = floor_in(S.ENDING)
    assert floor.apply(G.DEADLINE, 2.0) == (E.GIVE_UP,)
    assert floor.deadline is None
