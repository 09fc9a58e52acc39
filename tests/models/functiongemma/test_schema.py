from __future__ import annotations

from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.functiongemma import (
    coerce_arguments,
    declaration_from_function,
    format_value,
    grammar,
    parse_output,
    render_declaration,
)

DAY = {"type": "object", "properties": {"week": {"type": "integer"}, "next": {"$ref": "#/$defs/Day"}}}
DAYS = {"$defs": {"Day": DAY}}


@pytest.mark.parametrize(
    ("schema", "value", "fitted"),
    [
        ({"type": "integer"}, " 42 ", 42),
        ({"type": "integer"}, "5.0", 5),
        ({"type": "integer"}, "9007199254740993", 9007199254740993),
        ({"type": "INTEGER"}, "-7", -7),
        ({"type": "number"}, "1.5", 1.5),
        ({"type": "number"}, "42", 42),
        ({"type": "string"}, 42, "42"),
        ({"type": "string"}, True, "true"),
        ({"type": "string"}, "0049", "0049"),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "array", "items": {"type": "integer"}}, ["1", 2], [1, 2]),
        ({"type": "array"}, "x", ["x"]),
        ({"type": ["integer", "string"]}, "x", "x"),
        ({"type": ["integer", "string"]}, "7", "7"),
        ({"type": ["integer", "null"]}, None, None),
        ({"type": "integer", "nullable": True}, None, None),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3),
        ({"type": "string", "enum": ["celsius", "fahrenheit"]}, "Celsius", "celsius"),
        ({"type": "integer", "enum": [1, 2]}, "2", 2),
        ({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "1", "m": 2}, {"n": 1}),
        ({"type": "object"}, {"n": "1"}, {"n": "1"}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"n": "1"}, {"n": 1}),
        ({}, {"any": [1, None]}, {"any": [1, None]}),
    ],
)
def test_value_is_brought_to_its_type(schema: dict[str, Any], value: Any, fitted: Any) -> None:
    found = coerce_arguments({"a": value}, {"type": "object", "properties": {"a": schema}, "required": ["a"]})["a"]
    assert (found, type(found)) == (fitted, type(fitted))


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer"}, "forty"),
        ({"type": "integer"}, 1.5),
        ({"type": "integer"}, True),
        ({"type": "integer"}, ""),
        ({"type": "integer"}, "9" * 2000),
        ({"type": "integer"}, None),
        ({"type": "number"}, "1e999"),
        ({"type": "boolean"}, 1),
        ({"type": "string"}, ["x"]),
        ({"type": "array", "items": {"type": "integer"}}, ["x"]),
        ({"type": "object"}, "x"),
        ({"type": "object", "required": ["n"], "properties": {"n": {}}}, {}),
        ({"anyOf": [{"type": "integer"}, {"type": "boolean"}]}, "x"),
        ({"type": "integer", "minimum": 1, "maximum": 5}, "6"),
        ({"type": "string", "enum": ["a", "A"]}, "á"),
        ({"const": "b"}, "c"),
        ({"type": "number", "exclusiveMinimum": 0}, 0),
        ({"type": "integer", "maximum": 0}, 1),
        ({"type": "string", "pattern": "^[0-9]{5}$"}, "1234"),
        ({"type": "string", "minLength": 2}, "x"),
        ({"type": "array", "maxItems": 1}, [1, 2]),
        ({"$ref": "#/$defs/Day"}, "Monday"),
    ],
)
def test_value_that_does_not_fit_is_refused_by_name(schema: dict[str, Any], value: Any) -> None:
    with pytest.raises(ValueError, match="a"):
        coerce_arguments({"a": value}, {**DAYS, "type": "object", "properties": {"a": schema}, "required": ["a"]})


@pytest.mark.parametrize(
    ("schema", "value", "fitted"),
    [
        ({"$ref": "#/$defs/Day"}, {"week": "3"}, {"week": 3}),
        ({"anyOf": [{"$ref": "#/$defs/Day"}, {"type": "null"}]}, {"week": "3"}, {"week": 3}),
        ({"allOf": [{"$ref": "#/$defs/Day"}], "description": "When"}, {"week": "3"}, {"week": 3}),
        ({"$ref": "#/$defs/Day"}, {"week": 3, "next": {"next": {"week": "x"}}}, None),
        ({"$ref": "#/$defs/None"}, [1], [1]),
        ({"const": 7}, "7", 7),
        ({"type": "string", "pattern": "(?<broken"}, "x", "x"),
    ],
)
def test_references_are_followed(schema: dict[str, Any], value: Any, fitted: Any) -> None:
    whole = {**DAYS, "type": "object", "properties": {"a": schema}}
    found = coerce_arguments({"a": value}, whole)["a"]
    assert found == (value if fitted is None else fitted)
    assert render_declaration({"name": "f", "parameters": whole}).startswith("declaration:f{")
    assert grammar([{"name": "f", "parameters": whole}])


def test_place_of_what_does_not_fit_is_named() -> None:
    schema = {"a": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}}}
    with pytest.raises(ValueError, match=r"^a\[1\]\.n: expected an integer, got 'x'$"):
        coerce_arguments({"a": [{"n": 1}, {"n": "x"}]}, schema)


KEYWORDS = [
    *("type", "properties", "items", "required", "enum", "minimum", "maxLength", "anyOf", "oneOf", "allOf"),
    *("nullable", "additionalProperties", "const", "pattern", "$ref", "$defs"),
]
PLAIN = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["string", "object", "array", "a", "#/$defs/a"])
)
ODD_SCHEMAS = st.dictionaries(
    st.sampled_from([*KEYWORDS, "a"]),
    st.recursive(
        PLAIN,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*KEYWORDS, "a"]), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=3,
)


@given(ODD_SCHEMAS, st.dictionaries(st.just("a"), PLAIN | st.lists(PLAIN) | st.dictionaries(st.just("a"), PLAIN)))
def test_schemas_that_are_none_do_no_harm(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    tool = {"name": "f", "parameters": {"type": "object", "properties": {"a": schema}, **schema}}
    assert parse_output(f"<start_function_call>call:f{format_value(arguments)}<end_function_call>", [tool])
    assert render_declaration(tool)
    assert grammar([tool])


def test_missing_argument_is_named() -> None:
    with pytest.raises(ValueError, match="the call needs day"):
        coerce_arguments({}, {"type": "object", "properties": {"day": {}}, "required": ["day"]})


def test_arguments_that_the_function_does_not_have_are_left_out() -> None:
    assert coerce_arguments({"a": 1, "b": 2}, {"a": {"type": "integer"}}) == {"a": 1}
    assert coerce_arguments({"b": 2}, {"type": "object"}) == {}
    assert coerce_arguments({"b": 2}, {"type": "object", "additionalProperties": True}) == {"b": 2}


def test_properties_may_have_the_names_of_keywords() -> None:
    assert coerce_arguments({"type": "x", "b": 1}, {"type": {"type": "string"}}) == {"type": "x"}


@given(
    st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.lists(st.booleans())),
    st.sampled_from(["string", "integer", "number", "boolean", "array", "object", "null", "unknown"]),
)
def test_only_value_errors_are_raised(arguments: dict[str, Any], kind: str) -> None:
    try:
        coerce_arguments(arguments, {name: {"type": kind} for name in arguments})
    except ValueError as error:
        assert str(error)  # noqa: PT017


class Config:
    pass


def every_type(
    text: str,
    number: float,
    flag: bool,
    days: list[Literal["mon", "tue"]],
    config: Config,
    note: str | None = None,
    either: int | str = 1,
    extra: dict[str, int] | None = None,
) -> None:
    """Does everything.

    And more.

    Args:
        text: A text
            on two lines: really.
        number (float): A number.
        flag: A flag.
        days: Days.
        config: A Config object
        note: A note.
        either: One or the other.
        extra: More.

    Returns:
        Nothing: at all.
    """


def test_hints_become_types() -> None:
    function = declaration_from_function(every_type)["function"]
    assert function["description"] == "Does everything.\n\nAnd more."
    assert function["parameters"]["required"] == ["text", "number", "flag", "days", "config"]
    assert function["parameters"]["properties"] == {
        "text": {"type": "string", "description": "A text on two lines: really."},
        "number": {"type": "number", "description": "A number."},
        "flag": {"type": "boolean", "description": "A flag."},
        "days": {"type": "array", "items": {"type": "string", "enum": ["mon", "tue"]}, "description": "Days."},
        "config": {"type": "object", "description": "A Config object"},
        "note": {"type": "string", "nullable": True, "description": "A note."},
        "either": {"type": ["integer", "string"], "description": "One or the other."},
        "extra": {
            "type": "object",
            "additionalProperties": {"type": "integer"},
            "nullable": True,
            "description": "More.",
        },
    }


def no_docstring(a: int) -> None: ...


def no_type(a) -> None:  # type: ignore[no-untyped-def]
    """Does.

    Args:
        a: It.
    """


def no_description(a: int) -> None:
    """Does."""


def bad_choices(a: str) -> None:
    """Does.

    Args:
        a: It. (choices: [x])
    """


@pytest.mark.parametrize("function", [no_docstring, no_type, no_description, bad_choices])
def test_function_that_says_too_little_is_refused(function: Any) -> None:
    with pytest.raises(ValueError, match=r"docstring|type|description|choices"):
        declaration_from_function(function)


def test_function_without_arguments_needs_none() -> None:
    def now() -> str:
        """Tells the time."""
        return ""

    assert declaration_from_function(now)["function"]["parameters"] == {"type": "object", "properties": {}}


def one_line_sections(number: int) -> None:
    """Counts.

    Args:
        number: How many
    Returns: nothing
    """


def test_section_on_one_line_is_no_argument() -> None:
    parameters = declaration_from_function(one_line_sections)["function"]["parameters"]
    assert parameters["properties"] == {"number": {"type": "integer", "description": "How many"}}
