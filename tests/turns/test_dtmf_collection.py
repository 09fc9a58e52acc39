from __future__ import annotations

import pytest

from callagent.agents import DigitSettings
from callagent.turns.caller_speech import MAX_DIGITS, DigitCollector


def press_all(settings: DigitSettings, keys: str) -> tuple[str, bool]:
    collector = DigitCollector(settings)
    complete = False
    for key in keys:
        complete = collector.add(key)
    return collector.digits, complete


@pytest.mark.parametrize(
    ("settings", "keys", "digits", "complete"),
    [
        (DigitSettings(max_digits=3), "12", "12", False),
        (DigitSettings(max_digits=3), "123", "123", True),
        (DigitSettings(end_key="#"), "12#", "12", True),
        (DigitSettings(max_digits=9, end_key="*"), "1#*", "1#", True),
        (DigitSettings(end_key="#", end_key_alone=True), "123#", "123", True),
        (DigitSettings(end_key="#", end_key_alone=True), "#", "#", True),
        (DigitSettings(end_key="#", end_key_alone=True), "AB*D#", "AB*D", True),
        (DigitSettings(), "123456789*#", "123456789*#", False),
        (DigitSettings(), "1" * MAX_DIGITS, "1" * MAX_DIGITS, True),
    ],
)
def test_digits_are_complete_by_count_or_end_key(
    settings: DigitSettings, keys: str, digits: str, complete: bool
) -> None:
    assert press_all(settings, keys) == (digits, complete)


def test_an_end_key_alone_is_an_answer_where_that_is_asked_for() -> None:
    collector = DigitCollector(DigitSettings(end_key="#", end_key_alone=True))
    assert collector.accepts("#")
    assert collector.add("#")
    assert collector.digits == "#"


def test_an_end_key_before_any_digit_is_not_wanted() -> None:
    collector = DigitCollector(DigitSettings(end_key="#"))
    assert not collector.accepts("#")
    assert collector.accepts("1")
    collector.add("1")
    assert collector.accepts("#")
    assert DigitCollector(DigitSettings(end_key="#", end_key_alone=True)).accepts("#")
