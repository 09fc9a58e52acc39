"""The check of an app by its files alone, and by running its Python in a worker.

Findings report what works differently here than on the platform, and what the platform itself would refuse.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from callagent.agents.cx import engine, format
from callagent.agents.cx.cel import Expression
from callagent.agents.cx.check_python import END_WITHOUT_EFFECT, TRUNK_WITHOUT_EFFECT, PythonChecker
from callagent.agents.cx.guardrails import MODEL_SAFETY, safety_problem, safety_settings
from callagent.agents.cx.project import describe_app
from callagent.agents.kernel import CheckReport, Findings
from callagent.errors import ProjectError
from callagent.json_values import JsonObject, object_at, objects_at
from callagent.workers import WorkerPool

_SERVER_VOICE = "has no effect here: the server's settings name the voice"
_RECORDING_FOLDER = "names a folder below the setting records.recordings, if that is set: the bucket is not written to"
_SERVER_RETENTION = "has no effect here: the server's settings say what is kept of a call"
_TRANSFER_SETTINGS_WITHOUT_EFFECT = {
    "use_originating_trunk": TRUNK_WITHOUT_EFFECT,
    "useOriginatingTrunk": TRUNK_WITHOUT_EFFECT,
    "endSession": END_WITHOUT_EFFECT,
}
_TRANSFER_VARIABLES = ("PHONE_GATEWAY_TRANSFER", "LIVE_AGENT_HANDOFF")
_APP_SETTINGS_WITHOUT_EFFECT: Mapping[tuple[str, ...], str] = {
    ("audioProcessingConfig", "synthesizeSpeechConfigs"): _SERVER_VOICE,
    ("loggingSettings", "audioRecordingConfig"): _RECORDING_FOLDER,
    ("loggingSettings", "unredactedAudioRecordingConfig"): _RECORDING_FOLDER,
    ("loggingSettings", "redactionConfig"): _SERVER_RETENTION,
    ("loggingSettings", "conversationLoggingSettings"): _SERVER_RETENTION,
    ("loggingSettings", "cloudLoggingSettings"): "has no effect here: the log is the server's",
    ("loggingSettings", "bigqueryExportSettings"): "has no effect here: records are in the store",
    ("defaultChannelProfile", "noiseSuppressionLevel"): "has no effect here: there is no suppression of noise",
    ("dataStoreSettings",): "has no effect here: there are no data stores of the platform",
}
"""Path of a setting in the main file -> end of the message about it."""
_PROACTIVE_WITHOUT_EFFECT = (
    "'proactiveExecutionEnabled' has no effect here: the callback runs once for each whole answer"
)
_SESSION_ONLY_TOOLS: Mapping[str, str] = {"clientFunction": "client functions", format.WIDGET_TOOL: "widgets"}
_CONNECTION_SETTINGS = ("serviceDirectoryConfig", "tlsConfig")
# The platform's documented limits. They are warnings, because larger apps work here.
_PLATFORM_LIMITS = (("agents", 100), ("tools", 200), ("variables", 100))
_MAX_TOOLS_PER_AGENT, _MAX_CALLBACKS_PER_AGENT = 100, 50


def check_cx_app(path: Path) -> CheckReport:
    """Report everything that can be found in the files without running the app's code."""
    findings = Findings()
    try:
        served = format.read_export(path).served(findings)
    except ProjectError as error:
        findings.error(path.name, 1, str(error), format.CheckRule.UNREADABLE.value)
        return findings.report()
    for each in served:
        _Checker(each.app, each.reader).check()
    return findings.report()


async def check_cx_imports(pool: WorkerPool) -> CheckReport:
    """Report errors of running the Python of all served versions, and tool servers that do not answer.

    Raises `WorkerError`.
    """
    # Each version has its own worker: one whose Python ends the process must not hide the others' findings.
    described = await describe_app(pool)
    errors, warnings = [*described.errors], [*described.unreachable]
    for variant in list(described.answer.get("places", ()))[1:]:
        other = await describe_app(pool, variant)
        errors += other.errors
        warnings += other.unreachable
    return CheckReport(errors, warnings)


class _Checker:
    """The check of one version of an app."""

    def __init__(self, app: format.CxApp, reader: format.AppReader) -> None:
        self._app = app
        self._reader = reader
        self._python = PythonChecker(app, reader)
        self._instructions = InstructionChecker(app, reader)

    def check(self) -> None:
        app = self._app
        app_file = app.files.app_file
        counts = {"agents": len(app.agents), "tools": len(app.tools), "variables": len(app.variables)}
        for name, limit in _PLATFORM_LIMITS:
            if counts[name] > limit:
                self._reader.warning(
                    format.CheckRule.LIMIT, app_file, name, f"{counts[name]} {name}; the platform takes {limit}"
                )
        if problem := engine.ambient_sound_problem(app.data):
            self._reader.warning(format.CheckRule.NO_EFFECT, app_file, "ambientSoundConfig", problem)
        for key, problem in _settings_without_effect(app.data):
            rule = (
                format.CheckRule.RECORDING_PATH if key.endswith("udioRecordingConfig") else format.CheckRule.NO_EFFECT
            )
            self._reader.warning(rule, app_file, key, problem)
        # Only the files of deployments are checked here, not the versions that they serve.
        format.check_deployments(self._reader)
        for agent in app.agents.values():
            self._check_agent(agent)
        self._check_tools()
        for toolset in app.toolsets.values():
            if toolset.schema is None and toolset.mcp is None:
                self._reader.warning(
                    format.CheckRule.NOT_HERE,
                    toolset.file,
                    toolset.name,
                    "this toolset does not work here: only OpenAPI and MCP toolsets do",
                )
            self._check_authentication(toolset.file, toolset.data)
            self._check_timeout(toolset.file, toolset.data)
        self._check_other_code()
        for guardrail in app.guardrails.values():
            self._check_safety(guardrail)

    def _check_safety(self, guardrail: format.GuardrailConfig) -> None:
        if MODEL_SAFETY not in guardrail.data:
            return
        message = f"'{MODEL_SAFETY}' is enforced by Gemini's own models only: others answer without it"
        self._reader.warning(format.CheckRule.MODEL_SAFETY, guardrail.file, MODEL_SAFETY, message)
        for kind, threshold in safety_settings(guardrail.data):
            if problem := safety_problem(kind, threshold):
                # The finding is placed at the line of the word that the message quotes.
                bad = threshold if threshold in problem else kind
                self._reader.warning(format.CheckRule.NO_EFFECT, guardrail.file, bad, f"{problem}: it has no effect")

    def _check_other_code(self) -> None:
        """Check the Python of guardrails, transfer rules and fakes."""
        for guardrail in self._app.guardrails.values():
            for point, code in guardrail.callbacks.items():
                self._python.check_callback(code, point)
        for agent in self._app.agents.values():
            for code in agent.conditions.values():
                self._python.check_file(code)
        for tool in self._app.tools.values():
            if tool.fake is not None:
                self._python.check_file(tool.fake)

    def _check_agent(self, agent: format.AgentConfig) -> None:
        if "remoteDialogflowAgent" in agent.data:
            self._reader.error(
                format.CheckRule.NOT_HERE,
                agent.file,
                "remoteDialogflowAgent",
                "remote agents do not run here: write the agent in this app",
            )
        if len(agent.tools) > _MAX_TOOLS_PER_AGENT:
            self._reader.warning(
                format.CheckRule.LIMIT,
                agent.file,
                "tools",
                f"{len(agent.tools)} tools; the platform takes 100 per agent",
            )
        if sum(len(row) for row in agent.callbacks.values()) > _MAX_CALLBACKS_PER_AGENT:
            self._reader.warning(
                format.CheckRule.LIMIT, agent.file, "name", "more than 50 callbacks; the platform takes 50 per agent"
            )
        for point, row in agent.callbacks.items():
            for code in row:
                self._python.check_callback(code, point)
        for key, problem in _callbacks_without_effect(agent.data):
            self._reader.warning(format.CheckRule.NO_EFFECT, agent.file, key, problem)
        self._instructions.check(agent)
        for rule in objects_at(agent.data, "transferRules"):
            for kind in ("deterministicTransfer", "disablePlannerTransfer"):
                if expression := engine.condition_expression(rule.get(kind)):
                    self._check_expression(agent, expression)

    def _check_expression(self, agent: format.AgentConfig, expression: str) -> None:
        try:
            Expression(expression)
        except ValueError as error:
            self._reader.error(format.CheckRule.CONDITION, agent.file, "expression", f"'{expression}': {error}")

    def _check_tools(self) -> None:
        for tool in self._app.tools.values():
            self._check_authentication(tool.file, tool.data)
            if tool.kind in _SESSION_ONLY_TOOLS:
                message = (
                    f"{_SESSION_ONLY_TOOLS[tool.kind]} work in sessions only: a model that calls this tool on the "
                    "telephone is told so"
                )
                self._reader.warning(format.CheckRule.CLIENT_FUNCTION, tool.file, tool.kind, message)
                for key, problem in format.settings_without_effect(tool.own):
                    self._reader.warning(format.CheckRule.NO_EFFECT, tool.file, key, problem)
            elif tool.kind in format.UNAVAILABLE:
                message = f"tools of the kind '{tool.kind}' do not work here: the model is told so when it calls one"
                self._reader.warning(format.CheckRule.NOT_HERE, tool.file, tool.kind, message)
            self._check_timeout(tool.file, tool.data)
            if tool.code is not None:
                self._python.check_tool(tool, tool.code)

    def _check_timeout(self, file: str, data: JsonObject) -> None:
        if data.get("timeout") is not None and format.tool_timeout(data) is None:
            message = f"'{data['timeout']}' has no effect: write a duration such as '20s'"
            self._reader.warning(format.CheckRule.NO_EFFECT, file, "timeout", message)

    def _check_authentication(self, file: str, data: JsonObject) -> None:
        """Report unsupported kinds of authentication, and settings of connections that have no effect."""
        for tool_data in (object_at(data, key) for key in ("openApiToolset", "openApiTool", "mcpToolset", "mcpTool")):
            for kind in object_at(tool_data, "apiAuthentication"):
                if kind not in format.AUTHENTICATION:
                    message = (
                        f"'{kind}' does not work here, and requests are sent without it: "
                        f"use {', '.join(format.AUTHENTICATION)}"
                    )
                    self._reader.warning(format.CheckRule.AUTHENTICATION, file, kind, message)
            for kind in _CONNECTION_SETTINGS:
                if tool_data.get(kind):
                    message = f"'{kind}' has no effect here: the system's certificates and name resolution are used"
                    self._reader.warning(format.CheckRule.NO_EFFECT, file, kind, message)


def _settings_without_effect(data: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield key and reason of each setting of the app's main file that has no effect here."""
    for path, reason in _APP_SETTINGS_WITHOUT_EFFECT.items():
        if object_at(data, *path[:-1]).get(path[-1]):
            yield path[-1], f"'{path[-1]}' {reason}"
    for declared in objects_at(data, "variableDeclarations"):
        if declared.get("name") in _TRANSFER_VARIABLES:
            default = object_at(declared, "schema").get("default")
            for key in engine.as_map(default).keys() & _TRANSFER_SETTINGS_WITHOUT_EFFECT.keys():
                yield key, f"'{key}' {_TRANSFER_SETTINGS_WITHOUT_EFFECT[key]}"


def _callbacks_without_effect(data: JsonObject) -> Iterator[tuple[str, str]]:
    for callback in objects_at(data, "afterModelCallbacks"):
        if callback.get("proactiveExecutionEnabled") and not callback.get("disabled"):
            yield "proactiveExecutionEnabled", _PROACTIVE_WITHOUT_EFFECT


MAX_WORDS = 3000
"""Words above which an instruction is reported as long; the limit of the platform's published linter."""
_REFERENCE = re.compile(r"\{@(AGENT|TOOL|(?i:WIDGET)):\s*([^}]+?)\s*\}")
_OTHER_SYNTAX = re.compile(r"\$\{@?(?:AGENT|TOOL):[^}]*\}|(?<![{$])\{(?:AGENT|TOOL):[^}]*\}")
_TASKFLOW = re.compile(r"<taskflow>(.*?)</taskflow>", re.DOTALL)
_NEGATIVE_TRIGGER = re.compile(r"<trigger>.*?(?:\bNOT\b|\bnot (?:an?|the)\b).*?</trigger>")


class InstructionChecker:
    """The check of an app's instructions."""

    def __init__(self, app: format.CxApp, reader: format.AppReader) -> None:
        self._app = app
        self._reader = reader

    def check(self, agent: format.AgentConfig) -> None:
        """Check an agent's instruction. Findings have the line in its text file; without such a file, line 1."""
        # In the agent's own file, an instruction is one line of JSON: its lines are not those of the file.
        instruction_file = str(agent.data.get("instruction"))
        has_file = instruction_file in self._app.files.contents
        file = instruction_file if has_file else agent.file

        def line_in_file(line: int) -> int:
            return line if has_file else 1

        for line, problem in engine.condition_problems(agent.instruction):
            self._reader.error_at(format.CheckRule.CONDITION, file, line_in_file(line), problem)
        for line in engine.other_tag_lines(agent.instruction):
            message = "only conditions are evaluated: the model sees this '{% … %}' as it is written"
            self._reader.warning_at(format.CheckRule.OTHER_TAG, file, line_in_file(line), message)
        for rule, line, message in (*self._references(agent), *_lint_style(agent.instruction)):
            self._reader.warning_at(rule, file, line_in_file(line), message)
        self._check_unnamed(agent)

    def _references(self, agent: format.AgentConfig) -> Iterator[tuple[format.CheckRule, int, str]]:
        tools = self._tools(agent)
        for found in _REFERENCE.finditer(agent.instruction):
            line, name = _line(agent.instruction, found), found[2]
            if found[1] == "AGENT" and self._app.agent_named(name) is None:
                yield format.CheckRule.NO_SUCH_AGENT, line, f"'{found[0]}': there is no such agent in agents/"
            if found[1] != "AGENT" and tools is not None and name not in tools:
                yield format.CheckRule.TOOL_NOT_GIVEN, line, f"'{found[0]}': the agent does not have this tool"

    def _tools(self, agent: format.AgentConfig) -> set[str] | None:
        """Return the names by which an instruction may refer to the agent's tools; None if only a server knows them."""
        # Authors may write any of a tool's names: `instruction.render_instruction` replaces it by the right one.
        names: set[str] = {*format.SYSTEM_TOOLS, *agent.tools}
        for each in agent.tools:
            found = self._app.tool_named(each)
            if found is not None:
                tool = self._app.tools[found]
                names |= {tool.name, tool.display_name, tool.function, format.tool_name(tool)}
        for each, _ in agent.toolsets:
            named = self._app.toolset_named(each)
            toolset = self._app.toolsets[named] if named else None
            if toolset is None or toolset.schema is None:
                return None
            for operation in format.operations(toolset.schema):
                names |= {operation.name, f"{toolset.name}_{operation.name}",
                          f"{toolset.display_name}_{operation.name}"}  # fmt: skip
        return names

    def _check_unnamed(self, agent: format.AgentConfig) -> None:
        """Report tools that may be forgotten: an instruction names other tools of the agent, but not these."""
        named = {found[2] for found in _REFERENCE.finditer(agent.instruction) if found[1] != "AGENT"}
        # An instruction that names no tool at all leaves the choice to the model.
        if not named:
            return
        known = {format.referenced_tool_name(self._app, {"tool": each}) for each in named} | named
        for each in agent.tools:
            name = format.referenced_tool_name(self._app, {"tool": each})
            if each.rsplit("/", 1)[-1] not in format.SYSTEM_TOOLS and not {each, name} & known:
                message = f"the instruction names other tools, but never '{each}'"
                self._reader.warning(format.CheckRule.TOOL_NOT_NAMED, agent.file, each, message)


def _lint_style(instruction: str) -> Iterator[tuple[format.CheckRule, int, str]]:
    """Yield rule, line and message of text that models misread or that is so long that callers wait."""
    for found in _OTHER_SYNTAX.finditer(instruction):
        message = f"'{found[0]}': references are written {{@AGENT: name}} and {{@TOOL: name}}"
        yield format.CheckRule.REFERENCE_SYNTAX, _line(instruction, found), message
    for found in _TASKFLOW.finditer(instruction):
        if "<subtask" not in found[1] and "<step" not in found[1]:
            yield format.CheckRule.TASKFLOW, _line(instruction, found), "<taskflow> has neither <subtask> nor <step>"
    for found in _NEGATIVE_TRIGGER.finditer(instruction):
        message = "a <trigger> should say what is the case: models misread negations"
        yield format.CheckRule.NEGATIVE_TRIGGER, _line(instruction, found), message
    words = len(instruction.split())
    if words > MAX_WORDS:
        message = f"{words} words: the model reads them before each answer, and the caller waits; child agents may help"
        yield format.CheckRule.LONG_INSTRUCTION, 1, message


def _line(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start()) + 1
