"""What in a function's source is legal and will surprise its author."""

from __future__ import annotations

import ast
from collections.abc import Iterator

Remark = tuple[int, str]
"""Line and what will happen."""


def remarks(definition: ast.FunctionDef | ast.AsyncFunctionDef, kind: str) -> Iterator[Remark]:
    yield from _comparisons_with_false(definition)
    if kind == "flow" and _does_nothing_for_the_flow(definition):
        yield (
            definition.lineno,
            "The function neither returns anything nor goes anywhere: the model is asked again on the same step.",
        )


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


def _does_nothing_for_the_flow(definition: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """No value returned, and nothing called that has the conversation or the flow."""
    for node in ast.walk(definition):
        if isinstance(node, ast.Return) and node.value is not None:
            return False
        if isinstance(node, ast.Raise):
            return False
        if isinstance(node, ast.Call) and _acts(node):
            return False
    return True


def _acts(call: ast.Call) -> bool:
    harmless = ("log", "write_metric", "state", "get")
    text = ast.unparse(call.func)
    if text.startswith(("conv.", "flow.")):
        return not any(part in harmless for part in text.split(".")[1:])
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    return any(isinstance(value, ast.Name) and value.id in ("conv", "flow") for value in given)
