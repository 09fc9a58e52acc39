from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.rules.situation import (
    CallerUtterance,
    FilledArguments,
    Result,
    Situation,
    Topic,
    extract_value,
    fill_arguments,
    lines_to_say,
)

HEAD = """You are an assistant.
Today is Saturday, 21 November 2026. Answer briefly.

Use the context below.

CONTEXT_INFORMATION:
faq_id: Opening hours
faq_example_questions: When are you open? | Are you open on Sunday?
faq_description: We are open from nine to five.
On Sundays we are closed.
faq_instructions:

faq_id: Prices
faq_example_questions: What does it cost?
faq_description: Six dollars.
faq_instructions: Be brief."""
STEP = """Get the day.
Say: Which day suits you?
  - Say: Morning or afternoon?
Otherwise say: I did not get the day.

Information to collect; pass what the caller gives to save_entities:
- day (date, collected: 2026-11-27): The day
- part (enum, not collected yet): The part of the day
When one of these holds, call its function at once:
- condition_named: Named. The caller has named the day (needs day, part)
- condition_person: Person. The caller wants a person"""


def call(identifier: str, name: str, arguments: str) -> dict[str, object]:
    function = {"name": name, "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": identifier, "function": function}]}


MESSAGES = [
    {"role": "system", "content": HEAD},
    {"role": "assistant", "content": "Hello."},
    {"role": "user", "content": "friday"},
    call("1", "save_entities", '{"day": "2026-11-27"}'),
    {"role": "tool", "tool_call_id": "1", "content": "Saved."},
    {"role": "system", "content": STEP},
]


def test_the_step_is_the_last_system_message() -> None:
    situation = Situation.read(MESSAGES)
    assert situation.in_step
    assert situation.say == "Which day suits you? Morning or afternoon?"
    assert situation.otherwise == "I did not get the day."
    assert situation.needed_entities("condition_named") == {"day", "part"}
    assert situation.needed_entities("condition_person") == frozenset()
    assert situation.next_entity == ("part", "enum")


def test_the_conversation_is_read() -> None:
    situation = Situation.read(MESSAGES)
    assert situation.utterance == "friday"
    assert situation.last_agent == "Hello."
    assert situation.results == (Result("save_entities", {"day": "2026-11-27"}, "Saved."),)


def test_topics_and_date_are_read() -> None:
    situation = Situation.read(MESSAGES)
    assert situation.today == date(2026, 11, 21)
    assert situation.topics == (
        Topic(
            "Opening hours",
            "When are you open? | Are you open on Sunday?",
            "We are open from nine to five.\nOn Sundays we are closed.",
            "",
        ),
        Topic("Prices", "What does it cost?", "Six dollars.", "Be brief."),
    )


def test_a_step_may_quote_its_words() -> None:
    messages = [{"role": "system", "content": "Rules."}, {"role": "system", "content": 'Ask the caller: "How many?"'}]
    assert Situation.read(messages).say == "How many?"


def test_silence_is_no_word() -> None:
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "The user is silent."}]
    assert Situation.read(messages).utterance == ""


def test_nothing_is_asked_for() -> None:
    situation = Situation.read([])
    assert (situation.say, situation.utterance, situation.turn_begun, situation.today) == ("", "", False, None)


def test_broken_arguments_are_none() -> None:
    messages = [{"role": "user", "content": "a"}, call("1", "book", "{"), {"role": "tool", "tool_call_id": "1"}]
    assert Situation.read(messages).results == (Result("book", {}, ""),)


def test_words_for_the_caller_in_a_result() -> None:
    assert lines_to_say("internal\nSay: It is on its way.") == "It is on its way."
    assert lines_to_say("They say: no") == ""


TODAY = date(2026, 11, 21)


@pytest.mark.parametrize(
    ("name", "wanted", "utterance", "value"),
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
def test_argument_is_taken_from_the_words(name: str, wanted: dict[str, Any], utterance: str, value: object) -> None:
    assert extract_value(name, wanted, CallerUtterance(utterance, TODAY))[0] == value


def test_bare_words_answer_a_question() -> None:
    wanted = {"type": "string"}
    assert (
        extract_value("name", wanted, CallerUtterance("sarah johnson", TODAY, "What is your name?"))[0]
        == "Sarah Johnson"
    )
    assert extract_value("name", wanted, CallerUtterance("s m i t h", TODAY, "Can you spell your name?"))[0] is not None
    assert (
        extract_value("address", wanted, CallerUtterance("twelve oak street", TODAY, "What is your address?"))[0]
        is not None
    )
    assert extract_value("address", wanted, CallerUtterance("friday", TODAY, "Which day?"))[0] is None


def tool(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": "f", "description": "", "parameters": parameters}}


def test_tool_is_complete_when_all_that_it_requires_was_said() -> None:
    booking = tool({"size": {"type": "integer"}, "date": {"type": "string"}}, ["size", "date"])
    assert fill_arguments(booking, CallerUtterance("four people on friday", TODAY)).arguments["date"] == "2026-11-27"
    assert not fill_arguments(booking, CallerUtterance("on friday", TODAY)).complete
    assert fill_arguments(tool({}, []), CallerUtterance("anything", TODAY)) == FilledArguments(
        {}, complete=True, specific=False
    )


@given(st.text(max_size=60), st.sampled_from(["string", "integer", "number", "boolean"]), st.text(max_size=20))
def test_no_words_break_it(utterance: str, kind: str, description: str) -> None:
    value, _ = extract_value("day", {"type": kind, "description": description}, CallerUtterance(utterance, TODAY))
    assert value is None or isinstance(value, str | int | float | bool)
