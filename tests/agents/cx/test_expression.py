"""Conditions of transfer rules."""

from __future__ import annotations

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
        ("variables.missing == 1 || true", None),
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
    ],
)
def test_values(text: str, value: Any) -> None:
    if value is None:
        with pytest.raises(ValueError, match="there is no 'missing'"):
            Expression(text).value(NAMES)
    else:
        assert Expression(text).value(NAMES) == value


@pytest.mark.parametrize("text", ["", "1 +", "(1", "variables.", "1 2", "name ;", "foo(1)", "'a' < 1", "(" * 200])
def test_what_cannot_be_read_or_worked_out_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Expression(text).value({"name": 1, **NAMES})
