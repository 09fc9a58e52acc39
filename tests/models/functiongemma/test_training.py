from __future__ import annotations

from typing import Any

import pytest

from callagent.models.functiongemma import TrainingRow, parse_output, split_rows, training_row

PARAMETERS = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}, "label": {"type": "string"}},
    "required": ["minutes"],
}
TIMER = {"type": "function", "function": {"name": "set_timer", "description": "Sets a timer", "parameters": PARAMETERS}}
MESSAGES = [{"role": "system", "content": "Route."}, {"role": "user", "content": "tea for five minutes"}]


def call(arguments: Any, name: str = "set_timer") -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def test_row_is_the_models_own_text() -> None:
    row = training_row(MESSAGES, [TIMER], [call({"minutes": "5", "label": ""})], "call 1")
    assert row.said == "tea for five minutes"
    assert row.prompt.startswith("<bos><start_of_turn>developer\nRoute.\nYou are a model that can do function calling")
    assert row.prompt.endswith("tea for five minutes<end_of_turn>\n<start_of_turn>model\n")
    end = "<end_function_call><start_function_response>"
    assert row.completion == f"<start_function_call>call:set_timer{{minutes:5}}{end}"
    assert [each.arguments for each in parse_output(row.completion, [TIMER]).calls] == [{"minutes": 5}]
    assert row.as_json() == {"prompt": row.prompt, "completion": row.completion, "source": "call 1"}


def test_where_nothing_is_to_be_called_the_turn_ends_at_once() -> None:
    assert training_row(MESSAGES, [TIMER], [], "x").completion == "<end_of_turn>"


@pytest.mark.parametrize(
    ("made", "error"),
    [
        (call({"minutes": 5}, "set_alarm"), "no function 'set_alarm'"),
        (call({}), "needs minutes"),
        (call({"minutes": "soon"}), "expected an integer"),
        (call("{"), "not known"),
        ({"name": "set_timer"}, "not known"),
    ],
)
def test_what_the_functions_do_not_allow_is_no_example(made: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        training_row(MESSAGES, [TIMER], [made], "x")


def row(said: str, prompt: str = "p") -> TrainingRow:
    return TrainingRow(said, prompt, "c", "s")


def test_a_tenth_of_the_utterances_is_held_out_and_stays_so() -> None:
    rows = [row(f"utterance {number}") for number in range(1000)]
    train, held = split_rows(rows)
    assert len(held) == 100
    assert not {each.said for each in train} & {each.said for each in held}
    assert split_rows(list(reversed(rows)))[1] == list(reversed(held))
    assert len(set(split_rows(rows[:900])[1]) & set(held)) > 75


def test_rows_of_the_same_words_are_on_the_same_side() -> None:
    train, held = split_rows([row("a", "1"), row("a", "2"), row("b", "1")])
    assert sorted(map(len, (train, held))) == [1, 2]
    assert split_rows([row("a")]) == ([row("a")], [])
    assert split_rows([]) == ([], [])
