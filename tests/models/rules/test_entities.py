from __future__ import annotations

from datetime import date, time, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.rules.entities import (
    TENS,
    UNITS,
    Answer,
    find_answer,
    find_date,
    find_digits,
    find_email,
    find_money,
    find_name,
    find_number,
    find_part_of_day,
    find_spelling,
    find_time,
    is_repeat_request,
    part_of_day,
)

SATURDAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("utterance", "day"),
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
def test_day_is_resolved(utterance: str, day: date | None) -> None:
    assert find_date(utterance, SATURDAY) == day


@pytest.mark.parametrize(
    ("utterance", "moment"),
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
def test_time_is_read(utterance: str, moment: time | None) -> None:
    assert find_time(utterance) == moment


@pytest.mark.parametrize(
    ("utterance", "part"),
    [("friday morning", "morning"), ("tonight", "evening"), ("in the afternoons", "afternoon"), ("at ten", "")],
)
def test_part_of_day_is_read(utterance: str, part: str) -> None:
    assert find_part_of_day(utterance) == part


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
def test_nothing_said_breaks_days_and_times(utterance: str) -> None:
    find_date(utterance, SATURDAY), find_time(utterance), find_part_of_day(utterance)


DIGITS = list(UNITS)[:10]


def spell(number: int) -> str:
    """A cardinal as it is spoken."""
    for value, name in ((1_000_000, "million"), (1000, "thousand"), (100, "hundred")):
        if number >= value:
            rest = f" {spell(number % value)}" if number % value else ""
            return f"{spell(number // value)} {name}{rest}"
    if number < 20:
        return list(UNITS)[number]
    tens, unit = divmod(number, 10)
    return list(TENS)[tens - 2] + (f" {DIGITS[unit]}" if unit else "")


@pytest.mark.parametrize(
    ("utterance", "digits"),
    [
        ("the order number is eight four two seven six", "84276"),
        ("The order number is 84276.", "84276"),
        ("8, 4, 2, 7, 6", "84276"),
        ("8-4-2-7-6", "84276"),
        ("double five oh one four", "55014"),
        ("triple seven two", "7772"),
        ("five five five two three one four seven eight nine", "5552314789"),
        ("my zip code is nine four one zero seven", "94107"),
        ("eighty four two seventy six", "84276"),
        ("eight for two seven six", "84276"),
        ("one eight hundred", "1800"),
        ("oh I want one of those and then 55014", "55014"),
        ("oh hello", ""),
        ("for you to see", ""),
        ("", ""),
    ],
)
def test_digit_string_is_read(utterance: str, digits: str) -> None:
    assert find_digits(utterance) == digits


@given(st.text(alphabet="0123456789", min_size=1, max_size=16), st.sampled_from([" ", ", ", "-"]))
def test_any_digits_survive_being_spoken(digits: str, pause: str) -> None:
    utterance = pause.join(DIGITS[int(digit)] for digit in digits)
    assert find_digits(f"it is {utterance} thanks") == digits


@given(st.integers(0, 999_999_999))
def test_any_cardinal_survives_being_spoken(number: int) -> None:
    assert find_number(f"it is {spell(number)} thanks") == number


@pytest.mark.parametrize(
    ("utterance", "number"),
    [
        ("a party of four", 4),
        ("twenty-five", 25),
        ("one hundred and five people", 105),
        ("a hundred", 100),
        ("three point five", 3.5),
        ("3.5", 3.5),
        ("1,250 of them", 1250),
        ("four one five", 415),
        ("two and three", 2),
        ("nobody", None),
        ("", None),
    ],
)
def test_number_is_read(utterance: str, number: float | None) -> None:
    assert find_number(utterance) == number


@pytest.mark.parametrize(
    ("utterance", "amount"),
    [
        ("twenty five dollars and fifty cents", 25.5),
        ("$9.50", 9.5),
        ("it was €1,200", 1200),
        ("ten euros", 10),
        ("fifty cents", 0.5),
        ("the two of us paid thirty dollars", 30),
        ("no money", None),
        ("dollars", None),
    ],
)
def test_sum_of_money_is_read(utterance: str, amount: float | None) -> None:
    assert find_money(utterance) == amount


@given(st.text(max_size=80))
def test_nothing_said_breaks_numbers(utterance: str) -> None:
    find_digits(utterance), find_number(utterance), find_money(utterance)


@pytest.mark.parametrize(
    ("utterance", "name"),
    [
        ("my name is Sarah Johnson", "Sarah Johnson"),
        ("this is michael anderson calling", "Michael Anderson"),
        ("it's David Garcia", "David Garcia"),
        ("my last name is Thompson", "Thompson"),
        ("I'm calling about my parcel", ""),
        ("it's not right", ""),
        ("Sarah Johnson", ""),
    ],
)
def test_name_is_found_where_it_is_introduced(utterance: str, name: str) -> None:
    assert find_name(utterance) == name


def test_bare_words_are_a_name_when_asked_for() -> None:
    assert find_name("sarah van dyke.", asked=True) == "Sarah van Dyke"
    assert find_name("yes", asked=True) == ""
    assert find_name("I want to speak to a real person please", asked=True) == ""


@pytest.mark.parametrize(
    ("utterance", "letters"), [("that's s m i t h", "smith"), ("S-M-I-T-H", "SMITH"), ("a b", ""), ("hello", "")]
)
def test_spelling_is_joined(utterance: str, letters: str) -> None:
    assert find_spelling(utterance) == letters


@pytest.mark.parametrize(
    ("utterance", "address"),
    [
        ("it is ann.lee@example.com thanks", "ann.lee@example.com"),
        ("ann dot lee at example dot com", "ann.lee@example.com"),
        ("meet me at noon", ""),
    ],
)
def test_email_is_found(utterance: str, address: str) -> None:
    assert find_email(utterance) == address


@pytest.mark.parametrize(
    "utterance",
    ["yes", "Yes.", "yeah that's right", "sure go ahead", "okay", "that’s correct", "um, yes please", "that works",
     "no problem", "right", "of course", "yep"],
)  # fmt: skip
def test_yes(utterance: str) -> None:
    assert find_answer(utterance) is Answer.YES


@pytest.mark.parametrize(
    "utterance",
    ["no", "No thanks.", "nope that's not correct", "not really", "that's wrong", "I don't think so", "well, no",
     "I don't want that", "never mind", "yes, no, that's wrong", "nothing else", "that doesn't work",
     "not friday, thursday", "I'm good, thanks", "I don't"],
)  # fmt: skip
def test_no(utterance: str) -> None:
    assert find_answer(utterance) is Answer.NO


@pytest.mark.parametrize(
    "utterance",
    ["", "friday morning", "I don't have the number", "not bad", "what are your opening hours",
     "I'd like to book an appointment", "I am calling about my parcel", "I know the number",
     "tomorrow afternoon would be great", "eight four two seven six",
     "the package never arrived and I want my money back"],
)  # fmt: skip
def test_neither(utterance: str) -> None:
    assert find_answer(utterance) is None


@pytest.mark.parametrize(
    "utterance",
    ["wait, what day was that", "could you repeat that please I didn't catch it", "pardon", "say that again",
     "What was that?", "sorry", "can you please repeat"],
)  # fmt: skip
def test_repeat_request(utterance: str) -> None:
    assert is_repeat_request(utterance)


@pytest.mark.parametrize("utterance", ["", "yes", "I want to check the status of my order", "sorry, my parcel is lost"])
def test_no_repeat_request(utterance: str) -> None:
    assert not is_repeat_request(utterance)


@given(st.text(max_size=80))
def test_nothing_said_breaks_answers(utterance: str) -> None:
    find_answer(utterance), is_repeat_request(utterance)
