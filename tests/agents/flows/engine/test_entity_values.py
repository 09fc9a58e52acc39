from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.agents.flows.engine.entity_values import spoken_digits, spoken_number, validate
from callagent.agents.flows.format.configuration import CONFIG_TYPES, Entity

MONDAY = date(2026, 8, 24)
US = {"country_codes": ["US"]}


def check(kind: str, value: Any, **config: Any) -> Any:
    """The native value, or the error."""
    result = validate(Entity("e", "", kind, config), value, MONDAY)
    assert result.valid == (result.error is None)
    return result.native if result.valid else result.error


@pytest.mark.parametrize(
    ("kind", "value", "config", "native"),
    [
        ("numeric", "4", {}, 4),
        ("numeric", 4.0, {}, 4),
        ("numeric", "four", {}, 4),
        ("numeric", "twenty five", {}, 25),
        ("numeric", "three hundred and two", {}, 302),
        ("numeric", "one two three four", {}, 1234),
        ("numeric", "1,200", {}, 1200),
        ("numeric", "2.5", {"has_decimal": True}, 2.5),
        ("numeric", 3, {"has_range": True, "min": 1, "max": 5}, 3),
        ("alphanumeric", "ab 12", {"regular_expression": "[A-Z]{2}\\d{2}"}, "AB12"),
        ("alphanumeric", "12345", {"validation_type": "zip code"}, "12345"),
        ("alphanumeric", "one two three four five", {"validation_type": "zip code"}, "12345"),
        ("enum", "BLUE", {"options": ["blue", "red"]}, "blue"),
        ("date", "2026-09-01", {}, "2026-09-01"),
        ("date", "March 5th, 1990", {}, "1990-03-05"),
        ("date", "5 March", {}, "2027-03-05"),
        ("date", "tomorrow", {"relative_date": True}, "2026-08-25"),
        ("date", "next friday", {"relative_date": True}, "2026-08-28"),
        ("date", "monday", {"relative_date": True}, "2026-08-31"),
        ("date", "in two weeks", {"relative_date": True}, "2026-09-07"),
        ("date", "Monday, March 5th", {"relative_date": True}, "2027-03-05"),
        ("date", "friday september 4", {"relative_date": True}, "2026-09-04"),
        ("date", "the 5th of March 2027, a Friday", {"relative_date": True}, "2027-03-05"),
        ("date", "a friday in march", {"relative_date": True}, "2026-08-28"),
        ("date", "tomorrow, August 25th", {"relative_date": True}, "2026-08-25"),
        ("date", "yesterday, August 23rd", {"relative_date": True}, "2026-08-23"),
        ("phone_number", "(740) 583-9201", US, "+17405839201"),
        ("phone_number", "+49 30 901820", {}, "+4930901820"),
        ("phone_number", "seven four zero five eight three nine two zero one", US, "+17405839201"),
        ("phone_number", "030 901820", {"country_codes": ["DE"]}, "+4930901820"),
        ("time", "19:30", {}, "19:30"),
        ("time", "7:30 pm", {}, "19:30"),
        ("time", "three p.m.", {}, "15:00"),
        ("time", "noon", {}, "12:00"),
        ("time", "ten thirty", {"start_time": "09:00", "end_time": "17:00"}, "10:30"),
        ("name_config", "  Anna ", {}, "Anna"),
        ("address", "1 Main Street", {}, "1 Main Street"),
        ("free_text", "anything", {}, "anything"),
    ],
)
def test_a_value_of_the_type_is_taken(kind: str, value: Any, config: dict[str, Any], native: Any):
    assert check(kind, value, **config) == native


@pytest.mark.parametrize(
    ("kind", "value", "config", "error"),
    [
        ("numeric", "many", {}, "not a number"),
        ("numeric", "2.5", {}, "whole number"),
        ("numeric", 12, {"has_range": True, "min": 1, "max": 9}, "between 1 and 9"),
        ("alphanumeric", "1234", {"validation_type": "zip code"}, "expected form"),
        ("enum", "green", {"options": ["blue", "red"]}, "blue, red"),
        ("date", "2026-02-30", {}, "no such day"),
        ("date", "tomorrow", {}, "YYYY-MM-DD"),
        ("date", "Monday, February 30th", {"relative_date": True}, "no such day"),
        ("phone_number", "555 1234", US, "ten digits"),
        ("phone_number", "no", {}, "not a complete"),
        ("time", "25:00", {}, "HH:MM"),
        ("time", "20:00", {"start_time": "09:00", "end_time": "17:00"}, "between 09:00 and 17:00"),
        ("name_config", "  ", {}, "empty"),
    ],
)
def test_any_other_value_is_an_error_that_says_what_is_wanted(
    kind: str, value: Any, config: dict[str, Any], error: str
):
    assert error in check(kind, value, **config)


def test_digits_and_numbers_may_be_spoken():
    assert spoken_digits("double five oh one") == "5501"
    assert spoken_digits("five apples") is None
    assert spoken_number("two thousand and six") == 2006


@given(st.sampled_from(sorted(CONFIG_TYPES)), st.text(max_size=30))
def test_no_text_breaks_the_check(kind: str, text: str):
    validate(Entity("e", "", kind, {"relative_date": True}), text, MONDAY)
