"""The check of an app's Python without running it: callbacks, tools, imports, and code that the platform would refuse.

Some rules follow the platform's published linter (cxas-scrapi 1.10.0, `utils/lint_rules`), except its rules of taste.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from callagent.agents.cx import format

_DEFAULT_TYPES: Mapping[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "dict": (dict,), "list": (list,)
}  # fmt: skip
"""Type hint of an argument -> types that its default may have."""
TRUNK_WITHOUT_EFFECT = "has no effect here: the targets in the server's settings name the trunk of a transfer"
END_WITHOUT_EFFECT = "has no effect here: the session ends when the call is transferred"
_RECORDING = re.compile(r"from_audio\(\s*(?:audio_uri\s*=\s*)?[\"']([^\"']+)[\"']")
_TRUNK = re.compile(r"""["'](use_originating_trunk|useOriginatingTrunk)["']""")
_END_SESSION = re.compile(r"""["'](endSession)["']\s*[:\]]""")
CLASSES = {
    "callback_context": "CallbackContext",
    "llm_request": "LlmRequest",
    "llm_response": "LlmResponse",
    "tool": "Tool",
    "input": "dict",
    "tool_response": "dict",
}
"""Argument of a callback -> class of its value."""
_CALLBACK_ARGUMENTS = {
    "before_agent": {"callback_context"},
    "after_agent": {"callback_context"},
    "before_model": {"callback_context", "llm_request"},
    "after_model": {"callback_context", "llm_response"},
    "before_tool": {"tool", "input", "callback_context"},
    "after_tool": {"tool", "input", "callback_context", "tool_response"},
}


class PythonChecker:
    """The check of an app's Python files."""

    def __init__(self, app: format.CxApp, reader: format.AppReader) -> None:
        self._app = app
        self._reader = reader
        self._tools = _callable_tools(app)

    def check_callback(self, code: format.Code, point: str) -> None:
        """Check the file of a callback at a point, such as `before_model`."""
        name = f"{point}_callback"
        tree = self.check_file(code)
        if tree is None:
            return
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name]
        if not functions:
            self._reader.error_at(
                format.CheckRule.NO_CALLBACK,
                code.file,
                1,
                f"the file has no function '{name}': a callback's function is named after its point",
            )
            return
        # Of several definitions the last one counts, as in Python.
        arguments = functions[-1].args
        # Callbacks are called by keyword, so arguments with a default may have any name.
        required = len(arguments.args) - len(arguments.defaults)
        unknown = [each.arg for each in arguments.args[:required] if each.arg not in _CALLBACK_ARGUMENTS[point]]
        if unknown:
            message = (
                f"{name} is called with {', '.join(sorted(_CALLBACK_ARGUMENTS[point]))}, not with {', '.join(unknown)}"
            )
            self._reader.error_at(format.CheckRule.CALLBACK_ARGUMENTS, code.file, functions[-1].lineno, message)
        self._warn(code, lint_callback(tree, functions[-1], point, CLASSES))

    def check_tool(self, tool: format.ToolConfig, code: format.Code) -> None:
        """Check the file of a Python tool."""
        tree = self.check_file(code)
        if tree is None:
            return
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
        named = [each for each in functions if each.name in (tool.function, tool.name)]
        for function in named or functions[:1]:
            if function.args.kwarg:
                message = f"'{function.name}' may not take **kwargs: name its arguments, so that the model knows them"
                self._reader.error_at(format.CheckRule.KEYWORDS, code.file, function.lineno, message)
            for line, problem in lint_tool_defaults(function):
                self._reader.warning_at(format.CheckRule.DEFAULT, code.file, line, problem)
            self._warn(code, lint_tool(function, described=bool(tool.description)))

    def check_file(self, code: format.Code) -> ast.Module | None:
        """Check rules for all Python of an app, and return the parsed file; None if it is not valid Python."""
        try:
            tree = ast.parse(code.source)
        except (SyntaxError, ValueError) as error:
            line = error.lineno or 1 if isinstance(error, SyntaxError) else 1
            message = f"not valid Python: {getattr(error, 'msg', error)}"
            self._reader.error_at(format.CheckRule.NOT_PYTHON, code.file, line, message)
            return None
        self._check_imports(code, tree)
        self._check_recordings(code)
        self._warn(code, _lint_transfers(code.source))
        self._warn(code, lint_file(tree, self._tools))
        return tree

    def _warn(self, code: format.Code, found: Iterator[LintFinding]) -> None:
        for rule, line, message in found:
            self._reader.warning_at(rule, code.file, line, message)

    def _check_recordings(self, code: format.Code) -> None:
        for number, text in enumerate(code.source.splitlines(), 1):
            for uri in _RECORDING.findall(text):
                if format.recording_path(self._app.files, uri) is None:
                    message = f"'{uri}' is not played: there is no such WAV file in the app, nor in its audio/"
                    self._reader.warning_at(format.CheckRule.RECORDING, code.file, number, message)

    def _check_imports(self, code: format.Code, tree: ast.Module) -> None:
        # Imported here, because the worker's package imports pydantic, which takes long to load.
        from callagent.agents.cx.runtime import may_import

        for each in ast.walk(tree):
            names = [alias.name for alias in each.names] if isinstance(each, ast.Import) else []
            if isinstance(each, ast.ImportFrom):
                names = [f"{each.module}.{alias.name}" if each.module == "google" else str(each.module)
                         for alias in each.names]  # fmt: skip
            for name in dict.fromkeys(names):
                if not may_import(name):
                    message = f"'{name}' may not be imported: the standard library, pydantic, numpy and protobuf may"
                    self._reader.error_at(format.CheckRule.IMPORT, code.file, getattr(each, "lineno", 1), message)


def _lint_transfers(source: str) -> Iterator[LintFinding]:
    """Yield the settings of transfers in code that have no effect here."""
    # The text is searched, because the settings are keys of nested dictionaries that code may build in any way.
    has_handoff = "LIVE_AGENT_HANDOFF" in source
    for number, text in enumerate(source.splitlines(), 1):
        if found := _TRUNK.search(text):
            yield format.CheckRule.NO_EFFECT, number, f"'{found[1]}' {TRUNK_WITHOUT_EFFECT}"
        if has_handoff and (found := _END_SESSION.search(text)):
            yield format.CheckRule.NO_EFFECT, number, f"'{found[1]}' {END_WITHOUT_EFFECT}"


def _callable_tools(app: format.CxApp) -> frozenset[str] | None:
    """Return the tools that code may call; None if only a server knows them."""
    # Servers of the Model Context Protocol (MCP) are asked only when the app's Python is run, not in this check.
    if any(toolset.schema is None for toolset in app.toolsets.values()):
        return None
    names = {format.tool_name(tool) for tool in app.tools.values()} | set(app.tools)
    for toolset in app.toolsets.values():
        names |= {f"{toolset.display_name}_{each.name}" for each in format.operations(toolset.schema or {})}
    return frozenset(names)


LintFinding = tuple[format.CheckRule, int, str]
"""Rule, line and message."""
_CAMEL_CASE = re.compile(r"[a-z]+[A-Z]\w*")
_TYPING = frozenset(
    ("Any", "Callable", "Dict", "Iterable", "Iterator", "List", "Literal", "Optional", "Set", "Tuple", "Union")
)
_NOT_HINTED = ("context", "tool_context", "callback_context")


def lint_file(tree: ast.Module, tools: frozenset[str] | None) -> Iterator[LintFinding]:
    """Yield findings in any Python file. `tools`: the tools that code may call; None if they are not known."""
    yield from _lint_typing(tree)
    for each in ast.walk(tree):
        if isinstance(each, ast.ExceptHandler) and each.type is None:
            message = "a bare 'except:' hides every failure, even the end of the process: name the caught exceptions"
            yield format.CheckRule.BARE_EXCEPT, each.lineno, message
        if isinstance(each, ast.Call):
            yield from _lint_call(each, tools)


def lint_callback(
    tree: ast.Module, function: ast.FunctionDef, point: str, classes: Mapping[str, str]
) -> Iterator[LintFinding]:
    """Yield findings in a callback's file. `classes`: the class of each of its arguments."""
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef) and _CAMEL_CASE.fullmatch(each.name):
            yield (
                format.CheckRule.CAMEL_CASE,
                each.lineno,
                f"'{each.name}': functions are named in snake_case on the platform",
            )
    for argument in function.args.args:
        hint = _hinted_class(argument.annotation)
        expected = classes.get(argument.arg, "")
        if hint and expected and hint.lower() != expected.lower():
            message = f"'{argument.arg}' is hinted as {hint}; its value is of the class {expected}"
            yield format.CheckRule.ANNOTATION, argument.lineno, message
    if point in ("before_model", "after_model"):
        for returned in _return_statements(function):
            if isinstance(returned.value, ast.Dict):
                message = "the callback returns a dictionary: return an LlmResponse or None"
                yield format.CheckRule.RETURNS_DICT, returned.lineno, message


def lint_tool(function: ast.FunctionDef, *, described: bool) -> Iterator[LintFinding]:
    """Yield findings in a tool's function. `described`: whether the tool has a description in its configuration."""
    if not described and not ast.get_docstring(function):
        message = f"'{function.name}' has neither docstring nor description: the model does not know what it is for"
        yield format.CheckRule.NO_DOCSTRING, function.lineno, message
    for argument in (*function.args.args, *function.args.kwonlyargs):
        if argument.annotation is None and argument.arg not in _NOT_HINTED:
            message = f"'{argument.arg}' has no type hint: add one, so that the model knows its type"
            yield format.CheckRule.NO_HINT, argument.lineno, message
    # A function that only raises gives the model a result: the error.
    raises = any(isinstance(each, ast.Raise) for each in ast.walk(function))
    if not raises and not any(each.value is not None for each in _return_statements(function)):
        yield (
            format.CheckRule.NO_RETURN,
            function.lineno,
            f"'{function.name}' returns nothing: the model gets no result",
        )


def _lint_call(call: ast.Call, tools: frozenset[str] | None) -> Iterator[LintFinding]:
    called = call.func
    if isinstance(called, ast.Name) and called.id == "Part" and any(each.arg == "text" for each in call.keywords):
        yield format.CheckRule.BARE_PART, call.lineno, "'Part(text=…)': the platform's way is 'Part.from_text(text=…)'"
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return
    if tools is not None and called.value.id in ("tools", "async_tools") and called.attr not in tools:
        known = ", ".join(sorted(tools)) or "none"
        yield format.CheckRule.CALLED_TOOL, call.lineno, f"the app has no tool '{called.attr}'; it has: {known}"


def _lint_typing(tree: ast.Module) -> Iterator[LintFinding]:
    defined = {alias.asname or alias.name for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)
             for alias in each.names}  # fmt: skip
    defined |= {each.id for each in ast.walk(tree) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    # A star import may bring any of the names.
    if "*" in defined:
        return
    reported: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.Name) and each.id in _TYPING - defined - reported:
            reported.add(each.id)
            yield (
                format.CheckRule.TYPING,
                each.lineno,
                f"'{each.id}' is not imported from typing: the platform needs that",
            )


def _hinted_class(annotation: ast.expr | None) -> str:
    """Return the class that a hint names; empty if it names none or is not a plain name."""
    if isinstance(annotation, ast.Subscript):
        annotation = annotation.value
    if isinstance(annotation, ast.Attribute):
        return annotation.attr
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value if annotation.value.isidentifier() else ""
    name = annotation.id if isinstance(annotation, ast.Name) else ""
    # These names say nothing about the class.
    return "" if name in ("Any", "object", "Optional", "Union", "Mapping") else name


def _return_statements(function: ast.FunctionDef) -> Iterator[ast.Return]:
    """Yield the return statements of a function, without those of functions inside it."""
    nodes: list[ast.AST] = [*function.body]
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.Return):
            yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            nodes += ast.iter_child_nodes(node)


def lint_tool_defaults(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    """Yield line and reason of each default that the platform refuses."""
    arguments = function.args
    defaults = [*zip(arguments.args[len(arguments.args) - len(arguments.defaults) :], arguments.defaults, strict=True)]
    defaults += [
        (each, value)
        for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        if value is not None
    ]
    for argument, default in defaults:
        # The value of a call or a name is unknown without running it.
        if not isinstance(default, ast.Constant):
            continue
        hint = argument.annotation.id if isinstance(argument.annotation, ast.Name) else ""
        if default.value is None:
            yield default.lineno, f"'{argument.arg}' has the default None: the platform drops such arguments"
        # `type()` and not `isinstance`, for which True would be an int.
        elif hint in _DEFAULT_TYPES and type(default.value) not in _DEFAULT_TYPES[hint]:
            yield (
                default.lineno,
                f"'{argument.arg}' is hinted as {hint}; its default {default.value!r} is not one",
            )
