from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.understanding import find_digits, find_money, find_number
from callagent.models.understanding.numbers import TENS, UNITS

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
    ("said", "digits"),
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
def test_digit_string_is_read(said: str, digits: str) -> None:
    assert find_digits(said) == digits


@given(st.text(alphabet="0123456789", min_size=1, max_size=16), st.sampled_from([" ", ", ", "-"]))
def test_any_digits_survive_being_spoken(digits: str, pause: str) -> None:
    said = pause.join(DIGITS[int(digit)] for digit in digits)
    assert find_digits(f"it is {said} thanks") == digits


@given(st.integers(0, 999_999_999))
def test_any_cardinal_survives_being_spoken(number: int) -> None:
    assert find_number(f"it is {spell(number)} thanks") == number


@pytest.mark.parametrize(
    ("said", "number"),
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
def test_number_is_read(said: str, number: float | None) -> None:
    assert find_number(said) == number


@pytest.mark.parametrize(
    ("said", "amount"),
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
def test_sum_of_money_is_read(said: str, amount: float | None) -> None:
    assert find_money(said) == amount


@given(st.text(max_size=80))
def test_nothing_said_breaks_it(said: str) -> None:
    find_digits(said), find_number(said), find_money(said)
