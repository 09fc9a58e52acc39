"""What an app's Python shows without being run: callbacks, tools, imports, and what the platform would not take."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from callagent.agents.cx.check import no_effect, python_lint
from callagent.agents.cx.format import AppReader, Code, CxApp, Rule, ToolConfig, operations, recording_path, tool_name

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
"""What callbacks are given, by the argument's name."""
_ARGUMENTS = {
    "before_agent": {"callback_context"},
    "after_agent": {"callback_context"},
    "before_model": {"callback_context", "llm_request"},
    "after_model": {"callback_context", "llm_response"},
    "before_tool": {"tool", "input", "callback_context"},
    "after_tool": {"tool", "input", "callback_context", "tool_response"},
}


class PythonChecker:
    def __init__(self, app: CxApp, reader: AppReader) -> None:
        self._app = app
        self._reader = reader
        self._callable = _callable_tools(app)

    def callback(self, code: Code, point: str) -> None:
        name = f"{point}_callback"
        tree = self.parsed(code)
        if tree is None:
            return
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name]
        if not functions:
            self._reader.error_at(Rule.NO_CALLBACK, code.file, 1, f"there is no function '{name}'")
            return
        taken = functions[-1].args
        required = len(taken.args) - len(taken.defaults)
        unknown = [each.arg for each in taken.args[:required] if each.arg not in _ARGUMENTS[point]]
        if unknown:
            message = f"{name} is called with {', '.join(sorted(_ARGUMENTS[point]))}, not with {', '.join(unknown)}"
            self._reader.error_at(Rule.CALLBACK_ARGUMENTS, code.file, functions[-1].lineno, message)
        self._warn(code, python_lint.of_callback(tree, functions[-1], point, CLASSES))

    def tool(self, tool: ToolConfig, code: Code) -> None:
        tree = self.parsed(code)
        if tree is None:
            return
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef)]
        named = [each for each in functions if each.name in (tool.function, tool.name)]
        for function in named or functions[:1]:
            if function.args.kwarg:
                message = f"'{function.name}' may not take **kwargs"
                self._reader.error_at(Rule.KEYWORDS, code.file, function.lineno, message)
            for line, problem in no_effect.of_tool(function):
                self._reader.warning_at(Rule.DEFAULT, code.file, line, problem)
            self._warn(code, python_lint.of_tool(function, described=bool(tool.description)))

    def parsed(self, code: Code) -> ast.Module | None:
        """None, with an error, where it is not Python."""
        try:
            tree = ast.parse(code.source)
        except (SyntaxError, ValueError) as error:
            line = error.lineno or 1 if isinstance(error, SyntaxError) else 1
            message = f"not valid Python: {getattr(error, 'msg', error)}"
            self._reader.error_at(Rule.NOT_PYTHON, code.file, line, message)
            return None
        self._imports(code, tree)
        self._recordings(code)
        self._warn(code, _transfers(code.source))
        self._warn(code, python_lint.of_file(tree, self._callable))
        return tree

    def _warn(self, code: Code, found: Iterator[python_lint.Found]) -> None:
        for rule, line, message in found:
            self._reader.warning_at(rule, code.file, line, message)

    def _recordings(self, code: Code) -> None:
        for number, text in enumerate(code.source.splitlines(), 1):
            for uri in _RECORDING.findall(text):
                if recording_path(self._app.files, uri) is None:
                    message = f"'{uri}' is not played: there is no such WAV file in the app, nor in its audio/"
                    self._reader.warning_at(Rule.RECORDING, code.file, number, message)

    def _imports(self, code: Code, tree: ast.Module) -> None:
        from callagent.agents.cx.runtime import may_import

        for each in ast.walk(tree):
            names = [alias.name for alias in each.names] if isinstance(each, ast.Import) else []
            if isinstance(each, ast.ImportFrom):
                names = [f"{each.module}.{alias.name}" if each.module == "google" else str(each.module)
                         for alias in each.names]  # fmt: skip
            for name in dict.fromkeys(names):
                if not may_import(name):
                    message = f"'{name}' may not be imported: the standard library, pydantic, numpy and protobuf may"
                    self._reader.error_at(Rule.IMPORT, code.file, getattr(each, "lineno", 1), message)


def _transfers(source: str) -> Iterator[python_lint.Found]:
    """What code says of transfers that happen otherwise here."""
    whole = "LIVE_AGENT_HANDOFF" in source
    for number, text in enumerate(source.splitlines(), 1):
        if found := _TRUNK.search(text):
            yield Rule.NO_EFFECT, number, f"'{found[1]}' {no_effect.TRUNK}"
        if whole and (found := _END_SESSION.search(text)):
            yield Rule.NO_EFFECT, number, f"'{found[1]}' {no_effect.ENDS}"


def _callable_tools(app: CxApp) -> frozenset[str] | None:
    """What code may call; None: servers that tell their tools themselves have more."""
    if any(toolset.schema is None for toolset in app.toolsets.values()):
        return None
    names = {tool_name(tool) for tool in app.tools.values()} | set(app.tools)
    for toolset in app.toolsets.values():
        names |= {f"{toolset.display_name}_{each.name}" for each in operations(toolset.schema or {})}
    return frozenset(names)
