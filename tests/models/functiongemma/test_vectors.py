"""The published behaviour of the format, group by group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from callagent.models.functiongemma import (
    FUNCTIONGEMMA,
    StreamParser,
    coerce_arguments,
    declaration_from_function,
    format_value,
    grammar,
    parse_expression,
    parse_output,
    render_declaration,
    render_prompt,
)
from tests.models.functiongemma.gbnf_matcher import Grammar

VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text(encoding="utf-8"))


def vectors(group: str) -> Any:
    return pytest.mark.parametrize("vector", [pytest.param(each, id=each["id"]) for each in VECTORS[group]])


def in_chunks(chunks: list[str]) -> tuple[list[dict[str, Any]], str]:
    parser = StreamParser()
    deltas = [delta for chunk in chunks for delta in parser.feed(chunk)] + parser.finish()
    calls = [delta.tool_call for delta in deltas if delta.tool_call]
    return [plain(call) for call in calls], "".join(delta.text for delta in deltas)


def plain(call: Any) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def chunkings(text: str) -> Iterator[list[str]]:
    yield [text]
    yield list(text)
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]


def same(got: Any, expected: Any) -> bool:
    """Equal, and numbers of the same type."""
    return json.dumps(got) == json.dumps(expected)


@pytest.mark.parametrize(
    "vector",
    [pytest.param(each, id=each["id"]) for each in VECTORS["parse_output"] + VECTORS["gemma4_variant"]],
)
def test_output_is_parsed_the_same_however_it_arrives(vector: dict[str, Any]) -> None:
    expected = vector["expect"]
    parsed = parse_output(vector["text"])
    assert same([plain(call) for call in parsed.calls], expected["calls"])
    assert parsed.content == expected["content"]
    for chunks in chunkings(vector["text"]):
        calls, content = in_chunks(chunks)
        assert same(calls, expected["calls"]), chunks
        assert content == expected["content"], chunks


@vectors("parse_expression")
def test_expression_is_parsed(vector: dict[str, Any]) -> None:
    assert same([plain(call) for call in parse_expression(vector["expr"])], vector["expect"])


@vectors("parse_errors")
def test_expression_is_refused_with_a_position(vector: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"at position \d+"):
        parse_expression(vector["expr"])


@vectors("number_literals")
def test_number_keeps_its_type_and_value(vector: dict[str, Any]) -> None:
    [call] = parse_expression(f"call:f{{n:{vector['literal']}}}")
    assert json.dumps(call.arguments["n"]) == vector["json"]
    assert type(call.arguments["n"]).__name__ == vector["type"]


@vectors("format_value")
def test_value_is_written(vector: dict[str, Any]) -> None:
    if "expect" in vector:
        assert format_value(vector["value"]) == vector["expect"]
    else:
        inside = format_value(vector["value"]).removeprefix("<escape>").removesuffix("<escape>")
        assert not any(token in inside for token in FUNCTIONGEMMA.control)


@vectors("declarations")
def test_declaration_is_written(vector: dict[str, Any]) -> None:
    if "expect_error" in vector:
        with pytest.raises(ValueError, match="tool"):
            render_declaration(vector["tool"], order=vector["order"])
        return
    written = render_declaration(vector["tool"], order=vector["order"])
    if "expect" in vector:
        assert written == vector["expect"]
    places = [written.index(part) for part in vector.get("expect_order", [])]
    assert places == sorted(places)
    assert all(part in written for part in vector.get("expect_contains", []))


@vectors("render")
def test_conversation_is_written(vector: dict[str, Any]) -> None:
    tokens = replace(FUNCTIONGEMMA, bos=vector.get("bos", "<bos>"))
    generation_prompt = vector["add_generation_prompt"]
    prompt = render_prompt(vector["messages"], vector["tools"], tokens=tokens, generation_prompt=generation_prompt)
    assert prompt == vector["expect"]


@vectors("constrained_decoding")
def test_grammar_allows_what_the_functions_allow(vector: dict[str, Any]) -> None:
    if "expect_error" in vector:
        with pytest.raises(ValueError, match="no tools"):
            grammar(vector["tools"], mode=vector["mode"])
        return
    rules = Grammar.parse(grammar(vector["tools"], mode=vector["mode"]))
    for text in vector["accept"]:
        assert rules.accepts(text), text
    for text in vector["reject"]:
        assert not rules.accepts(text), text


@vectors("argument_coercion")
def test_arguments_are_brought_to_the_schemas_types(vector: dict[str, Any]) -> None:
    if "expect_error" in vector:
        with pytest.raises(ValueError, match="expected"):
            coerce_arguments(vector["arguments"], vector["schema"])
    else:
        assert same(coerce_arguments(vector["arguments"], vector["schema"]), vector["expect"])


@vectors("docstring_to_schema")
def test_function_becomes_a_tool(vector: dict[str, Any]) -> None:
    namespace: dict[str, Any] = {}
    exec(vector["python"], namespace)
    [function] = [each for each in namespace.values() if callable(each) and hasattr(each, "__code__")]
    assert declaration_from_function(function) == vector["expect"]
