from __future__ import annotations

import pytest

from callagent.models.functiongemma import (
    FUNCTIONGEMMA,
    GEMMA4,
    FunctionCall,
    StreamParser,
    parse_expression,
    parse_output,
)

TIMER = {
    "type": "function",
    "function": {
        "name": "set_timer",
        "description": "Sets a timer",
        "parameters": {
            "type": "object",
            "properties": {"minutes": {"type": "integer"}, "name": {"type": "string"}},
            "required": ["minutes"],
        },
    },
}


def call(inside: str) -> str:
    return f"<start_function_call>{inside}<end_function_call>"


def test_words_come_as_soon_as_they_cannot_be_a_token() -> None:
    parser = StreamParser()
    assert [delta.text for delta in parser.feed("One <")] == ["One "]
    assert parser.feed("start_of") == []
    assert [delta.text for delta in parser.feed("ten")] == ["<start_often"]


def test_call_comes_with_its_end_token() -> None:
    parser = StreamParser()
    assert parser.feed("<start_function_call>call:f{a:1}<end_function_cal") == []
    assert [delta.tool_call for delta in parser.feed("l>")] == [FunctionCall("f", {"a": 1})]


@pytest.mark.parametrize("stop", ["<end_of_turn>", "<eos>", "<start_function_response>", "<start_of_turn>"])
def test_behind_a_stop_token_nothing_is_said(stop: str) -> None:
    parsed = parse_output(f"Yes.{stop}user\nNo.{call('call:f{}')}")
    assert (parsed.calls, parsed.content, parsed.truncated) == ([], "Yes.", False)


@pytest.mark.parametrize("token", ["<bos>", "<escape>", "<end_function_call>", "<end_function_response>"])
def test_stray_control_tokens_are_dropped(token: str) -> None:
    assert parse_output(f"One{token} two").content == "One two"


def test_partial_token_at_the_end_is_text() -> None:
    assert parse_output("a < b and <start_func").content == "a < b and <start_func"


def test_call_without_end_counts_if_complete() -> None:
    parsed = parse_output("<start_function_call>call:f{a:1}")
    assert parsed.calls == [FunctionCall("f", {"a": 1})]
    assert parsed.truncated


@pytest.mark.parametrize("text", ["call:f{a:<escape>abc", "call:f{a:1", "call:f{a:", "call:f{", "call:", "cal"])
def test_call_that_breaks_off_is_no_call(text: str) -> None:
    parsed = parse_output(f"Well.<start_function_call>{text}")
    assert (parsed.calls, parsed.content, parsed.truncated) == ([], "Well.", True)
    assert [problem.is_loss for problem in parsed.problems] == [True]


def test_string_that_does_not_end_costs_only_its_call() -> None:
    parsed = parse_output(call("call:f{a:<escape>abc}") + "Then " + call("call:g{b:<escape>x<escape>}"))
    assert parsed.calls == [FunctionCall("g", {"b": "x"})]
    assert parsed.content == "Then "
    assert [problem.name for problem in parsed.problems] == ["f"]


def test_end_token_in_a_string_that_ends_is_part_of_it() -> None:
    parsed = parse_output(call("call:f{a:<escape>x <end_function_call> y<escape>}"))
    assert parsed.calls == [FunctionCall("f", {"a": "x <end_function_call> y"})]


def test_second_call_begins_where_the_first_has_no_end() -> None:
    parsed = parse_output(f"<start_function_call>call:f{{}}{call('call:g{}')}")
    assert [each.name for each in parsed.calls] == ["f", "g"]
    assert parsed.truncated


@pytest.mark.parametrize("inside", ["call:{x:1}", "call:", "f{}", "", "call:f(a:1)", "call:9{}", "call:f[1]"])
def test_what_is_no_call_is_a_problem(inside: str) -> None:
    parsed = parse_output(call(inside))
    assert parsed.content == ""
    assert any(problem.is_loss for problem in parsed.problems) == (parsed.calls == [])


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("Paris", "Paris"),
        ("San Francisco ", "San Francisco"),
        ("007", "007"),
        ("2026-11-21", "2026-11-21"),
        ("12:30", "12:30"),
        ("1.2.3", "1.2.3"),
        ('"New York, NY"', "New York, NY"),
        ("truely", "truely"),
        ("nullify", "nullify"),
    ],
)
def test_bare_words_are_strings_and_noted(written: str, value: str) -> None:
    parsed = parse_output(call(f"call:f{{a:{written},b:1}}"))
    assert parsed.calls == [FunctionCall("f", {"a": value, "b": 1})]
    assert [problem.is_loss for problem in parsed.problems] == [False]


def test_comma_too_many_and_text_behind_a_call_are_noted() -> None:
    assert parse_output(call("call:f{a:[1,],}")).calls == [FunctionCall("f", {"a": [1]})]
    parsed = parse_output(call("call:f{a:1}}"))
    assert parsed.calls == [FunctionCall("f", {"a": 1})]
    assert [problem.is_loss for problem in parsed.problems] == [False]


def test_tools_bring_arguments_to_their_types() -> None:
    parsed = parse_output(call("call:set_timer{minutes:<escape>5<escape>,name:7,loud:true}"), [TIMER])
    assert parsed.calls == [FunctionCall("set_timer", {"minutes": 5, "name": "7"})]


def test_invented_function_is_a_problem_with_its_call() -> None:
    [problem] = parse_output(call("call:launch{at:1}"), [TIMER]).problems
    assert problem.is_loss
    assert problem.call == FunctionCall("launch", {"at": 1})


def test_invalid_arguments_are_a_problem_that_names_them() -> None:
    parsed = parse_output(call("call:set_timer{name:<escape>tea<escape>}"), [TIMER])
    assert parsed.calls == []
    assert "minutes" in parsed.problems[0].reason


def test_token_sets_are_told_apart_on_request() -> None:
    text = '<|tool_call>call:f{a:<|"|>x<|"|>}<tool_call|>'
    assert parse_output(text).calls == parse_output(text, tokens=GEMMA4).calls == [FunctionCall("f", {"a": "x"})]
    assert parse_output(text, tokens=FUNCTIONGEMMA).content == text


def test_strict_parser_reads_blocks_white_space_and_the_first_of_two_keys() -> None:
    text = f"{call('call:a { x : 1 , x : 2 }')} \n{call('call:b')}"
    assert parse_expression(text) == [FunctionCall("a", {"x": 1}), FunctionCall("b", {})]


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("call:f{x:1,}", 11),
        ("call:f{x:007}", 9),
        ("call:f{x:Paris}", 9),
        ('call:f{x:"Paris"}', 9),
        ("call:{x:1}", 5),
        ("call:f{1}", 7),
        ("call:f{x:1e999}", 9),
        ("call:f{x:" + "9" * 5000 + "}", 9),
        ("call:f{x:.5}", 9),
        ("call:f{x:+5}", 9),
        ("call:f{x 1}", 9),
        ("call:f{} and", 9),
        ("<start_function_call>call:f{}", 29),
    ],
)
def test_strict_parser_says_where_it_stopped(text: str, position: int) -> None:
    with pytest.raises(ValueError, match=f"at position {position}$") as error:
        parse_expression(text)
    assert error.value.position == position  # type: ignore[attr-defined]


def test_keys_between_quotation_marks_are_read_and_told() -> None:
    parsed = parse_output('<start_function_call>call:f{"city": "Paris", "n": 2}<end_function_call>')
    assert [call.arguments for call in parsed.calls] == [{"city": "Paris", "n": 2}]
    assert not any(problem.is_loss for problem in parsed.problems)
    assert parsed.problems
