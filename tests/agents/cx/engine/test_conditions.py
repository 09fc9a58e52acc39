"""Parts of an instruction that hold for this call."""

from __future__ import annotations

from typing import Any

import pytest

from callagent.agents.cx.engine.instruction import condition_problems, other_tag_lines, select_parts

TEXT = """Hello.
{% if vip and level > 2 %}
Be kind.
{% elif name == 'and' %}
Be odd.
{% if not vip %}Twice.{% endif %}
{% else %}
Be brief.
{% endif %}
Bye."""


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"vip": True, "level": 3, "name": ""}, "Hello.\nBe kind.\nBye."),
        ({"vip": True, "level": 1, "name": "x"}, "Hello.\nBe brief.\nBye."),
        ({"vip": False, "level": 1, "name": "and"}, "Hello.\nBe odd.\nTwice.\nBye."),
        ({}, "Hello.\nBe brief.\nBye."),
    ],
)
def test_the_first_part_that_holds_is_shown(variables: dict[str, Any], expected: str) -> None:
    shown = select_parts(TEXT, variables)
    assert "\n".join(line for line in shown.splitlines() if line) == expected


@pytest.mark.parametrize(("value", "shown"), [("yes", "A"), ("", ""), ("false", ""), (0, ""), (None, ""), ([1], "A")])
def test_a_value_alone_is_a_condition(value: Any, shown: str) -> None:
    assert select_parts("{%- if flag -%}A{%- endif -%}", {"flag": value}) == shown


@pytest.mark.parametrize("text", ["{% if a %}x", "x{% endif %}", "{% else %}", "{% if a === b %}x{% endif %}"])
def test_what_cannot_be_worked_out_is_told_and_left(text: str) -> None:
    assert [line for line, _ in condition_problems(f"\n{text}")] == [2]
    assert select_parts(text, {"a": True}) == text


def test_other_tags_are_found() -> None:
    assert other_tag_lines("{% if a %}\n{% for b in c %}{% endif %}\n{% set d = 1 %}") == [2, 3]
