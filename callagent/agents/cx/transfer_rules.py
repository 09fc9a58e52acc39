"""Rules of who may be given the conversation: some fire by themselves, some take a target from the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from callagent.agents.cx.app import AgentConfig, Code, CxApp
from callagent.agents.cx.expression import Expression
from callagent.log import get_logger

log = get_logger(__name__)
_TO_CHILD, _TO_PARENT = "PARENT_TO_CHILD", "CHILD_TO_PARENT"


@dataclass(frozen=True, slots=True)
class Rule:
    target: str
    expression: str = ""
    code: Code | None = None

    def holds(self, variables: Mapping[str, Any]) -> bool:
        """Whether its expression is true; one that cannot be worked out is not."""
        if not self.expression:
            return False
        names = {**variables, "variables": variables, "state": variables, "context": {"variables": variables}}
        try:
            return Expression(self.expression).value(names) is True
        except ValueError as error:
            log.warning("transfer_rule_failed", expression=self.expression, error=str(error))
            return False


def rules_of(app: CxApp, agent: AgentConfig, parent: str) -> list[Rule]:
    """The deterministic rules that lead away from an agent, in order."""
    found = []
    for index, given, target in _rules(app, agent, parent):
        fires = given.get("deterministicTransfer")
        if isinstance(fires, Mapping):
            expression = str((fires.get("expressionCondition") or {}).get("expression") or "")
            found.append(Rule(target, expression, agent.conditions.get(index)))
    return found


def planner_targets(app: CxApp, agent: AgentConfig, parent: str) -> list[str]:
    """Whom the model may give the conversation to."""
    closed = {
        target for _, given, target in _rules(app, agent, parent) if given.get("disablePlannerTransfer") is not None
    }
    targets = [name for each in agent.children if (name := app.agent_named(each))]
    return [name for name in (*targets, *([parent] if parent else [])) if name not in closed]


def _rules(app: CxApp, agent: AgentConfig, parent: str) -> Iterator[tuple[int, Mapping[str, Any], str]]:
    for index, given in enumerate(agent.data.get("transferRules") or ()):
        direction = given.get("direction") or _TO_CHILD
        named = parent if direction == _TO_PARENT else app.agent_named(str(given.get("childAgent") or ""))
        if named:
            yield index, given, named
