from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callagent.models.functiongemma import FUNCTIONGEMMA, GEMMA4, format_value, grammar, parse_output
from tests.models.functiongemma.gbnf_matcher import Grammar

START, END, STOP = "<start_function_call>", "<end_function_call>", "<start_function_response>"


def tool(properties: dict[str, Any], required: list[str] | None = None, name: str = "f") -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": required or []}}


def written(arguments: str, name: str = "f") -> str:
    return f"{START}call:{name}{arguments}{END}{STOP}"


def accepted(schema: dict[str, Any], value: str) -> bool:
    return Grammar.parse(grammar([tool({"a": schema}, ["a"])])).accepts(written(f"{{a:{value}}}"))


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string"}, ["<escape><escape>", "<escape>a < b, {c}<escape>"], ["x", "1", "<escape>x"]),
        ({"type": "string"}, ["<escape><start<start_<escape>"], [f"<escape>{END}<escape>", "<escape><eos><escape>"]),
        ({"type": "STRING"}, ["<escape>x<escape>"], ["1"]),
        ({"type": "integer"}, ["0", "-12"], ["007", "1.5", "1e3", "<escape>1<escape>"]),
        ({"type": "number"}, ["0", "-1.5", "1e+3"], ["1.", ".5", "true"]),
        ({"type": "boolean"}, ["true", "false"], ["null", "True"]),
        (
            {"type": "string", "enum": ['a"b\\', "c"]},
            ['<escape>a"b\\<escape>', "<escape>c<escape>"],
            ["<escape>d<escape>"],
        ),
        ({"enum": ["\\b\n\x00é"]}, ["<escape>\\b\n\x00é<escape>"], ["<escape>\x08\n\x00é<escape>"]),
        ({"enum": [1, True, None]}, ["1", "true", "null"], ["2", "<escape>1<escape>"]),
        ({"type": ["string", "null"]}, ["null", "<escape>x<escape>"], ["1"]),
        ({"type": "integer", "nullable": True}, ["null", "1"], ["true"]),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}]}, ["1", "[]", "[1,<escape>x<escape>]"], ["true"]),
        ({"type": "array", "items": {"type": "integer"}}, ["[]", "[1,2]"], ["[true]", "[1,]", "1"]),
        ({"type": "object"}, ["{}", "{b:{c:[null]}}"], ["[]", "{b}"]),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, ["{}", "{b:1,c:2}"], ["{b:true}"]),
        ({"type": "object", "properties": {"b": {"type": "null"}}}, ["{}", "{b:null}"], ["{c:1}", "{b:1}"]),
        ({}, ["1", "null", "[{a:true}]", "<escape>x<escape>"], ["x"]),
    ],
)
def test_value_is_of_its_type(schema: dict[str, Any], good: list[str], bad: list[str]) -> None:
    assert [value for value in good if not accepted(schema, value)] == []
    assert [value for value in bad if accepted(schema, value)] == []


def test_call_ends_in_the_response_token_and_nothing_else() -> None:
    rules = Grammar.parse(grammar([tool({}), tool({}, name="g.h-1")]))
    assert rules.accepts(written("{}"))
    assert rules.accepts(f"{START}call:f{{}}{END}{written('{}', 'g.h-1')}")
    for text in (f"{START}call:f{{}}{END}", written("{}") + " ", written("{}", "fg"), written(""), ""):
        assert not rules.accepts(text)


def test_required_arguments_come_first_in_declared_order_then_optional_ones_in_any() -> None:
    number = {"type": "integer"}
    rules = Grammar.parse(grammar([tool({"a": number, "b": number, "c": number, "d": number}, ["c", "a"])]))
    for arguments in ("{c:1,a:2}", "{c:1,a:2,d:3,b:4}", "{c:1,a:2,b:4}"):
        assert rules.accepts(written(arguments))
    for arguments in ("{a:1,c:2}", "{c:1}", "{b:1,c:2,a:3}", "{}", "{c:1,a:2,}", "{c:1,a:2,e:3}"):
        assert not rules.accepts(written(arguments))


def test_words_may_stand_before_calls_or_alone() -> None:
    rules = Grammar.parse(grammar([tool({})], mode="both"))
    for text in ("", "Hello <b>you</b>.", f"Let me see. {written('{}')}", written("{}")):
        assert rules.accepts(text)
    for text in (f"{written('{}')}Done.", "a<end_of_turn>", f"x{START}"):
        assert not rules.accepts(text)


def test_other_token_set_has_its_own_strings() -> None:
    rules = Grammar.parse(grammar([tool({"a": {"type": "string"}}, ["a"])], tokens=GEMMA4))
    assert rules.accepts('<|tool_call>call:f{a:<|"|>x < <|y<|"|>}<tool_call|><|tool_response>')
    assert not rules.accepts('<|tool_call>call:f{a:<|"|><tool_call|><|"|>}<tool_call|><|tool_response>')


def test_names_that_are_no_identifiers_are_written_as_strings() -> None:
    rules = Grammar.parse(grammar([tool({"two words": {"type": "integer"}}, ["two words"])]))
    assert rules.accepts(written("{<escape>two words<escape>:1}"))


SCHEMAS = st.sampled_from(
    [
        ({"type": "string"}, st.text()),
        ({"type": "integer"}, st.integers()),
        ({"type": "number"}, st.integers() | st.floats(allow_nan=False, allow_infinity=False)),
        ({"type": "boolean"}, st.booleans()),
        ({"type": "array", "items": {"type": "string"}}, st.lists(st.text(), max_size=3)),
        ({"type": ["integer", "null"]}, st.none() | st.integers()),
        ({"type": "string", "enum": ["on", "off"]}, st.sampled_from(["on", "off"])),
    ]
)


@settings(max_examples=50)
@given(st.lists(SCHEMAS, max_size=4), st.data())
def test_every_valid_call_is_allowed_and_parsed(fields: list[Any], data: st.DataObject) -> None:
    described = tool({f"p{n}": schema for n, (schema, _) in enumerate(fields)}, [f"p{n}" for n in range(len(fields))])
    arguments = {f"p{n}": data.draw(values) for n, (_, values) in enumerate(fields)}
    text = written(format_value(arguments))
    assert Grammar.parse(grammar([described])).accepts(text)
    [call] = parse_output(text, [described]).calls
    assert set(call.arguments) == set(arguments)


def test_a_step_with_ten_functions_has_a_grammar_of_moderate_size() -> None:
    tools = [tool({"a": {"type": "string"}, "b": {"type": "integer"}}, ["a"], name=f"f{n}") for n in range(10)]
    assert len(grammar(tools)) < 16_000
    assert FUNCTIONGEMMA.start_call in grammar(tools)


@pytest.mark.parametrize("count", [1, 3, 5, 7])
@pytest.mark.parametrize("required", [[], ["r"]])
def test_optional_arguments_come_in_any_order_and_not_without_end(count: int, required: list[str]) -> None:
    names = "abcdefg"[:count]
    rules = Grammar.parse(grammar([tool({name: {"type": "integer"} for name in [*names, *required]}, required)]))

    def allowed(chosen: str) -> bool:
        return rules.accepts(written(f"{{{','.join(f'{name}:1' for name in [*required, *chosen])}}}"))

    assert all(allowed("".join(chosen)) for chosen in [(), *permutations(names, 1), *permutations(names, count)][:99])
    assert not allowed(names + "a")
    # Up to five, none twice.
    assert not (count <= 5 and allowed("aa"))
