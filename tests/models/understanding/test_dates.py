from __future__ import annotations

from datetime import date, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.understanding import find_date, find_part_of_day, find_time, part_of_day

SATURDAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("said", "day"),
    [
        ("how about friday morning around ten", date(2026, 11, 27)),
        ("next tuesday at three p m", date(2026, 11, 24)),
        ("tomorrow afternoon would be great", date(2026, 11, 22)),
        ("the day after tomorrow", date(2026, 11, 23)),
        ("today", SATURDAY),
        ("not friday, thursday", date(2026, 11, 26)),
        ("I can't do friday", None),
        ("next week.", date(2026, 11, 28)),
        ("saturday", date(2026, 11, 28)),
        ("this saturday", SATURDAY),
        ("a week on monday", date(2026, 11, 30)),
        ("in three days", date(2026, 11, 24)),
        ("in a week", date(2026, 11, 28)),
        ("a week from today", date(2026, 11, 28)),
        ("the fourteenth of march", date(2027, 3, 14)),
        ("March 14th", date(2027, 3, 14)),
        ("december twenty first", date(2026, 12, 21)),
        ("december twenty first nineteen eighty four", date(1984, 12, 21)),
        ("the third of may two thousand and four", date(2004, 5, 3)),
        ("21 December 1984", date(1984, 12, 21)),
        ("the twenty seventh please", date(2026, 11, 27)),
        ("the 3rd", date(2026, 12, 3)),
        ("2026-12-01", date(2026, 12, 1)),
        ("12/24", date(2026, 12, 24)),
        ("24/12", date(2026, 12, 24)),
        ("the twenty ninth of february", date(2028, 2, 29)),
        ("the thirty first of february", None),
        ("the first time I called", None),
        ("I may come", None),
        ("eight four two seven six", None),
        ("", None),
    ],
)
def test_day_is_resolved(said: str, day: date | None) -> None:
    assert find_date(said, SATURDAY) == day


@pytest.mark.parametrize(
    ("said", "moment"),
    [
        ("how about friday morning around ten", time(10)),
        ("next tuesday at three p m", time(15)),
        ("3 p.m. please", time(15)),
        ("at 3pm", time(15)),
        ("ten thirty", time(10, 30)),
        ("10:30", time(10, 30)),
        ("15:45", time(15, 45)),
        ("half past nine", time(9, 30)),
        ("quarter to five", time(16, 45)),
        ("twenty past eight in the evening", time(20, 20)),
        ("do you have a table for four at seven thirty tonight", time(19, 30)),
        ("at twelve", time(12)),
        ("twelve a m", time(0)),
        ("six o'clock in the morning", time(6)),
        ("at noon", time(12)),
        ("tomorrow afternoon", None),
        ("eight four two seven six", None),
        ("four people", None),
        ("", None),
    ],
)
def test_time_is_read(said: str, moment: time | None) -> None:
    assert find_time(said) == moment


@pytest.mark.parametrize(
    ("said", "part"),
    [("friday morning", "morning"), ("tonight", "evening"), ("in the afternoons", "afternoon"), ("at ten", "")],
)
def test_part_of_day_is_read(said: str, part: str) -> None:
    assert find_part_of_day(said) == part


def test_hours_belong_to_parts_of_the_day() -> None:
    assert [part_of_day(time(hour)) for hour in (0, 11, 12, 17, 18, 23)] == [
        "morning", "morning", "afternoon", "afternoon", "evening", "evening",
    ]  # fmt: skip


@given(st.dates(date(2000, 1, 1), date(2090, 1, 1)), st.integers(0, 300))
def test_a_written_day_is_itself_or_the_same_day_next_year(today: date, ahead: int) -> None:
    day = today + timedelta(days=ahead)
    assert find_date(f"{day:%B} {day.day}", today) == day


@given(st.dates(date(1930, 1, 1), date(2090, 1, 1)), st.dates(date(1930, 1, 1), date(2090, 1, 1)))
def test_a_day_with_its_year_does_not_depend_on_today(day: date, today: date) -> None:
    assert find_date(f"{day.day} {day:%B %Y}", today) == day


@given(st.dates(date(2000, 1, 1), date(2090, 1, 1)), st.sampled_from(range(7)))
def test_a_weekday_is_within_the_week_to_come(today: date, weekday: int) -> None:
    name = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"][weekday]
    found = find_date(f"on {name}", today)
    assert found is not None
    assert found.weekday() == weekday
    assert 1 <= (found - today).days <= 7


@given(st.times())
def test_a_written_time_is_read_back(moment: time) -> None:
    assert find_time(f"at {moment.hour:02}:{moment.minute:02}, {'morning' if moment.hour < 12 else 'pm'}") is not None


@given(st.text(max_size=80))
def test_nothing_said_breaks_it(said: str) -> None:
    find_date(said, SATURDAY), find_time(said), find_part_of_day(said)
