"""How many calls one telephone number may make, with plain numbers for time."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from callagent.call_info import CallInfo
from callagent.server.admission import MAX_CALLERS, CallerLimits

CALL = CallInfo("c", "inbound", "+442079460000", "agent", "sip", datetime(2026, 1, 1, tzinfo=UTC), trunk="carrier")


def test_a_number_has_so_many_calls_at_once() -> None:
    limits = CallerLimits(2, 100)
    for _ in range(2):
        assert limits.admit(CALL, 0.0) is None
        limits.add_call(CALL)
    assert limits.admit(CALL, 0.0) == "caller_calls"
    assert limits.over_at_once(CALL) == "caller_calls"
    assert limits.admit(replace(CALL, caller="+442079460001"), 0.0) is None
    limits.remove_call(CALL)
    assert limits.admit(CALL, 0.0) is None


def test_a_number_begins_so_many_calls_in_any_minute() -> None:
    limits = CallerLimits(100, 3)
    admitted = [now for now in range(0, 200, 5) if limits.admit(CALL, float(now)) is None]
    assert admitted[:3] == [0, 5, 10]
    for since in admitted:
        assert sum(since <= now < since + 60 for now in admitted) <= 3
    # Who keeps trying is not punished for the refused calls.
    assert admitted[3:6] == [60, 65, 70]


@pytest.mark.parametrize(
    "info",
    [
        *(
            replace(CALL, caller=caller)
            for caller in (None, "", "1000", "alice", "anonymous", "02079460000", "+", "+1")
        ),
        replace(CALL, trunk="pbx"),
        replace(CALL, direction="outbound"),
    ],
)
def test_who_has_no_number_of_their_own_is_not_counted(info: CallInfo) -> None:
    limits = CallerLimits(1, 1, {"pbx"})
    for _ in range(5):
        assert limits.admit(info, 0.0) is None
        limits.add_call(info)
        assert limits.over_at_once(info) is None


@pytest.mark.parametrize("written", ["+44 20 7946 0000", "+44-20-7946-0000", "+44(0)2079460000", "+442079460000"])
def test_a_number_is_one_however_it_is_written(written: str) -> None:
    limits = CallerLimits(1, 5)
    limits.add_call(CALL)
    assert limits.admit(replace(CALL, caller=written), 0.0) == "caller_calls"


def test_numbers_of_countries_that_there_are_not_are_counted_too() -> None:
    limits, info = CallerLimits(5, 1), replace(CALL, caller="+999123456789")
    assert [limits.admit(info, 0.0) for _ in range(2)] == [None, "caller_calls_per_minute"]


def test_numbers_are_forgotten_after_a_minute() -> None:
    limits = CallerLimits(1, 6)
    for number in range(5000):
        assert limits.admit(replace(CALL, caller=f"+4420{number:08d}"), float(number)) is None
    assert len(limits._recent) <= 60


def test_what_is_remembered_of_callers_is_bounded() -> None:
    limits = CallerLimits(1, 1)
    for number in range(MAX_CALLERS + 100):
        info = replace(CALL, caller=f"+4420{number:08d}")
        assert limits.admit(info, 0.0) is None
        limits.add_call(info)
        limits.remove_call(info)
    assert len(limits._recent) == MAX_CALLERS
    assert not limits._live
    assert limits.admit(info, 1.0) == "caller_calls_per_minute"
