"""Conditions of transfer rules."""

from __future__ import annotations

import time
from typing import Any

import pytest

from callagent.agents.cx.expression import Expression

NAMES = {"variables": {"age": 17, "name": "Ada", "tags": ["a", "b"], "late": True, "none": None}, "x": 2.5}


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
        ("true == 1", False),
        ("string(true) + string(1)", "true1"),
        (r"""'a\tb' == "a\u0009b" && r'a\d' != 'ad' && '\'' == "'" """, True),
        ("matches(variables.name, 'd') && ' x '.trim() == 'x'", True),
        ("!!variables.late && --1 == 1", True),
        ("1e3 == 1000.0", True),
    ],
)
def test_values(text: str, value: Any) -> None:
    assert Expression(text).value(NAMES) == value


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
        "timestamp('x')",
        "(" * 200,
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
    ["'a' < 1", "variables.missing == 1 || false", "variables.tags[7]", "1 / 0", "'x'.matches('(')", "x.all(y, y)"],
)
def test_what_cannot_be_worked_out_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Expression(text).value(NAMES)


def test_a_pattern_that_takes_too_long_holds_nothing_up() -> None:
    began = time.monotonic()
    assert (
        Expression("('a' + variables.name).matches('^(a+)+$')").value({"variables": {"name": "a" * 40 + "b"}}) is False
    )
    assert time.monotonic() - began < 1.0
