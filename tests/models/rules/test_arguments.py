from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.rules.arguments import Filled, Hearing, extract, fill

TODAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("name", "wanted", "said", "value"),
    [
        ("tracking_number", {"type": "string"}, "it is eight four two seven six", "84276"),
        ("order", {"type": "string", "description": "digits of the order"}, "double five oh one four", "55014"),
        ("zip_code", {"type": "string"}, "my zip code is nine four one zero seven", "94107"),
        ("phone_number", {"type": "string"}, "five five five two three one four seven eight nine", "5552314789"),
        ("phone_number", {"type": "string"}, "five five", None),
        ("table_number", {"type": "string"}, "at seven thirty tonight", None),
        ("template_id", {"type": "string"}, "seven three", None),
        ("delivery_date", {"type": "string"}, "how about friday morning around ten", "2026-11-27"),
        ("delivery_time", {"type": "string"}, "how about friday morning around ten", "10:00"),
        ("window", {"type": "string", "enum": ["morning", "afternoon"]}, "tuesday at three p m", "afternoon"),
        ("window", {"type": "string", "enum": ["morning", "afternoon"]}, "in the Morning, please", "morning"),
        ("size", {"type": "string", "enum": ["large", "extra large"]}, "an extra large one", "extra large"),
        ("size", {"type": "string", "description": "one of: small, large"}, "small", "small"),
        ("size", {"type": "string", "enum": ["small"]}, "smallish", None),
        ("party_size", {"type": "integer"}, "a table for four at seven thirty tonight", 4),
        ("party_size", {"type": "integer"}, "at seven tonight", None),
        ("party_size", {"type": "integer"}, "twenty five of us", 25),
        ("amount", {"type": "number"}, "twenty five dollars and fifty cents", 25.5),
        ("weight", {"type": "number"}, "three point five", 3.5),
        ("agrees", {"type": "boolean"}, "yeah that's right", True),
        ("agrees", {"type": "boolean"}, "nope that's not correct", False),
        ("agrees", {"type": "boolean"}, "friday", None),
        ("full_name", {"type": "string"}, "my name is Sarah Johnson", "Sarah Johnson"),
        ("email", {"type": "string"}, "ann at example dot com", "ann@example.com"),
        ("reason", {"type": "string"}, "I was charged twice", "I was charged twice"),
        ("utterance", {"type": "string", "description": "What to say"}, "I was charged twice", ""),
        ("colour", {"type": "string"}, "anything you like", None),
    ],
)
def test_argument_is_taken_from_the_words(name: str, wanted: dict[str, Any], said: str, value: object) -> None:
    assert extract(name, wanted, Hearing(said, TODAY))[0] == value


def test_bare_words_answer_a_question() -> None:
    wanted = {"type": "string"}
    assert extract("name", wanted, Hearing("sarah johnson", TODAY, "What is your name?"))[0] == "Sarah Johnson"
    assert extract("name", wanted, Hearing("s m i t h", TODAY, "Can you spell your name?"))[0] is not None
    assert extract("address", wanted, Hearing("twelve oak street", TODAY, "What is your address?"))[0] is not None
    assert extract("address", wanted, Hearing("friday", TODAY, "Which day?"))[0] is None


def tool(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}


def test_tool_is_complete_when_all_that_it_requires_was_said() -> None:
    booking = tool({"size": {"type": "integer"}, "date": {"type": "string"}}, ["size", "date"])
    assert fill(booking, Hearing("four people on friday", TODAY)).arguments["date"] == "2026-11-27"
    assert not fill(booking, Hearing("on friday", TODAY)).complete
    assert fill(tool({}, []), Hearing("anything", TODAY)) == Filled({}, complete=True, specific=False)


@given(st.text(max_size=60), st.sampled_from(["string", "integer", "number", "boolean"]), st.text(max_size=20))
def test_no_words_break_it(said: str, kind: str, description: str) -> None:
    value, _ = extract("day", {"type": kind, "description": description}, Hearing(said, TODAY))
    assert value is None or isinstance(value, str | int | float | bool)
