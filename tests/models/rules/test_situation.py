from __future__ import annotations

from datetime import date

from callagent.models.rules.situation import Result, Situation, Topic, said_in

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
    assert situation.needs("condition_named") == {"day", "part"}
    assert situation.needs("condition_person") == frozenset()
    assert situation.next_entity == ("part", "enum")


def test_the_conversation_is_read() -> None:
    situation = Situation.read(MESSAGES)
    assert situation.said == "friday"
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
    assert Situation.read(messages).said == ""


def test_nothing_is_asked_for() -> None:
    situation = Situation.read([])
    assert (situation.say, situation.said, situation.turn_begun, situation.today) == ("", "", False, None)


def test_broken_arguments_are_none() -> None:
    messages = [{"role": "user", "content": "a"}, call("1", "book", "{"), {"role": "tool", "tool_call_id": "1"}]
    assert Situation.read(messages).results == (Result("book", {}, ""),)


def test_words_for_the_caller_in_a_result() -> None:
    assert said_in("internal\nSay: It is on its way.") == "It is on its way."
    assert said_in("They say: no") == ""
