from __future__ import annotations

from typing import Any

import pytest

from callagent.agents.flows.runtime.function_calls import bind


def function(conv: Any, flow: Any, text: str, whole: int, number: float, flag: bool, anything: Any = None) -> None:
    """As a project would write it."""


@pytest.mark.parametrize(
    ("name", "given", "bound"),
    [
        ("text", "a", "a"),
        ("text", 5, "5"),
        ("text", True, "true"),
        ("whole", 3, 3),
        ("whole", "3", 3),
        ("whole", " 3 ", 3),
        ("whole", "3.0", 3),
        ("whole", 3.0, 3),
        ("whole", True, 1),
        ("number", "3.5", 3.5),
        ("number", 3, 3.0),
        ("flag", "true", True),
        ("flag", "No", False),
        ("flag", 1, True),
        ("flag", False, False),
    ],
)
def test_arguments_are_coerced(name: str, given: Any, bound: Any) -> None:
    result, _ = bind(function, {name: given})
    assert result[name] == bound
    assert type(result[name]) is type(bound)


@pytest.mark.parametrize(
    ("name", "given"), [("whole", "three"), ("whole", 3.5), ("whole", [3]), ("number", "x"), ("flag", "maybe")]
)
def test_what_cannot_be_coerced_is_passed_as_it_is_with_a_remark(name: str, given: Any) -> None:
    result, remarks = bind(function, {name: given})
    assert result[name] == given
    assert any(f"argument '{name}' should be of type" in remark for remark in remarks)


def test_missing_arguments_are_empty() -> None:
    result, remarks = bind(function, {"text": None, "unknown": 1})
    assert result == {"text": "", "whole": None, "number": None, "flag": None}
    assert "argument 'whole' is missing" in remarks
    assert "argument 'unknown' is not a parameter of the function" in remarks
