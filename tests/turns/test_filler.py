from __future__ import annotations

import pytest

from callagent.agents.action import DelayResponse, LatencyControl
from callagent.turns.filler import FillerSchedule

FIRST, SECOND = DelayResponse("One moment.", 2.0), DelayResponse("[Ring]", 3.0)


def test_the_first_is_due_after_the_delay_and_the_next_a_silence_after_its_end() -> None:
    schedule = FillerSchedule(LatencyControl(1.5, 2.0, (FIRST, SECOND)), started=10.0)
    assert schedule.deadline == 11.5
    assert schedule.due(11.4) is None
    assert schedule.due(11.5) == FIRST
    assert (schedule.deadline, schedule.due(20.0)) == (None, None)
    schedule.ended(started=11.6, now=12.4)
    assert schedule.deadline == pytest.approx(14.4)


def test_speech_takes_its_true_length_and_a_sound_at_least_the_length_given() -> None:
    schedule = FillerSchedule(LatencyControl(0.0, 1.0, (SECOND, SECOND, FIRST)), started=0.0)
    assert schedule.due(0.0) == SECOND
    schedule.ended(started=0.0, now=0.5)
    assert schedule.deadline == 4.0
    assert schedule.due(4.0) == SECOND
    schedule.ended(started=4.0, now=9.0)
    assert schedule.deadline == 10.0


def test_each_is_said_once() -> None:
    schedule = FillerSchedule(LatencyControl(0.0, 0.0, (FIRST,)), started=0.0)
    assert schedule.due(0.0) == FIRST
    schedule.ended(started=0.0, now=1.0)
    assert schedule.deadline is None


def test_none_starts_after_the_stop() -> None:
    schedule = FillerSchedule(LatencyControl(0.0, 1.0, (FIRST, SECOND)), started=0.0)
    schedule.due(0.0)
    schedule.stop()
    schedule.ended(started=0.0, now=1.0)
    assert schedule.deadline is None


def test_an_end_of_nothing_and_an_empty_list_are_harmless() -> None:
    schedule = FillerSchedule(LatencyControl(0.0, 1.0, ()), started=0.0)
    schedule.ended(started=None, now=1.0)
    assert schedule.deadline is None
