"""Constructs in a function's source that are legal and will surprise its author.

The paths through a function tell which navigation each one queues, and whether it decides anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

Remark = tuple[int, str]
"""Line and what will happen."""


def remarks(definition: ast.FunctionDef | ast.AsyncFunctionDef, kind: str) -> Iterator[Remark]:
    yield from _comparisons_with_false(definition)
    yield from _transitions_that_are_none(definition)
    ways = ways_through(definition)
    if any("exit" in way.queued and way.queued & {"flow", "step"} for way in ways):
        message = "conv.exit_flow() and a goto on one way through the function: the goto wins, the flow is not left."
        yield definition.lineno, message
    if kind == "flow":
        yield from _ways_that_decide_nothing(definition, ways)
    if kind == "step" and not any(way.decides for way in ways):
        yield definition.lineno, "The function step goes nowhere: the call stays on it until the caller speaks."


def _comparisons_with_false(definition: ast.AST) -> Iterator[Remark]:
    for node in ast.walk(definition):
        if not isinstance(node, ast.Compare) or not isinstance(node.ops[0], ast.Eq):
            continue
        right = node.comparators[0]
        if isinstance(right, ast.Constant) and right.value is False and _may_be_none(node.left):
            text = ast.unparse(node.left)
            yield node.lineno, f"'{text} == False' does not hold when {text} is None. Write 'not {text}'."


def _may_be_none(node: ast.expr) -> bool:
    """A value of the conversation: state, entities, variants and settings read as None where nothing was set."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return "conv" in names and isinstance(node, ast.Attribute | ast.Call | ast.Subscript)


def _transitions_that_are_none(definition: ast.AST) -> Iterator[Remark]:
    """`conv.call_handoff(…)` and its like return None: nothing can be read from them."""
    for node in ast.walk(definition):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        method = node.value.func
        if isinstance(method, ast.Attribute) and method.attr in ("call_handoff", "goto_step", "goto_flow", "exit_flow"):
            yield node.lineno, f"{ast.unparse(method)}() returns None: it queues what happens after the function."


def _ways_that_decide_nothing(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, ways: frozenset[Way]
) -> Iterator[Remark]:
    idle = [way for way in ways if not way.decides]
    if idle and len(idle) == len(ways):
        yield (
            definition.lineno,
            "The function neither returns anything nor goes anywhere: the model is asked again on the same step.",
        )
    elif idle and any(way.returned for way in ways):
        yield (
            definition.lineno,
            "A way through the function ends without `return` or a goto, while another returns a value: "
            "the model is asked again on the same step with an empty result.",
        )


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
