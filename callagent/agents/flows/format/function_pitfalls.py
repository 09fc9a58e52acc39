"""Constructs in a function's source that are legal and will surprise its author.

The paths through a function tell which navigation each one queues, and whether it decides anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

Remark = tuple[int, str]
"""Line, and a warning that says what will happen."""


def remarks(definition: ast.FunctionDef | ast.AsyncFunctionDef, kind: str) -> Iterator[Remark]:
    yield from _comparisons_with_false(definition)
    yield from _transitions_that_are_none(definition)
    paths = paths_through(definition)
    if any("exit" in path.queued and path.queued & {"flow", "step"} for path in paths):
        message = "conv.exit_flow() and a goto on one path through the function: the goto wins, the flow is not left."
        yield definition.lineno, message
    if kind == "flow":
        yield from _undecided_paths(definition, paths)
    if kind == "step" and not any(path.decides for path in paths):
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
    """Return whether an expression reads the conversation: state, entities and variants are None where not set."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
    return "conv" in names and isinstance(node, ast.Attribute | ast.Call | ast.Subscript)


def _transitions_that_are_none(definition: ast.AST) -> Iterator[Remark]:
    """Report results read from `conv.call_handoff(…)` and similar methods, which return None."""
    for node in ast.walk(definition):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        method = node.value.func
        if isinstance(method, ast.Attribute) and method.attr in ("call_handoff", "goto_step", "goto_flow", "exit_flow"):
            yield node.lineno, f"{ast.unparse(method)}() returns None: it queues what happens after the function."


def _undecided_paths(
    definition: ast.FunctionDef | ast.AsyncFunctionDef, paths: frozenset[FunctionPath]
) -> Iterator[Remark]:
    idle = [path for path in paths if not path.decides]
    if idle and len(idle) == len(paths):
        yield (
            definition.lineno,
            "The function neither returns anything nor goes anywhere: the model is asked again on the same step.",
        )
    elif idle and any(path.returned for path in paths):
        yield (
            definition.lineno,
            "A path through the function ends without `return` or a goto, while another returns a value: "
            "the model is asked again on the same step with an empty result.",
        )


_NAVIGATION = {"goto_flow": "flow", "goto_step": "step", "exit_flow": "exit"}
_HARMLESS = ("log", "write_metric", "state", "get")
_MAX_PATHS = 64
"""Maximum of paths that are told apart: their number doubles with each branch."""


@dataclass(frozen=True, slots=True)
class FunctionPath:
    """One path through a function: what it queues, and whether it decides anything."""

    queued: frozenset[str] = frozenset()
    """Which of `flow`, `step` and `exit` the path queues."""
    acted: bool = False
    """Something was asked of the conversation or the flow."""
    ended: bool = False
    returned: bool = False
    """The path ends with a value, or with an exception."""

    @property
    def decides(self) -> bool:
        return self.returned or self.acted or bool(self.queued)


def paths_through(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> frozenset[FunctionPath]:
    return _block(definition.body, frozenset({FunctionPath()}))


def _block(statements: Iterable[ast.stmt], paths: frozenset[FunctionPath]) -> frozenset[FunctionPath]:
    for statement in statements:
        going = frozenset(path for path in paths if not path.ended)
        if not going or len(paths) > _MAX_PATHS:
            break
        paths = (paths - going) | _statement(statement, going)
    return paths


def _statement(node: ast.stmt, paths: frozenset[FunctionPath]) -> frozenset[FunctionPath]:
    match node:
        case ast.Return(value=value):
            paths = _note(value, paths)
            return frozenset(replace(path, ended=True, returned=value is not None) for path in paths)
        case ast.Raise():
            return frozenset(replace(path, ended=True, returned=True) for path in paths)
        case ast.If(test=test, body=body, orelse=orelse):
            paths = _note(test, paths)
            return _block(body, paths) | _block(orelse, paths)
        case ast.For() | ast.AsyncFor() | ast.While():
            return paths | _block([*node.body, *node.orelse], paths)
        case ast.With(body=body) | ast.AsyncWith(body=body):
            return _block(body, paths)
        case ast.Try():
            whole = _block([*node.body, *node.orelse], paths)
            caught = [_block(handler.body, paths) for handler in node.handlers]
            return _block(node.finalbody, whole.union(*caught))
        case ast.Match(cases=cases):
            whatever = any(isinstance(each.pattern, ast.MatchAs) and each.pattern.pattern is None for each in cases)
            return frozenset().union(() if whatever else paths, *(_block(each.body, paths) for each in cases))
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return paths
        case _:
            return _note(node, paths)


def _note(node: ast.AST | None, paths: frozenset[FunctionPath]) -> frozenset[FunctionPath]:
    """Return what the calls in a plain statement or an expression queue."""
    calls = [each for each in ast.walk(node) if isinstance(each, ast.Call)] if node is not None else []
    queued = {kind for call in calls if (kind := navigation(call))}
    acted = any(acts(call) for call in calls)
    return frozenset(replace(path, queued=path.queued | queued, acted=path.acted or acted) for path in paths)


def navigation(call: ast.Call) -> str | None:
    """Return `flow`, `step` or `exit` for a call that queues one; None for other calls."""
    function = call.func
    if not isinstance(function, ast.Attribute) or not isinstance(function.value, ast.Name):
        return None
    return _NAVIGATION.get(function.attr) if function.value.id in ("conv", "flow") else None


def acts(call: ast.Call) -> bool:
    """Return whether a call may decide something: a method of the conversation, or a helper that is given it."""
    text = ast.unparse(call.func)
    if text.startswith(("conv.", "flow.")):
        return not any(part in _HARMLESS for part in text.split(".")[1:])
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(value, ast.Name) and value.id in ("conv", "flow") for value in given)
