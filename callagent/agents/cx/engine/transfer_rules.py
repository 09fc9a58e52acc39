"""Transfer rules (`transferRules`): transfers without asking the model, and targets that the model may not choose.

A rule leads from an agent to one of its children or to its parent. `deterministicTransfer` transfers as soon as its
condition holds; `disablePlannerTransfer` hides the target from the model while its condition holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from callagent.agents.cx.cel import Expression
from callagent.agents.cx.format import AgentConfig, Code, CxApp
from callagent.json_values import JsonObject, JsonValue, list_at, object_at
from callagent.log import get_logger

log = get_logger(__name__)
_TO_CHILD, _TO_PARENT = "PARENT_TO_CHILD", "CHILD_TO_PARENT"


@dataclass(frozen=True, slots=True)
class TransferRule:
    """A deterministic rule: an expression or Python decides."""

    target: str
    expression: str = ""
    code: Code | None = None

    def holds(self, variables: Mapping[str, object]) -> bool:
        """Return whether the expression is true. For a rule without one the worker decides, and this returns False."""
        return bool(self.expression) and _holds(self.expression, variables)


def deterministic_rules(app: CxApp, agent: AgentConfig, parent: str) -> list[TransferRule]:
    """Return the deterministic rules that lead away from an agent, in order."""
    rules = []
    for index, rule, target in _rules(app, agent, parent):
        condition = rule.get("deterministicTransfer")
        if isinstance(condition, Mapping):
            rules.append(TransferRule(target, condition_expression(condition), agent.conditions.get(index)))
    return rules


def planner_targets(app: CxApp, agent: AgentConfig, parent: str, variables: Mapping[str, object]) -> list[str]:
    """Return the agents that the model may transfer to now: children and parent except those that rules disable."""
    disabled = {
        target
        for _, rule, target in _rules(app, agent, parent)
        if rule.get("disablePlannerTransfer") is not None
        and _condition_holds(rule["disablePlannerTransfer"], variables)
    }
    # Peers are no targets: a conversation goes down to a child or up to the parent.
    targets = [name for each in agent.children if (name := app.agent_named(each))]
    return [name for name in (*targets, *([parent] if parent else [])) if name not in disabled]


def condition_expression(condition: JsonValue) -> str:
    """Return the expression of a rule's condition, empty if it has none."""
    holder = object_at(condition, "expressionCondition") if isinstance(condition, Mapping) else {}
    return str(holder.get("expression") or "")


def _condition_holds(condition: JsonValue, variables: Mapping[str, object]) -> bool:
    """Return whether a rule's condition holds; a missing condition always does."""
    expression = condition_expression(condition)
    return not expression or _holds(expression, variables)


def _holds(text: str, variables: Mapping[str, object]) -> bool:
    """Return whether an expression gives true or the text `true`. If it fails, log the error and return False."""
    # Published apps name variables in each of these ways.
    names = {**variables, "variables": variables, "state": variables, "context": {"variables": variables}}
    try:
        value = _expression(text).evaluate(names)
        return value is True or value == "true"
    except ValueError as error:
        log.warning("transfer_rule_failed", expression=text, error=str(error))
        return False


# Rules are evaluated before every request to the model, and their expressions are parsed once.
@lru_cache(maxsize=1000)
def _expression(text: str) -> Expression:
    return Expression(text)


def _rules(app: CxApp, agent: AgentConfig, parent: str) -> Iterator[tuple[int, JsonObject, str]]:
    """Yield index, rule and target of each rule that names an agent of the app."""
    # The index counts all items, also invalid ones, because it leads to the rule's Python (`AgentConfig.conditions`).
    for index, rule in enumerate(list_at(agent.data, "transferRules")):
        if not isinstance(rule, Mapping):
            continue
        direction = rule.get("direction") or _TO_CHILD
        target = parent if direction == _TO_PARENT else app.agent_named(str(rule.get("childAgent") or ""))
        if target:
            yield index, rule, target
