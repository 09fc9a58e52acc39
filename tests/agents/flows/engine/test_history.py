from __future__ import annotations

import pytest

from callagent.agents.flows.engine.conversation import History
from callagent.models.protocol import ToolCall


def told() -> History:
    """A greeting, the caller, an answer of two sentences with a call, and an utterance of the function."""
    history = History()
    history.add_agent("Welcome.")
    history.add_user("book a table")
    answer = history.new_utterance()
    history.add_agent("Of course.", answer)
    history.add_agent("One moment.", answer)
    history.add_calls((ToolCall("c1", "book", "{}"), ToolCall("c2", "other", "{}")))
    history.add_answer("c1", "Booked for $name.")
    history.add_agent("It is booked.")
    return history


def test_the_model_reads_every_call_with_one_answer_right_behind_it():
    messages = told().messages(lambda text: text.replace("$name", "Anna"), "silence")
    assert [m["role"] for m in messages] == ["assistant", "user", "assistant", "tool", "tool", "assistant"]
    assert messages[2]["content"] == "Of course. One moment."
    assert [c["function"]["name"] for c in messages[2]["tool_calls"]] == ["book", "other"]
    assert [m["content"] for m in messages[3:5]] == ["Booked for Anna.", "Not executed."]


def test_project_code_reads_utterances_by_role():
    assert told().plain() == [
        {"role": "agent", "text": "Welcome."},
        {"role": "user", "text": "book a table"},
        {"role": "agent", "text": "Of course. One moment."},
        {"role": "agent", "text": "It is booked."},
    ]


def test_a_silent_turn_is_empty_for_the_project_and_told_to_the_model():
    history = History()
    history.add_user("")
    assert history.plain() == [{"role": "user", "text": ""}]
    assert history.messages(str, "The user is silent.")[0]["content"] == "The user is silent."


@pytest.mark.parametrize(
    ("heard", "left"),
    [
        ("", []),
        ("Of", ["Of…"]),
        ("Of course.", ["Of course."]),
        ("Of course. One moment. It", ["Of course. One moment.", "It…"]),
        ("Of course. One moment. It is booked.", ["Of course. One moment.", "It is booked."]),
    ],
)
def test_of_an_interrupted_turn_only_what_was_heard_stays(heard: str, left: list[str]):
    history = told()
    history.cut_to_heard(heard)
    assert [entry["text"] for entry in history.plain()] == ["Welcome.", "book a table", *left]
    assert [m["role"] for m in history.messages(str, "")].count("tool") == 2


def test_results_of_the_last_turns_are_found_newest_first():
    history = told()
    history.add_user("and?")
    history.add_note("later")
    assert list(history.recent_contents(2)) == ["later", "Booked for $name."]
    assert list(history.recent_contents(1)) == ["later"]


def test_a_reopened_turn_leaves_the_history_unless_functions_ran_in_it() -> None:
    history = History()
    history.add_user("a table")
    history.add_agent("For when?")
    history.add_user("for four")
    history.reopen()
    assert history.plain() == [{"role": "user", "text": "a table"}, {"role": "agent", "text": "For when?"}]
    history.add_calls((ToolCall("c1", "book", "{}"),))
    history.reopen()
    assert len(history.entries) == 3
    History().reopen()


def test_a_function_that_leaves_no_trace_goes_with_the_reopened_turn() -> None:
    history = History()
    history.add_user("my order")
    history.add_calls((ToolCall("c1", "look", "{}"),))
    history.reopen(lambda function: function == "look")
    assert history.entries == []
    history.add_answer("c1", "found")
    assert history.entries == []
    history.add_user("my order of Friday")
    history.add_calls((ToolCall("c2", "look", "{}"), ToolCall("c3", "pay", "{}")))
    history.reopen(lambda function: function == "look")
    assert len(history.entries) == 2
