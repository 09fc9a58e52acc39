"""Timers of a core: order, cancelling, and that cancelled ones are not kept."""

from __future__ import annotations

from callagent.sip.transaction.timers import Timers


def test_what_is_due_runs_in_order_and_new_timers_of_the_round_too() -> None:
    timers = Timers()
    seen: list[str] = []
    timers.at(2.0, lambda now: seen.append("second"))

    def first(now: float) -> None:
        seen.append("first")
        timers.at(now, lambda at: seen.append("again"))

    timers.at(1.0, first)
    timers.at(9.0, lambda now: seen.append("late"))
    timers.handle(3.0)
    assert seen == ["first", "second", "again"] or seen == ["first", "again", "second"]
    assert timers.next() == 9.0


def test_a_cancelled_timer_neither_runs_nor_is_waited_for() -> None:
    timers = Timers()
    timer = timers.at(1.0, lambda now: None)
    timer.cancel()
    timer.cancel()
    assert timers.next() is None
    assert len(timers) == 0


def test_cancelled_timers_are_swept_before_they_are_due() -> None:
    timers = Timers()
    for _ in range(10_000):
        timers.at(32.0, lambda now: None).cancel()
    assert len(timers._heap) < 200
