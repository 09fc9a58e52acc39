"""When a provider may be asked."""

from __future__ import annotations

import itertools

import pytest

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.failover import _TRANSITIONS as TRANSITIONS
from callagent.failover import Breaker, BreakerEvent, BreakerState, Lineup, Member, is_alarm

BROKEN = ProviderError("broken")


def opened(at: float = 0.0) -> Breaker:
    breaker = Breaker()
    for _ in range(3):
        breaker.fail(BROKEN, at)
    return breaker


def test_every_change_but_probing_a_closed_breaker_has_its_row() -> None:
    missing = set(itertools.product(BreakerState, BreakerEvent)) - set(TRANSITIONS)
    assert missing == {(BreakerState.CLOSED, BreakerEvent.PROBED)}
    assert set(TRANSITIONS.values()) == set(BreakerState)


def test_three_failures_in_thirty_seconds_open_it() -> None:
    breaker = Breaker()
    for at in (0.0, 10.0):
        breaker.fail(BROKEN, at)
        assert breaker.admit(at)
    breaker.fail(ProviderTimeout("late"), 29.0)
    assert not breaker.admit(29.0)


def test_failures_far_apart_do_not() -> None:
    breaker = Breaker()
    for at in (0.0, 20.0, 40.0, 60.0):
        breaker.fail(BROKEN, at)
    assert breaker.admit(60.0)


def test_one_caller_in_ten_seconds_probes_an_open_one() -> None:
    breaker = opened()
    assert not breaker.admit(9.9)
    assert breaker.admit(10.0)
    assert not breaker.admit(10.1)
    breaker.fail(BROKEN, 10.5)
    assert not breaker.admit(20.0)
    assert breaker.admit(20.5)
    breaker.succeed()
    assert breaker.state is BreakerState.CLOSED
    assert breaker.admit(20.6)


def test_after_a_probe_that_told_nothing_another_one_follows() -> None:
    breaker = opened()
    assert breaker.admit(10.0)
    assert not breaker.admit(19.0)
    assert breaker.admit(20.0)


def test_after_it_closed_old_failures_do_not_count() -> None:
    breaker = opened()
    breaker.admit(10.0)
    breaker.succeed()
    breaker.fail(BROKEN, 11.0)
    assert breaker.admit(11.0)


def test_one_answer_late_does_not_close_it() -> None:
    breaker = opened()
    breaker.succeed()
    assert not breaker.admit(1.0)


@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_opens_it_at_once_and_for_long(status: int) -> None:
    breaker = Breaker()
    breaker.fail(ProviderRefused("bad key", status), 0.0)
    assert not breaker.admit(299.0)
    assert breaker.admit(300.0)
    assert is_alarm(ProviderRefused("bad key", status))
    assert not is_alarm(ProviderRefused("bad request", 400))
    assert not is_alarm(BROKEN)


@pytest.mark.parametrize(("asked", "waits"), [(20.0, 20.0), (0.0, 1.0), (1e9, 600.0)])
def test_retry_after_is_honoured_within_reason(asked: float, waits: float) -> None:
    breaker = Breaker()
    breaker.fail(ProviderRefused("over quota", 429, asked), 0.0)
    assert not breaker.admit(waits - 0.1)
    assert breaker.admit(waits)


def test_a_trip_opens_it_at_once() -> None:
    breaker = Breaker()
    breaker.fail(BROKEN, 0.0, trip=True)
    assert not breaker.admit(9.0)


def test_a_line_up_asks_the_first_that_may_be_asked() -> None:
    lineup = Lineup("voice", [Member("a", 1, breaker=opened()), Member("b", 2), Member("c", 3, embedded=True)])
    assert lineup.admit(1.0) == 1
    assert lineup.admit(1.0, without={1}) == 2
    assert lineup.admit(1.0, before=1) is None
    assert lineup.admit(11.0) == 0
    assert [lineup.is_patient(member) for member in lineup.members] == [False, False, True]
