"""What happens on each way through a function: which navigation is queued, and whether anything is decided."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass, replace

_NAVIGATION = {"goto_flow": "flow", "goto_step": "step", "exit_flow": "exit"}
_HARMLESS = ("log", "write_metric", "state", "get")
_MOST_WAYS = 64
"""Different ways that are told apart; more are not needed to see a mistake."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way, as far as it matters."""

    queued: frozenset[str] = frozenset()
    """Of `flow`, `step` and `exit`."""
    acted: bool = False
    """Something was asked of the conversation or the flow."""
    ended: bool = False
    returned: bool = False
    """It ends with a value, or with an exception."""

    @property
    def decides(self) -> bool:
        return self.returned or self.acted or bool(self.queued)


def ways_through(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[Way]:
    return _block(definition.body, frozenset({Way()}))


def _block(statements: Iterable[ast.stmt], ways: frozenset[Way]) -> frozenset[Way]:
    for statement in statements:
        going = frozenset(way for way in ways if not way.ended)
        if not going or len(ways) > _MOST_WAYS:
            break
        ways = (ways - going) | _statement(statement, going)
    return ways


def _statement(node: ast.stmt, ways: frozenset[Way]) -> frozenset[Way]:
    match node:
        case ast.Return(value=value):
            ways = _note(value, ways)
            return frozenset(replace(way, ended=True, returned=value is not None) for way in ways)
        case ast.Raise():
            return frozenset(replace(way, ended=True, returned=True) for way in ways)
        case ast.If(test=test, body=body, orelse=orelse):
            ways = _note(test, ways)
            return _block(body, ways) | _block(orelse, ways)
        case ast.For() | ast.AsyncFor() | ast.While():
            return ways | _block([*node.body, *node.orelse], ways)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return _block(body, ways)
        case ast.Try():
            whole = _block([*node.body, *node.orelse], ways)
            caught = [_block(handler.body, ways) for handler in node.handlers]
            return _block(node.finalbody, whole.union(*caught))
        case ast.Match(cases=cases):
            whatever = any(isinstance(each.pattern, ast.MatchAs) and each.pattern.pattern is None for each in cases)
            return frozenset().union(() if whatever else ways, *(_block(each.body, ways) for each in cases))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return ways
        case _:
            return _note(node, ways)


def _note(node: ast.AST | None, ways: frozenset[Way]) -> frozenset[Way]:
    """What the calls in a plain statement or an expression queue."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)] if node is not None else []
    queued = {kind for call in calls if (kind := navigation(call))}
    acted = any(acts(call) for call in calls)
    return frozenset(replace(way, queued=way.queued | queued, acted=way.acted or acted) for way in ways)


def navigation(call: ast.Call) -> str | None:
    """`flow`, `step` or `exit` for a call of the conversation or the flow that queues one."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    return _NAVIGATION.get(function.attr) if function.value.id in ("conv", "flow") else None


def acts(call: ast.Call) -> bool:
    """Whether a call may decide something: a method of the conversation, or a helper that is given it."""
    text = ast.unparse(call.func)
    if text.startswith(("conv.", "flow.")):
        return not any(part in _HARMLESS for part in text.split(".")[1:])
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(value, ast.Name) and value.id in ("conv", "flow") for value in given)
