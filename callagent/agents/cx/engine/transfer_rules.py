"""Rules of who may be given the conversation: some fire by themselves, some take a target from the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from callagent.agents.cx.cel import Expression
from callagent.agents.cx.format import AgentConfig, Code, CxApp
from callagent.log import get_logger

log = get_logger(__name__)
_TO_CHILD, _TO_PARENT = "PARENT_TO_CHILD", "CHILD_TO_PARENT"


@dataclass(frozen=True, slots=True)
class Rule:
    target: str
    expression: str = ""
    code: Code | None = None

    def holds(self, variables: Mapping[str, Any]) -> bool:
        return bool(self.expression) and _holds(self.expression, variables)


def rules_of(app: CxApp, agent: AgentConfig, parent: str) -> list[Rule]:
    """The deterministic rules that lead away from an agent, in order."""
    found = []
    for index, given, target in _rules(app, agent, parent):
        fires = given.get("deterministicTransfer")
        if isinstance(fires, Mapping):
            expression = expression_of(fires)
            found.append(Rule(target, expression, agent.conditions.get(index)))
    return found


def planner_targets(app: CxApp, agent: AgentConfig, parent: str, variables: Mapping[str, Any]) -> list[str]:
    """Whom the model may give the conversation to now."""
    closed = {
        target
        for _, given, target in _rules(app, agent, parent)
        if given.get("disablePlannerTransfer") is not None and _is_closed(given["disablePlannerTransfer"], variables)
    }
    targets = [name for each in agent.children if (name := app.agent_named(each))]
    return [name for name in (*targets, *([parent] if parent else [])) if name not in closed]


def expression_of(condition: Any) -> str:
    """Of a rule's condition; empty: it has none."""
    own = condition.get("expressionCondition") if isinstance(condition, Mapping) else None
    return str(own.get("expression") or "") if isinstance(own, Mapping) else ""


def _is_closed(condition: Any, variables: Mapping[str, Any]) -> bool:
    """A rule without a condition holds always."""
    expression = expression_of(condition)
    return not expression or _holds(expression, variables)


def _holds(text: str, variables: Mapping[str, Any]) -> bool:
    """Whether an expression is true; one that cannot be worked out is not. Variables of some apps are texts."""
    names = {**variables, "variables": variables, "state": variables, "context": {"variables": variables}}
    try:
        value = _expression(text).value(names)
        return value is True or value == "true"
    except ValueError as error:
        log.warning("transfer_rule_failed", expression=text, error=str(error))
        return False


@lru_cache(maxsize=1000)
def _expression(text: str) -> Expression:
    return Expression(text)


def _rules(app: CxApp, agent: AgentConfig, parent: str) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    for index, given in enumerate(agent.data.get("transferRules") or ()):
        direction = given.get("direction") or _TO_CHILD
        named = parent if direction == _TO_PARENT else app.agent_named(str(given.get("childAgent") or ""))
        if named:
            yield index, given, named
