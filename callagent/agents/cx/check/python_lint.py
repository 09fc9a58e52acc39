"""What runs here and would be refused, misread or hard to find on the platform, in an app's Python.

After the rules of the platform's published linter (cxas-scrapi 1.10.0, `utils/lint_rules`), without those of taste.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from callagent.agents.cx.format import Rule

Found = tuple[Rule, int, str]
"""Rule, line and message."""
_CAMEL_CASE = re.compile(r"[a-z]+[A-Z]\w*")
_TYPING = frozenset(
    ("Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Literal", "Optional", "Set", "Tuple", "Union")
)
_NOT_HINTED = ("context", "tool_context", "callback_context")


def of_file(tree: ast.Module, tools: frozenset[str] | None) -> Iterator[Found]:
    """`tools`: what code may call; None: nobody can tell."""
    yield from _typing(tree)
    for each in ast.walk(tree):
        if isinstance(each, ast.ExceptHandler) and each.type is None:
            message = "a bare 'except:' hides every failure, the end of the process included: name what is caught"
            yield Rule.BARE_EXCEPT, each.lineno, message
        if isinstance(each, ast.Call):
            yield from _call(each, tools)


def of_callback(tree: ast.Module, function: ast.FunctionDef, point: str, classes: Mapping[str, str]) -> Iterator[Found]:
    """`classes`: what a callback is given, by the name of the argument."""
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef) and _CAMEL_CASE.fullmatch(each.name):
            yield Rule.CAMEL_CASE, each.lineno, f"'{each.name}': functions are named in snake_case on the platform"
    for argument in function.args.args:
        hint = _hint(argument.annotation)
        expected = classes.get(argument.arg, "")
        if hint and expected and hint.lower() != expected.lower():
            message = f"'{argument.arg}' is hinted as {hint}; it is given as {expected}"
            yield Rule.ANNOTATION, argument.lineno, message
    if point in ("before_model", "after_model"):
        for returned in _returns(function):
            if isinstance(returned.value, ast.Dict):
                message = "a dictionary is no answer of a model: LlmResponse or None is expected"
                yield Rule.RETURNS_DICT, returned.lineno, message


def of_tool(function: ast.FunctionDef, *, described: bool) -> Iterator[Found]:
    if not described and not ast.get_docstring(function):
        message = f"'{function.name}' has neither docstring nor description: the model does not know what it is for"
        yield Rule.NO_DOCSTRING, function.lineno, message
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if argument.annotation is None and argument.arg not in _NOT_HINTED:
            message = f"'{argument.arg}' has no type hint: the model is told that it is a text"
            yield Rule.NO_HINT, argument.lineno, message
    raises = any(isinstance(each, ast.Raise) for each in ast.walk(function))
    if not raises and not any(each.value is not None for each in _returns(function)):
        yield Rule.NO_RETURN, function.lineno, f"'{function.name}' returns nothing: the model is told nothing"


def _call(call: ast.Call, tools: frozenset[str] | None) -> Iterator[Found]:
    called = call.func
    if isinstance(called, ast.Name) and called.id == "Part" and any(each.arg == "text" for each in call.keywords):
        yield Rule.BARE_PART, call.lineno, "'Part(text=…)': the platform's way is 'Part.from_text(text=…)'"
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return
    if tools is not None and called.value.id in ("tools", "async_tools") and called.attr not in tools:
        known = ", ".join(sorted(tools)) or "none"
        yield Rule.CALLED_TOOL, call.lineno, f"the app has no tool '{called.attr}'; it has: {known}"


def _typing(tree: ast.Module) -> Iterator[Found]:
    bound = {alias.asname or alias.name for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)
             for alias in each.names}  # fmt: skip
    bound |= {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    if "*" in bound:
        return
    told: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and each.id in _TYPING - bound - told:
            told.add(each.id)
            yield Rule.TYPING, each.lineno, f"'{each.id}' is not imported from typing: the platform needs that"


def _hint(annotation: ast.expr | None) -> str:
    """The class that a hint names; empty: none, or more than a name."""
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if isinstance(annotation, ast.Attribute):
        return annotation.attr
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value if annotation.value.isidentifier() else ""
    name = annotation.id if isinstance(annotation, ast.Name) else ""
    # They say nothing of the class.
    return "" if name in ("Any", "object", "Optional", "Union", "Mapping") else name


def _returns(function: ast.FunctionDef) -> Iterator[ast.Return]:
    """Of the function itself, not of those inside it."""
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Return):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting += ast.iter_child_nodes(node)
