"""Variables, references and conditional parts in instructions, in every form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import read_cx_app
from callagent.agents.cx.engine.instruction import condition_problems, other_tag_lines, render_instruction, select_parts
from tests.agents.cx.support import driven, write_app

VARIABLES: dict[str, Any] = {
    "text": "Ada",
    "number": 2.5,
    "yes": True,
    "list": [1, "b"],
    "map": {"a": {"b": None}},
    "none": None,
    "telephony-caller-id": "+4930555",
}


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("{{text}} {{ number }}", "Ada 2.5"),
        ("{{yes}} {{list}}", 'true [1, "b"]'),
        ("{{map}}{{none}}", '{"a": {"b": null}}'),
        ("{{telephony-caller-id}}", "+4930555"),
        ("{{unknown}} {text} {unknown}", "{{unknown}} {text} {unknown}"),
        ("{% if yes %}A{{text}}{% else %}B{% endif %}", "AAda"),
        ("{% if number > 2 and not none %}more{% endif %}.", "more."),
        ("{% if text and list %}{% if map %}deep{% endif %}{% endif %}", "deep"),
        ("{@TOOL: Look Up} {@tool:look_up} {@TOOL: lost}", "look_up look_up lost"),
        ("{@AGENT: The Other} {@AGENT: other}", "other other"),
        ("{@Widget: Map}", "Map"),
        ('{"json": {"a": 1}}', '{"json": {"a": 1}}'),
    ],
)
def test_forms(written: str, shown: str, tmp_path: Path) -> None:
    tool = {"displayName": "Look Up", "clientFunction": {"name": "look_up"}}
    more = {
        "agents/other/other.json": '{"displayName": "The Other"}',
        "tools/look_up/look_up.json": json.dumps(tool),
        "global.txt": "Everywhere {{text}}.",
    }
    app = write_app(tmp_path, app={"globalInstruction": "global.txt"}, instruction=written, more=more)
    assert render_instruction(read_cx_app(app), "desk", VARIABLES) == f"Everywhere Ada.\n\n{shown}"


async def test_a_changed_variable_is_told_once_and_only_where_the_instruction_refers_to_it(tmp_path: Path) -> None:
    app = write_app(tmp_path, instruction="Call {who} by {telephony-caller-id}; static {{plan}}.")
    entries = [{"text": "A."}, {"text": "B."}, {"text": "C."}]
    variables = {"who": "Ada", "plan": "Gold", "other": 1}
    async with driven(app, *entries, variables=variables, caller="+4930555") as agent:
        await agent.says("One.")
        agent.agent.set_variables({"plan": "Blue", "other": 2})
        await agent.says("Two.")
        assert "static Blue." in agent.model.system()
        agent.agent.set_variables({"who": {"first": "Eve"}})
        await agent.says("Three.")
        told = [each["content"] for each in agent.model.messages() if each["role"] == "user"]
        assert told == [
            "One.\n<state_update>who: Ada</state_update>\n<state_update>telephony-caller-id: +4930555</state_update>",
            "Two.",
            'Three.\n<state_update>who: {"first": "Eve"}</state_update>',
        ]
        assert agent.model.system().startswith("Call {who} by {telephony-caller-id};")


def test_variables_have_their_types(tmp_path: Path) -> None:
    kinds = ["STRING", "BOOLEAN", "INTEGER", "NUMBER", "OBJECT", "ARRAY"]
    given: list[dict[str, Any]] = [{"name": kind.lower(), "schema": {"type": kind}} for kind in kinds]
    given.append({"name": "set", "schema": {"type": "NUMBER", "default": 7}})
    app = read_cx_app(write_app(tmp_path, app={"variableDeclarations": given}))
    assert app.variables == {
        "string": "", "boolean": False, "integer": 0, "number": 0.0, "object": {}, "array": [], "set": 7
    }  # fmt: skip


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
