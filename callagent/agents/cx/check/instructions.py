"""The check of instructions: conditions, references, and what makes models misread them or callers wait."""

from __future__ import annotations

import re
from collections.abc import Iterator

from callagent.agents.cx.engine import condition_problems, other_tag_lines
from callagent.agents.cx.format import (
    SYSTEM_TOOLS,
    AgentConfig,
    AppReader,
    CheckRule,
    CxApp,
    operations,
    referenced_tool_name,
    tool_name,
)

MAX_WORDS = 3000
"""Words of an instruction above which it is reported as long; the figure of the platform's published linter."""
_REFERENCE = re.compile(r"\{@(AGENT|TOOL|(?i:WIDGET)):\s*([^}]+?)\s*\}")
_OTHER_SYNTAX = re.compile(r"\$\{@?(?:AGENT|TOOL):[^}]*\}|(?<![{$])\{(?:AGENT|TOOL):[^}]*\}")
_TASKFLOW = re.compile(r"<taskflow>(.*?)</taskflow>", re.DOTALL)
_NEGATIVE = re.compile(r"<trigger>.*?(?:\bNOT\b|\bnot (?:an?|the)\b).*?</trigger>")


class InstructionChecker:
    """Checks the instructions of an app's agents."""

    def __init__(self, app: CxApp, reader: AppReader) -> None:
        self._app = app
        self._reader = reader

    def check(self, agent: AgentConfig) -> None:
        """Check an agent's instruction. Findings have the line of its text file, or line 1 where it is in place."""
        named = str(agent.data.get("instruction"))
        own_file = named in self._app.files.contents
        file = named if own_file else agent.file

        def at(line: int) -> int:
            return line if own_file else 1

        for line, problem in condition_problems(agent.instruction):
            self._reader.error_at(CheckRule.CONDITION, file, at(line), problem)
        for line in other_tag_lines(agent.instruction):
            message = "only conditions are evaluated: the model sees this '{% … %}' as it is written"
            self._reader.warning_at(CheckRule.OTHER_TAG, file, at(line), message)
        for rule, line, message in (*self._references(agent), *_form(agent.instruction)):
            self._reader.warning_at(rule, file, at(line), message)
        self._unnamed(agent)

    def _references(self, agent: AgentConfig) -> Iterator[tuple[CheckRule, int, str]]:
        tools = self._tools(agent)
        for found in _REFERENCE.finditer(agent.instruction):
            line, name = _line(agent.instruction, found), found[2]
            if found[1] == "AGENT" and self._app.agent_named(name) is None:
                yield CheckRule.NO_SUCH_AGENT, line, f"'{found[0]}': there is no such agent in agents/"
            if found[1] != "AGENT" and tools is not None and name not in tools:
                yield CheckRule.TOOL_NOT_GIVEN, line, f"'{found[0]}': the agent does not have this tool"

    def _tools(self, agent: AgentConfig) -> set[str] | None:
        """Return the names by which an instruction may refer to the agent's tools; None: a server lists them."""
        names: set[str] = {*SYSTEM_TOOLS, *agent.tools}
        for each in agent.tools:
            found = self._app.tool_named(each)
            if found is not None:
                tool = self._app.tools[found]
                names |= {tool.name, tool.display_name, tool.function, tool_name(tool)}
        for each, _ in agent.toolsets:
            named = self._app.toolset_named(each)
            toolset = self._app.toolsets[named] if named else None
            if toolset is None or toolset.schema is None:
                return None
            for operation in operations(toolset.schema):
                names |= {operation.name, f"{toolset.name}_{operation.name}",
                          f"{toolset.display_name}_{operation.name}"}  # fmt: skip
        return names

    def _unnamed(self, agent: AgentConfig) -> None:
        """Report tools that an instruction does not name although it names others: they may have been forgotten."""
        named = {found[2] for found in _REFERENCE.finditer(agent.instruction) if found[1] != "AGENT"}
        if not named:
            return
        known = {referenced_tool_name(self._app, {"tool": each}) for each in named} | named
        for each in agent.tools:
            name = referenced_tool_name(self._app, {"tool": each})
            if each.rsplit("/", 1)[-1] not in SYSTEM_TOOLS and not {each, name} & known:
                message = f"the instruction names other tools and never '{each}'"
                self._reader.warning(CheckRule.TOOL_NOT_NAMED, agent.file, each, message)


def _form(instruction: str) -> Iterator[tuple[CheckRule, int, str]]:
    for found in _OTHER_SYNTAX.finditer(instruction):
        message = f"'{found[0]}': references are written {{@AGENT: name}} and {{@TOOL: name}}"
        yield CheckRule.REFERENCE_SYNTAX, _line(instruction, found), message
    for found in _TASKFLOW.finditer(instruction):
        if "<subtask" not in found[1] and "<step" not in found[1]:
            yield CheckRule.TASKFLOW, _line(instruction, found), "<taskflow> has neither <subtask> nor <step>"
    for found in _NEGATIVE.finditer(instruction):
        message = "a <trigger> should say what is the case: models misread negations"
        yield CheckRule.NEGATIVE_TRIGGER, _line(instruction, found), message
    words = len(instruction.split())
    if words > MAX_WORDS:
        message = f"{words} words: the model reads them before each answer, and the caller waits; child agents may help"
        yield CheckRule.LONG_INSTRUCTION, 1, message


def _line(text: str, found: re.Match[str]) -> int:
    return text.count("\n", 0, found.start()) + 1
