"""Typed access to JSON data of unknown shape."""

from __future__ import annotations

import pytest

from callagent.json_values import is_true, list_at, number_at, object_at, objects_at, parse_json, parse_object, text_at

DATA = parse_object('{"a": {"b": {"c": 1}}, "list": [{"x": 1}, 2, "t"], "text": "words", "n": 2.5, "yes": true}')


def test_values_of_the_wanted_type_are_returned() -> None:
    assert object_at(DATA, "a", "b") == {"c": 1}
    assert objects_at(DATA, "list") == [{"x": 1}]
    assert list_at(DATA, "list") == [{"x": 1}, 2, "t"]
    assert text_at(DATA, "text") == "words"
    assert number_at(DATA, "n") == 2.5
    assert is_true(DATA, "yes")


def test_other_types_and_missing_keys_give_the_default() -> None:
    assert object_at(DATA, "text", "b") == object_at(DATA, "none") == {}
    assert objects_at(DATA, "text") == []
    assert list_at(DATA, "text") == ()
    assert text_at(DATA, "n", "other") == "other"
    assert number_at(DATA, "yes", 7) == number_at(DATA, "text", 7) == 7
    assert not is_true(DATA, "text")


@pytest.mark.parametrize("text", ["", "{", "[1]", '"words"', "null", "[" * 100_000, b"\xff"])
def test_what_is_no_object_is_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r"Expecting|nested|expected|decode"):
        parse_object(text)


def test_a_text_that_is_nested_too_deep_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000)
