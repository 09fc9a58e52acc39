"""What in a function's source is legal and will surprise its author."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from callagent.agents.flows.paths import Way, ways_through

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
