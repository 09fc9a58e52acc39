"""What is wrong with an app: by its files alone, and with its Python run in a worker."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callagent.agents.cx import no_effect
from callagent.agents.cx.ambience import ambience_problem
from callagent.agents.cx.app import AUTHENTICATION, UNAVAILABLE, AgentConfig, Code, CxApp, GuardrailConfig, tool_timeout
from callagent.agents.cx.conditions import other_tags, problems
from callagent.agents.cx.expression import Expression
from callagent.agents.cx.files import read_files
from callagent.agents.cx.guardrails import MODEL_SAFETY, problem_of, safety_of
from callagent.agents.cx.load import AppReader
from callagent.agents.cx.recordings import recording_path
from callagent.agents.cx.transfer_rules import expression_of
from callagent.agents.finding import CheckReport, Finding, Findings
from callagent.agents.tree.describe import describe
from callagent.errors import ProjectError
from callagent.workers.protocol import WorkerPool

_CLIENT = "clientFunction"
_WITHOUT_EFFECT = ("serviceDirectoryConfig", "tlsConfig")
_LIMITS = (("agents", 100), ("tools", 200), ("variables", 100))
_TOOLS_PER_AGENT, _CALLBACKS_PER_AGENT = 100, 50
_RECORDING = re.compile(r"from_audio\(\s*(?:audio_uri\s*=\s*)?[\"']([^\"']+)[\"']")
_ARGUMENTS = {
    "before_agent": {"callback_context"},
    "after_agent": {"callback_context"},
    "before_model": {"callback_context", "llm_request"},
    "after_model": {"callback_context", "llm_response"},
    "before_tool": {"tool", "input", "callback_context"},
    "after_tool": {"tool", "input", "callback_context", "tool_response"},
}


def check_cx_app(path: Path) -> CheckReport:
    """Everything that the files show; no code of the app is run."""
    findings = Findings()
    try:
        reader = AppReader(read_files(path), findings)
        app = reader.read(path.stem)
    except ProjectError as error:
        findings.error(path.name, 1, str(error))
        return findings.report()
    if app is not None:
        _Checker(app, reader).check()
    return findings.report()


async def check_cx_imports(pool: WorkerPool) -> list[Finding]:
    """What shows when the app's Python runs, and servers of its tools that are away."""
    described = await describe(pool)
    return [*described.errors, *described.unreachable]


class _Checker:
    def __init__(self, app: CxApp, reader: AppReader) -> None:
        self._app = app
        self._reader = reader

    def check(self) -> None:
        app = self._app
        app_file = app.files.app_file
        counts = {"agents": len(app.agents), "tools": len(app.tools), "variables": len(app.variables)}
        for name, limit in _LIMITS:
            if counts[name] > limit:
                self._reader.warning(app_file, name, f"{counts[name]} {name}; the platform takes {limit}")
        if problem := ambience_problem(app.data):
            self._reader.warning(app_file, "ambientSoundConfig", problem)
        for key, problem in no_effect.of_app(app.data):
            self._reader.warning(app_file, key, problem)
        self._deployments()
        for agent in app.agents.values():
            self._agent(agent)
        self._tools()
        for toolset in app.toolsets.values():
            if toolset.schema is None and toolset.mcp is None:
                self._reader.warning(toolset.file, toolset.name, "only OpenAPI and MCP toolsets work here")
            self._authentication(toolset.file, toolset.data)
            self._timeout(toolset.file, toolset.data)
        self._other_code()
        for guardrail in app.guardrails.values():
            self._safety(guardrail)

    def _safety(self, guardrail: GuardrailConfig) -> None:
        if MODEL_SAFETY not in guardrail.data:
            return
        message = f"'{MODEL_SAFETY}' is enforced by Gemini's own models only: others answer without it"
        self._reader.warning(guardrail.file, MODEL_SAFETY, message)
        for kind, threshold in safety_of(guardrail.data):
            if problem := problem_of(kind, threshold):
                bad = threshold if threshold in problem else kind
                self._reader.warning(guardrail.file, bad, f"{problem}: it has no effect")

    def _other_code(self) -> None:
        """Of guardrails, transfer rules and fakes."""
        for guardrail in self._app.guardrails.values():
            for point, code in guardrail.callbacks.items():
                self._callback(code, point)
        for agent in self._app.agents.values():
            for code in agent.conditions.values():
                self._parsed(code)
        for tool in self._app.tools.values():
            if tool.fake is not None:
                self._parsed(tool.fake)

    def _deployments(self) -> None:
        """Of an export with more than the app as it stands: which number has which app is the server's to say."""
        for kind in ("versions", "deployments"):
            file = next((each for each in sorted(self._app.files.contents) if each.split("/")[0] == kind), None)
            if file is not None:
                message = f"{kind} have no effect here: the app runs as it stands, for the numbers of the settings"
                self._reader.findings.warning(file, 1, message)

    def _agent(self, agent: AgentConfig) -> None:
        if "remoteDialogflowAgent" in agent.data:
            self._reader.error(agent.file, "remoteDialogflowAgent", "remote agents cannot be run here")
        if len(agent.tools) > _TOOLS_PER_AGENT:
            self._reader.warning(agent.file, "tools", f"{len(agent.tools)} tools; the platform takes 100 per agent")
        if sum(len(row) for row in agent.callbacks.values()) > _CALLBACKS_PER_AGENT:
            self._reader.warning(agent.file, "name", "more than 50 callbacks; the platform takes 50 per agent")
        for point, row in agent.callbacks.items():
            for code in row:
                self._callback(code, point)
        for key, problem in no_effect.of_agent(agent.data):
            self._reader.warning(agent.file, key, problem)
        self._conditions(agent)
        for rule in agent.data.get("transferRules") or ():
            for kind in ("deterministicTransfer", "disablePlannerTransfer"):
                if expression := expression_of(rule.get(kind)):
                    self._expression(agent, expression)

    def _conditions(self, agent: AgentConfig) -> None:
        named = str(agent.data.get("instruction"))
        own_file = named in self._app.files.contents
        file = named if own_file else agent.file
        for line, problem in problems(agent.instruction):
            self._reader.findings.error(file, line if own_file else 1, problem)
        for line in other_tags(agent.instruction):
            message = "only conditions are worked out: the model sees this '{% … %}' as it is"
            self._reader.findings.warning(file, line if own_file else 1, message)

    def _expression(self, agent: AgentConfig, expression: str) -> None:
        try:
            Expression(expression)
        except ValueError as error:
            self._reader.error(agent.file, "expression", f"'{expression}': {error}")

    def _callback(self, code: Code, point: str) -> None:
        name = f"{point}_callback"
        tree = self._parsed(code)
        if tree is None:
            return
        functions = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name == name]
        if not functions:
            self._reader.findings.error(code.file, 1, f"there is no function '{name}'")
            return
        taken = functions[-1].args
        required = len(taken.args) - len(taken.defaults)
        unknown = [each.arg for each in taken.args[:required] if each.arg not in _ARGUMENTS[point]]
        if unknown:
            message = f"{name} is called with {', '.join(sorted(_ARGUMENTS[point]))}, not with {', '.join(unknown)}"
            self._reader.findings.error(code.file, functions[-1].lineno, message)

    def _tools(self) -> None:
        for tool in self._app.tools.values():
            self._authentication(tool.file, tool.data)
            if tool.kind == _CLIENT:
                message = (
                    "client functions work in sessions only: on the telephone the model is told so when it calls one"
                )
                self._reader.warning(tool.file, tool.kind, message)
            elif tool.kind in UNAVAILABLE:
                message = f"tools of the kind '{tool.kind}' do not work here: the model is told so when it calls one"
                self._reader.warning(tool.file, tool.kind, message)
            self._timeout(tool.file, tool.data)
            if tool.code is None or (tree := self._parsed(tool.code)) is None:
                continue
            for each in ast.walk(tree):
                if isinstance(each, ast.FunctionDef) and each.name in (tool.function, tool.name):
                    self._arguments(tool.code.file, each)

    def _arguments(self, file: str, function: ast.FunctionDef) -> None:
        if function.args.kwarg:
            self._reader.findings.error(file, function.lineno, f"'{function.name}' may not take **kwargs")
        for line, problem in no_effect.of_tool(function):
            self._reader.findings.warning(file, line, problem)

    def _timeout(self, file: str, data: Mapping[str, Any]) -> None:
        if data.get("timeout") is not None and tool_timeout(data) is None:
            self._reader.warning(file, "timeout", f"'{data['timeout']}' is no duration such as '20s': it has no effect")

    def _authentication(self, file: str, data: Mapping[str, Any]) -> None:
        for own in (data.get(key) for key in ("openApiToolset", "openApiTool", "mcpToolset", "mcpTool")):
            given = own.get("apiAuthentication") if isinstance(own, Mapping) else None
            for kind in given if isinstance(given, Mapping) else ():
                if kind not in AUTHENTICATION:
                    self._reader.warning(file, str(kind), f"'{kind}' does not work here: requests go without it")
            for kind in _WITHOUT_EFFECT:
                if isinstance(own, Mapping) and own.get(kind):
                    self._reader.warning(
                        file, kind, f"'{kind}' has no effect here: the system's certificates and names do"
                    )

    def _parsed(self, code: Code) -> ast.Module | None:
        try:
            tree = ast.parse(code.source)
        except (SyntaxError, ValueError) as error:
            line = error.lineno or 1 if isinstance(error, SyntaxError) else 1
            self._reader.findings.error(code.file, line, f"not valid Python: {getattr(error, 'msg', error)}")
            return None
        self._imports(code, tree)
        self._recordings(code)
        return tree

    def _recordings(self, code: Code) -> None:
        for number, text in enumerate(code.source.splitlines(), 1):
            for uri in _RECORDING.findall(text):
                if recording_path(self._app.files, uri) is None:
                    message = f"'{uri}' is not played: there is no such WAV file in the app, nor in its audio/"
                    self._reader.findings.warning(code.file, number, message)

    def _imports(self, code: Code, tree: ast.Module) -> None:
        from callagent.agents.cx.runtime.imports import may_import

        for each in ast.walk(tree):
            names = [alias.name for alias in each.names] if isinstance(each, ast.Import) else []
            if isinstance(each, ast.ImportFrom):
                names = [f"{each.module}.{alias.name}" if each.module == "google" else str(each.module)
                         for alias in each.names]  # fmt: skip
            for name in dict.fromkeys(names):
                if not may_import(name):
                    message = f"'{name}' may not be imported: the standard library, pydantic, numpy and protobuf may"
                    self._reader.findings.error(code.file, getattr(each, "lineno", 1), message)
