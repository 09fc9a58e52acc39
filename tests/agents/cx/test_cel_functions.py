"""Timestamps and durations in conditions: the language's own conformance cases, and what holds of all of them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.agents.cx.cel import Expression
from callagent.agents.cx.cel_functions import Duration, Timestamp

FRIDAY = "timestamp('2009-02-13T23:31:30Z')"
FIRST, LAST = -62135596800 * 10**9, 253402300800 * 10**9 - 1
moments = st.builds(Timestamp, st.integers(FIRST, LAST))
durations = st.builds(Duration, st.integers(-(2**63), 2**63 - 1))


def value_of(text: str, **names: Any) -> Any:
    return Expression(text).evaluate(names)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (f"int({FRIDAY})", 1234567890),
        (f"string({FRIDAY})", "2009-02-13T23:31:30Z"),
        ("string(timestamp('9999-12-31T23:59:59.999999999Z'))", "9999-12-31T23:59:59.999999999Z"),
        ("string(timestamp('0001-01-01T00:00:00Z'))", "0001-01-01T00:00:00Z"),
        ("string(timestamp('2023-08-26T12:39:00-07:00'))", "2023-08-26T19:39:00Z"),
        ("string(duration('1000000s'))", "1000000s"),
        ("string(duration('1m1ms'))", "60.001s"),
        ("string(duration('-1.5h'))", "-5400s"),
        (f"string(duration('0.{'3' * 5000}s'))", "0.333333333s"),
        ("duration('1h34us') == duration('3600.000034s') && duration('0') == duration('+.0m')", True),
        ("duration(duration('100s')) == duration('100s')", True),
        ("timestamp(timestamp(1000000000)) == timestamp(1000000000)", True),
        ("string(timestamp(1000000000))", "2001-09-09T01:46:40Z"),
        (f"{FRIDAY}.getDate()", 13),
        (f"{FRIDAY}.getDayOfMonth()", 12),
        (f"{FRIDAY}.getDayOfWeek()", 5),
        ("timestamp('2023-12-24T12:00:00Z').getDayOfWeek()", 0),
        (f"{FRIDAY}.getDayOfYear()", 43),
        (f"{FRIDAY}.getFullYear()", 2009),
        (f"{FRIDAY}.getHours()", 23),
        ("timestamp('2009-02-13T23:31:20.123456789Z').getMilliseconds()", 123),
        (f"{FRIDAY}.getMinutes()", 31),
        (f"{FRIDAY}.getMonth()", 1),
        (f"{FRIDAY}.getSeconds()", 30),
        (f"{FRIDAY}.getDate('Australia/Sydney')", 14),
        (f"{FRIDAY}.getDayOfMonth('America/Chicago')", 12),
        (f"{FRIDAY}.getDayOfMonth('+11:00')", 13),
        ("timestamp('2009-02-13T02:00:00Z').getDayOfMonth('-02:30')", 11),
        ("timestamp('2009-02-13T02:00:00Z').getDayOfMonth('America/St_Johns')", 11),
        (f"{FRIDAY}.getDayOfWeek('UTC')", 5),
        (f"{FRIDAY}.getFullYear('-09:30')", 2009),
        (f"{FRIDAY}.getHours('02:00')", 1),
        (f"{FRIDAY}.getMinutes('Asia/Kathmandu')", 16),
        (f"{FRIDAY}.getSeconds('-00:00')", 30),
        (f"{FRIDAY} == timestamp('2009-02-14T00:31:30+01:00') && {FRIDAY} != timestamp('2009-02-13T23:31:29Z')", True),
        (f"{FRIDAY} == '2009-02-13T23:31:30Z' || duration('1s') == 1", False),
        ("timestamp('2009-02-13T23:00:00Z') + duration('240s') == timestamp('2009-02-13T23:04:00Z')", True),
        ("duration('120s') + timestamp('2009-02-13T23:01:00Z') == timestamp('2009-02-13T23:03:00Z')", True),
        ("string(timestamp('0001-01-01T00:00:01.000000001Z') + duration('-999999999ns'))",
         "0001-01-01T00:00:00.000000002Z"),
        ("timestamp('2009-02-13T23:31:00Z') - timestamp('2009-02-13T23:29:00Z') == duration('120s')", True),
        ("timestamp('2009-02-13T23:10:00Z') - duration('600s') == timestamp('2009-02-13T23:00:00Z')", True),
        ("duration('900s') - duration('42s') == duration('858s')", True),
        (f"{FRIDAY} < timestamp('2009-03-13T23:00:00Z') && {FRIDAY} >= {FRIDAY}", True),
        ("duration('2h') + duration('1h1m') >= duration('3h') && duration('300s') > duration('200s')", True),
        ("duration('10000s').getHours()", 2),
        ("duration('123.321456789s').getMilliseconds()", 321),
        ("duration('-1.234s').getMilliseconds()", -234),
        ("duration('3730s').getMinutes()", 62),
        ("duration('3730s').getSeconds()", 3730),
        ("duration('-90s').getMinutes()", -1),
        ("[timestamp(due), timestamp('2027-01-02T00:00:00Z')].exists(at, at.getMonth() == 11)", True),
    ],
)  # fmt: skip
def test_values_are_those_of_the_language(text: str, value: Any) -> None:
    assert value_of(text, due="2026-12-31T08:00:00Z") == value


@pytest.mark.parametrize(
    "text",
    [
        "timestamp('0000-01-01T00:00:00Z')",
        "timestamp('10000-01-01T00:00:00Z')",
        "timestamp('0001-01-01T00:00:00+00:01')",
        "timestamp('0001-01-01T00:00:00Z') + duration('-1s')",
        "timestamp('9999-12-31T23:59:59Z') + duration('1s')",
        "timestamp('9999-12-31T23:59:59.999999999Z') + duration('1ns')",
        "timestamp('0001-01-01T00:00:00Z') + duration('-1ns')",
        "timestamp('9999-12-31T23:59:59Z') - timestamp('0001-01-01T00:00:00Z')",
        "timestamp('0001-01-01T00:00:00Z') - timestamp('9999-12-31T23:59:59Z')",
        "duration('-320000000000s')",
        "duration('320000000000s')",
        f"duration('{'9' * 5000}h')",
        "duration('9000000000s') + duration('9000000000s')",
        "duration('-9000000000s') - duration('9000000000s')",
        "timestamp(999999999999)",
        "timestamp('0001-01-01T00:00:00Z').getHours('-09:30')",
    ],
)
def test_what_is_out_of_range_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="out of range"):
        value_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "timestamp('tomorrow')",
        "timestamp('2009-02-30T00:00:00Z')",
        "timestamp('2009-02-13T23:31:30')",
        "timestamp('2009-02-13T23:31:30+24:00')",
        "timestamp('２００９-02-13T23:31:30Z')",
        "timestamp(true)",
        "duration('1d')",
        "duration('')",
        "duration('1')",
        "duration(5)",
        "duration('1h').getFullYear()",
        "duration('1h').getHours('UTC')",
        "timestamp('2009-02-13T23:31:30Z').getHours(1)",
        "timestamp('2009-02-13T23:31:30Z').getHours('Atlantis')",
        "timestamp('2009-02-13T23:31:30Z').getHours('America')",
        "timestamp('2009-02-13T23:31:30Z').getHours('/etc/passwd')",
        "timestamp('2009-02-13T23:31:30Z').getHours('../../etc/passwd')",
        "timestamp('2009-02-13T23:31:30Z').getHours('+25:00')",
        "'2009-02-13T23:31:30Z'.getHours()",
        "timestamp('2009-02-13T23:31:30Z') + timestamp('2009-02-13T23:31:30Z')",
        "timestamp('2009-02-13T23:31:30Z') + 1",
        "duration('1s') - timestamp('2009-02-13T23:31:30Z')",
        "duration('1s') < timestamp('2009-02-13T23:31:30Z')",
        "duration('1s') * 2",
        "-duration('1s')",
    ],
)
def test_what_does_not_fit_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        value_of(text)


@given(moments)
def test_a_timestamp_is_its_text(moment: Timestamp) -> None:
    assert value_of("timestamp(string(at)) == at", at=moment) is True


@given(durations)
def test_a_duration_is_its_text(span: Duration) -> None:
    assert value_of("duration(string(span)) == span", span=span) is True


@given(moments, moments, durations)
def test_sums_and_differences_undo_each_other(one: Timestamp, other: Timestamp, span: Duration) -> None:
    names = {"one": one, "other": other, "span": span}
    for text in ("one + span - span == one", "other + (one - other) == one", "span - span == duration('0')"):
        try:
            assert value_of(text, **names) is True
        except ValueError as error:
            assert "out of range" in str(error)  # noqa: PT017 - ends beyond the years 1 to 9999, or 292 years apart
    assert value_of("one < other || one == other || one > other", **names) is True


@given(moments, st.integers(-1439, 1439))
def test_parts_are_those_of_the_calendar(moment: Timestamp, minutes: int) -> None:
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}"
    at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=moment.nanos // 1000)
    try:
        at += timedelta(minutes=minutes)
    except OverflowError:
        return
    parts = {
        "getFullYear": at.year, "getMonth": at.month - 1, "getDate": at.day, "getDayOfMonth": at.day - 1,
        "getDayOfYear": (at.date() - at.date().replace(month=1, day=1)).days, "getDayOfWeek": (at.weekday() + 1) % 7,
        "getHours": at.hour, "getMinutes": at.minute, "getSeconds": at.second,
        "getMilliseconds": at.microsecond // 1000,
    }  # fmt: skip
    for name, value in parts.items():
        assert value_of(f"at.{name}(zone)", at=moment, zone=zone) == value
