"""Conditions of transfer rules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.agents.cx.cel import Expression
from tests.processor_time import processor_seconds

VARIABLES: dict[str, Any] = {"age": 17, "name": "Ada", "tags": ["a", "b"], "late": True, "none": None}
NAMES: dict[str, Any] = {"variables": VARIABLES, "x": 2.5}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("variables.age >= 17 && variables.late", True),
        ("variables.age > 17 || variables.name == 'Ada'", True),
        ("!variables.late", False),
        ("variables.missing == 1 || true", True),
        ("variables.missing == 1 && false", False),
        ("false && variables.missing == 1", False),
        ("true || variables.missing == 1", True),
        ("'b' in variables.tags", True),
        ("variables['name'].startsWith(\"A\")", True),
        ("size(variables.tags) + 1 == 3", True),
        ("variables.tags.size() * 2 - 1", 3),
        ("has(variables.missing) ? 1 : 2", 2),
        ("has(variables.none)", False),
        ("variables.name.matches('^A.a$')", True),
        ("-x + 3 < 1", True),
        ("variables.name in ['Ada', \"Eve\"]", True),
        ("int('4') % 3 == 1 && (x != 2.0)", True),
        ("variables.none == null", True),
        ("variables.tags.exists(tag, tag == 'b')", True),
        ("variables.tags.all(tag, size(tag) == 1 && tag != variables.name)", True),
        ("variables.tags.exists_one(tag, tag > 'a')", True),
        ("variables.tags.filter(tag, tag != 'a')", ["b"]),
        ("variables.tags.map(tag, tag + '!')", ["a!", "b!"]),
        ("variables.tags.map(tag, tag == 'a', tag + '!')", ["a!"]),
        ("{'k': 1}.k + 0x10 + 2u", 19),
        ("-7 / 2 == -3 && -7 % 2 == -1 && 7.0 / 2.0 == 3.5", True),
        ("7 % -2 == 1 && -7 % -2 == -1 && -6 % 3 == 0 && 7.0 % 2 == 1", True),
        ("9007199254740993 % 2", 1),
        ("9223372036854775807 % 10", 7),
        ("-9223372036854775807 % 10", -7),
        ("18446744073709551615u % 10u", 5),
        ("-9223372036854775808 % 2", 0),
        ("true == 1", False),
        ("string(true) + string(1)", "true1"),
        (r"""'a\tb' == "a\u0009b" && r'a\d' != 'ad' && '\'' == "'" """, True),
        ("matches(variables.name, 'd') && ' x '.trim() == 'x'", True),
        ("!!variables.late && --1 == 1", True),
        ("1e3 == 1000.0", True),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert Expression(text).evaluate(NAMES) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1 +",
        "(1",
        "variables.",
        "1 2",
        "name ;",
        "foo(1)",
        "timestamp()",
        "true || timestamp('tomorrow') < x",
        "duration('1d') == x",
        "duration('1s', 2)",
        "x.getHours('UTC', 1)",
        "(" * 200,
        "[" * 5000,
        "1 ? 1 : " * 5000 + "1",
        "x.f(" * 2000,
        "1 + " * 10_000 + "1",
        "size()",
        "x.all(y)",
        "{1}",
    ],
)
def test_what_cannot_be_read_is_told_without_values(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Expression(text)


@pytest.mark.parametrize(
    "text",
    [
        "'a' * 1000000000",
        "[1] * 1000000000",
        "'a' < 1",
        "variables.missing == 1 || false",
        "variables.tags[7]",
        "1 / 0",
        "1 % 0",
        "1.0 % 0.0",
        "-9223372036854775808 % -1",
        "'x'.matches('(')",
        "x.all(y, y)",
    ],
)
def test_what_cannot_be_worked_out_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Expression(text).evaluate(NAMES)


def test_a_pattern_that_takes_too_long_holds_nothing_up() -> None:
    expression, names = Expression("('a' + variables.name).matches('^(a+)+$')"), {"variables": {"name": "a" * 40 + "b"}}
    assert expression.evaluate(names) is False
    assert processor_seconds(lambda: expression.evaluate(names), 1.0) < 1.0


SIGNS = "( ) [ ] { } . , ? : ! - + * / % < > == != <= >= && || in"
PLAIN = (
    "x tags variables name none true false null 0 1 7u 2.5 1e308 0x7f 'a' '(a+)+$' '2009-02-13T23:31:30Z' '1h30m' 'UTC'"
)
FUNCTIONS = "has size int uint double string bool timestamp duration"
METHODS = "getHours( matches( contains( startsWith( map(t, all(t, exists_one(t,"
OPENED = [f"{each}(" for each in FUNCTIONS.split()] + [f".{each}" for each in METHODS.split()]
WORDS = st.sampled_from([*SIGNS.split(), *PLAIN.split(), *OPENED])


def only_value_errors(text: str) -> None:
    """Read, and worked out where it can be read; anything but ValueError fails the test."""

    def work() -> None:
        try:
            Expression(text).evaluate({**NAMES, **VARIABLES})
        except ValueError as error:
            assert str(error)  # noqa: PT017 - not every text is wrong

    assert processor_seconds(work, 1.0) < 1.0


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(text: str) -> None:
    only_value_errors(text)


@given(st.lists(WORDS, max_size=40).map(" ".join))
def test_any_words_are_read_or_refused(text: str) -> None:
    only_value_errors(text)


@pytest.mark.parametrize("count", [100, 1000, 6000])
@pytest.mark.parametrize(
    ("before", "each", "after"),
    [("1", "+1", ""), ("", "!", "true"), ("", "-", "1"), ("x", ".x", ""), ("tags", "[0]", ""), ("", "(", "")],
)
def test_a_long_row_of_anything_is_worked_out_or_refused(before: str, each: str, after: str, count: int) -> None:
    only_value_errors(before + each * count + after)


def test_a_chain_of_macros_ends() -> None:
    text = "tags"
    for name in "abcdefgh":
        text = f"[1,2,3,4,5,6,7,8].map({name}, {text})"

    def work() -> None:
        with pytest.raises(ValueError, match="goes through more than 2000 items"):
            Expression(text).evaluate(VARIABLES)

    assert processor_seconds(work, 0.5) < 0.5
