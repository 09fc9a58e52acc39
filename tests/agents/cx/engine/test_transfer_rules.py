"""Who may be given the conversation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import check_cx_app
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import words

TRANSFER = {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "Billing"}}]}
BACK = {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "desk"}}]}


def app_with(root: Path, *rules: dict[str, Any], below: list[dict[str, Any]] | None = None, code: str = "") -> Path:
    """Rules of the desk, and of its child billing."""
    billing = {"displayName": "Billing", "instruction": "Know the bills.", "transferRules": below or []}
    more = {"agents/billing/billing.json": json.dumps(billing), "agents/desk/rule.py": code}
    return write_app(root, agent={"childAgents": ["Billing"], "transferRules": list(rules)}, more=more)


def when(expression: str) -> dict[str, Any]:
    return {"expressionCondition": {"expression": expression}}


def rule(kind: str, condition: Any, direction: str = "PARENT_TO_CHILD") -> dict[str, Any]:
    return {"childAgent": "Billing", "direction": direction, kind: condition}


@pytest.mark.parametrize(
    ("closed", "variables", "step"),
    [
        ({}, {}, "desk"),
        (when("!variables.known"), {"known": False}, "desk"),
        (when("!variables.known"), {"known": True}, "billing"),
        (when("variables.unknown > 1"), {}, "billing"),
    ],
)
async def test_a_target_is_closed_while_its_condition_holds(
    closed: Any, variables: dict[str, Any], step: str, tmp_path: Path
) -> None:
    app = app_with(tmp_path, rule("disablePlannerTransfer", closed))
    async with driven(app, TRANSFER, {"text": "Here I am."}, variables=variables) as agent:
        assert words(await agent.says("My bill.")) == ["Here I am."]
        assert agent.agent.record().step == step


@pytest.mark.parametrize("value", [True, "true"])
async def test_a_rule_fires_for_a_truth_that_is_a_text_too(value: Any, tmp_path: Path) -> None:
    app = app_with(tmp_path, rule("deterministicTransfer", when("variables.late")))
    async with driven(app, {"text": "You are late."}, variables={"late": value}) as agent:
        await agent.says("Hello.")
        assert agent.agent.record().step == "billing"


@pytest.mark.parametrize(("due", "step"), [("2026-11-30T22:00:00Z", "billing"), ("2026-12-09T22:00:00Z", "desk")])
async def test_a_rule_fires_by_the_calendar_and_check_knows_it(due: str, step: str, tmp_path: Path) -> None:
    early = "timestamp(variables.due) - duration('36h') < timestamp('2026-12-01T00:00:00Z')"
    app = app_with(tmp_path, rule("deterministicTransfer", when(f"{early} && duration('90m').getHours() == 1")))
    assert check_cx_app(app).errors == ()
    async with driven(app, {"text": "Yes?"}, variables={"due": due}) as agent:
        await agent.says("Hello.")
        assert agent.agent.record().step == step


async def test_python_decides_and_the_rule_of_the_child_leads_back(tmp_path: Path) -> None:
    code = "def condition(callback_context):\n    return callback_context.get_variable('topic') == 'bill'\n"
    python = {"pythonCodeCondition": {"pythonCode": "agents/desk/rule.py"}}
    back = rule("deterministicTransfer", when("topic == 'other'"), "CHILD_TO_PARENT")
    app = app_with(tmp_path, rule("deterministicTransfer", python), below=[back], code=code)
    async with driven(app, {"text": "A bill."}, {"text": "Anything."}, variables={"topic": "bill"}) as agent:
        assert words(await agent.says("Hello.")) == ["A bill."]
        assert agent.agent.record().step == "billing"
        agent.agent.set_variables({"topic": "other"})
        assert words(await agent.says("Hello.")) == ["Anything."]
        assert agent.agent.record().step == "desk"


async def test_two_rules_that_lead_to_each_other_end_the_turn_only(tmp_path: Path) -> None:
    there = rule("deterministicTransfer", when("true"))
    back = rule("deterministicTransfer", when("true"), "CHILD_TO_PARENT")
    async with driven(app_with(tmp_path, there, below=[back])) as agent:
        actions = await agent.says("Hello.")
        assert words(actions) == ["Sorry, I had a problem just now. Could you say that again, please?"]
        assert agent.model.requests == []


async def test_the_way_back_may_be_closed_for_the_model(tmp_path: Path) -> None:
    back = rule("disablePlannerTransfer", when("true"), "CHILD_TO_PARENT")
    async with driven(app_with(tmp_path, below=[back]), TRANSFER, BACK, {"text": "I stay."}) as agent:
        assert words(await agent.says("My bill.")) == ["I stay."]
        assert agent.agent.record().step == "billing"


def test_conditions_that_cannot_be_read_are_told(tmp_path: Path) -> None:
    rules = [rule("disablePlannerTransfer", when("a ==")), rule("deterministicTransfer", when("now()"))]
    told = [each.message for each in check_cx_app(app_with(tmp_path, *rules)).errors]
    assert told == ["'a ==': the expression ends too early", "'now()': there is no now()"]
