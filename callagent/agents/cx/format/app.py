"""An exported app as declared: agents, tools, toolsets, guardrails, variables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.cx.format.files import AppFiles

POINTS = {
    "before_agent": "beforeAgentCallbacks",
    "after_agent": "afterAgentCallbacks",
    "before_model": "beforeModelCallbacks",
    "after_model": "afterModelCallbacks",
    "before_tool": "beforeToolCallbacks",
    "after_tool": "afterToolCallbacks",
}
"""Point -> key of an agent's file."""


AUTHENTICATION = (
    "apiKeyConfig", "bearerTokenConfig", "oauthConfig", "serviceAccountAuthConfig", "serviceAgentIdTokenAuthConfig",
)  # fmt: skip
"""Ways to prove to an outside server who asks, as far as they work here."""

UNAVAILABLE = (
    "clientFunction", "connectorTool", "dataStoreTool", "fileSearchTool", "googleSearchTool", "remoteAgentTool",
    "widgetTool",
)  # fmt: skip
"""Kinds of tools that need the platform's services, or a screen. Models are offered them, as their instructions name
them, and told when they call one; client functions and widgets are for sessions of clients."""
MAX_TOOL_SECONDS = 300.0
"""Seconds, whatever the app says."""


@dataclass(frozen=True, slots=True)
class Code:
    """Python of the app."""

    file: str
    source: str


@dataclass(frozen=True, slots=True)
class AgentConfig:
    name: str
    """Of the folder."""
    display_name: str
    data: Mapping[str, Any]
    instruction: str
    file: str
    callbacks: Mapping[str, Sequence[Code]]
    """By point, without those that are disabled."""
    tools: Sequence[str]
    toolsets: Sequence[tuple[str, Sequence[str] | None]]
    """Name and the operations it may use; None: all."""
    children: Sequence[str]
    guardrails: Sequence[str]
    conditions: Mapping[int, Code] = field(default_factory=dict)
    """Python of transfer rules by the rule's index."""


@dataclass(frozen=True, slots=True)
class ToolConfig:
    name: str
    display_name: str
    data: Mapping[str, Any]
    file: str
    kind: str
    """Which of the one-of keys it has: `pythonFunction`, `openApiTool` …; empty: none."""
    code: Code | None = None
    function: str = ""
    """The function's name; empty: the first one in the file."""
    description: str = ""
    fake: Code | None = None
    """What answers in its place where a session asks for fakes."""
    schema: Mapping[str, Any] | None = None
    """OpenAPI, of `openApiTool`."""


@dataclass(frozen=True, slots=True)
class ToolsetConfig:
    name: str
    display_name: str
    data: Mapping[str, Any]
    file: str
    schema: Mapping[str, Any] | None
    """OpenAPI; None: a toolset of another kind."""

    @property
    def mcp(self) -> Mapping[str, Any] | None:
        """Of a Model Context Protocol server; None: a toolset of another kind."""
        own = self.data.get("mcpToolset")
        return own if isinstance(own, Mapping) and own.get("serverAddress") else None


@dataclass(frozen=True, slots=True)
class GuardrailConfig:
    name: str
    data: Mapping[str, Any]
    file: str
    callbacks: Mapping[str, Code] = field(default_factory=dict)
    """By point."""


@dataclass(frozen=True, slots=True)
class CxApp:
    files: AppFiles
    name: str
    data: Mapping[str, Any]
    root_agent: str
    global_instruction: str
    agents: Mapping[str, AgentConfig]
    tools: Mapping[str, ToolConfig]
    toolsets: Mapping[str, ToolsetConfig]
    guardrails: Mapping[str, GuardrailConfig]
    variables: Mapping[str, Any]
    """Name -> default."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Agent -> what its model is shown of how to answer."""

    @property
    def language(self) -> str:
        settings = self.data.get("languageSettings") or {}
        return str(settings.get("defaultLanguageCode") or "")

    @property
    def persona(self) -> str:
        """How long the channel wants answers: `CONCISE`, `CHATTY`; empty: it says nothing."""
        profile = self.data.get("defaultChannelProfile")
        own = profile.get("personaProperty") if isinstance(profile, Mapping) else None
        return str(own.get("persona") or "") if isinstance(own, Mapping) else ""

    def agent_named(self, name: str) -> str | None:
        """The folder name of an agent by its folder, its display name or its resource name."""
        return _named(name, {each.name: each.display_name for each in self.agents.values()})

    def tool_named(self, name: str) -> str | None:
        return _named(name, {each.name: each.display_name for each in self.tools.values()})

    def toolset_named(self, name: str) -> str | None:
        return _named(name, {each.name: each.display_name for each in self.toolsets.values()})

    def guardrail_named(self, name: str) -> str | None:
        return _named(name, {each.name: str(each.data.get("displayName")) for each in self.guardrails.values()})


def _named(name: str, displayed: Mapping[str, str]) -> str | None:
    """The folder name of an object by its folder, its display name or its resource name."""
    wanted = name.rsplit("/", 1)[-1]
    if wanted in displayed:
        return wanted
    return next((folder for folder, shown in displayed.items() if shown == wanted), None)


def tool_timeout(data: Mapping[str, Any]) -> float | None:
    """Seconds that a tool's or a toolset's file gives one call; None: it does not say."""
    return min(parse_duration(data.get("timeout")), MAX_TOOL_SECONDS) or None


def tool_name(tool: ToolConfig) -> str:
    """How models and code call it."""
    if tool.kind == "pythonFunction" and tool.function and not tool.display_name.isidentifier():
        return tool.function
    if tool.kind == "openApiTool" and tool.function:
        return tool.function
    return tool.display_name if tool.display_name.isidentifier() else tool.name


def referenced_tool_name(app: CxApp, named: Mapping[str, Any]) -> str:
    """The tool of a call or an answer in examples and evaluations, as models call it."""
    inside = named.get("toolsetTool")
    if isinstance(inside, Mapping):
        given = str(inside.get("toolset") or "")
        toolset = app.toolset_named(given)
        shown = app.toolsets[toolset].display_name if toolset else given.rsplit("/", 1)[-1]
        return f"{shown}_{inside.get('toolId')}"
    name = str(named.get("tool") or named.get("displayName") or named.get("id") or "").rsplit("/", 1)[-1]
    found = app.tool_named(name)
    return tool_name(app.tools[found]) if found else name


def parse_duration(value: Any) -> float:
    """Of a duration as `5s` or a number; 0: none."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*s?\s*", str(value)) if value is not None else None
    return float(found[1]) if found else 0.0
