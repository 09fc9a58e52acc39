"""An exported app as it is declared: agents, tools, toolsets, guardrails, variables and widgets.

Objects refer to one another by folder, display name or resource name; `CxApp.agent_named` and its like resolve all
three to the folder's name.

A widget is content that an agent shows on the screen of a Session API client. The model calls the widget's tool with
that content. The client receives it as `SessionOutput.payload`, which ends the turn; the client's next input is the
caller's (google.cloud.ces.v1beta, widget_tool.proto).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from callagent.agents.cx.format.files import AppFiles
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at

CALLBACK_POINTS = {
    "before_agent": "beforeAgentCallbacks",
    "after_agent": "afterAgentCallbacks",
    "before_model": "beforeModelCallbacks",
    "after_model": "afterModelCallbacks",
    "before_tool": "beforeToolCallbacks",
    "after_tool": "afterToolCallbacks",
}
"""Callback point -> key of an agent's file."""


AUTHENTICATION = (
    "apiKeyConfig", "bearerTokenConfig", "oauthConfig", "serviceAccountAuthConfig", "serviceAgentIdTokenAuthConfig",
)  # fmt: skip
"""Kinds of authentication to tool servers that are supported."""

UNAVAILABLE = (
    "clientFunction", "connectorTool", "dataStoreTool", "fileSearchTool", "googleSearchTool", "remoteAgentTool",
    "widgetTool",
)  # fmt: skip
"""Kinds of tools that need the platform's services or a client. They are offered to the model, because instructions
name them, and answer that they are not available. Client functions and widgets work in the Session API."""
MAX_TOOL_SECONDS = 300.0
"""Upper bound of a tool's `timeout`."""


@dataclass(frozen=True, slots=True)
class Code:
    """A Python file of the app."""

    file: str
    source: str


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """An agent as it is declared."""

    name: str
    """The folder's name."""
    display_name: str
    data: JsonObject
    instruction: str
    file: str
    callbacks: Mapping[str, Sequence[Code]]
    """Enabled callbacks by callback point."""
    tools: Sequence[str]
    toolsets: Sequence[tuple[str, Sequence[str] | None]]
    """Name of the toolset and the operations that the agent may use; None: all."""
    children: Sequence[str]
    guardrails: Sequence[str]
    conditions: Mapping[int, Code] = field(default_factory=dict)
    """Python conditions of transfer rules, by the rule's index."""


@dataclass(frozen=True, slots=True)
class ToolConfig:
    """A tool as it is declared."""

    name: str
    display_name: str
    data: JsonObject
    file: str
    kind: str
    """The kind of tool: `pythonFunction`, `openApiTool` …; empty: unknown."""
    code: Code | None = None
    function: str = ""
    """The Python function's name; empty: the first one in the file."""
    description: str = ""
    fake: Code | None = None
    """Python that runs in place of the tool in sessions with fakes (`toolFakeConfig`)."""
    schema: JsonObject | None = None
    """The OpenAPI description of an `openApiTool`."""

    @property
    def own(self) -> JsonObject:
        """The settings under the tool's kind, such as those of `openApiTool`; empty for an unknown kind."""
        return object_at(self.data, self.kind)


@dataclass(frozen=True, slots=True)
class ToolsetConfig:
    """A toolset as it is declared."""

    name: str
    display_name: str
    data: JsonObject
    file: str
    schema: JsonObject | None
    """The OpenAPI description; None for a toolset of another kind."""

    @property
    def mcp(self) -> JsonObject | None:
        """The settings of an MCP (Model Context Protocol) server; None for a toolset of another kind."""
        own = object_at(self.data, "mcpToolset")
        return own if own.get("serverAddress") else None


@dataclass(frozen=True, slots=True)
class GuardrailConfig:
    """A guardrail as it is declared."""

    name: str
    data: JsonObject
    file: str
    callbacks: Mapping[str, Code] = field(default_factory=dict)
    """The guardrail's Python by callback point."""


@dataclass(frozen=True, slots=True)
class CxApp:
    """An app whose references have been checked."""

    files: AppFiles
    name: str
    data: JsonObject
    root_agent: str
    global_instruction: str
    agents: Mapping[str, AgentConfig]
    tools: Mapping[str, ToolConfig]
    toolsets: Mapping[str, ToolsetConfig]
    guardrails: Mapping[str, GuardrailConfig]
    variables: JsonObject
    """Variable -> default value."""
    examples: Mapping[str, str] = field(default_factory=dict)
    """Agent -> example conversations for its model, as text."""

    @property
    def language(self) -> str:
        """The default language code; empty if the app names none."""
        return str(object_at(self.data, "languageSettings").get("defaultLanguageCode") or "")

    @property
    def persona(self) -> str:
        """The channel's persona, `CONCISE` or `CHATTY`; empty if the app names none."""
        return str(object_at(self.data, "defaultChannelProfile", "personaProperty").get("persona") or "")

    def agent_named(self, name: str) -> str | None:
        """Return the folder name of an agent by its folder, display or resource name; None if there is none."""
        return _find_folder(name, {each.name: each.display_name for each in self.agents.values()})

    def tool_named(self, name: str) -> str | None:
        return _find_folder(name, {each.name: each.display_name for each in self.tools.values()})

    def toolset_named(self, name: str) -> str | None:
        return _find_folder(name, {each.name: each.display_name for each in self.toolsets.values()})

    def guardrail_named(self, name: str) -> str | None:
        return _find_folder(name, {each.name: str(each.data.get("displayName")) for each in self.guardrails.values()})


def _find_folder(name: str, displayed: Mapping[str, str]) -> str | None:
    # A resource name (`projects/…/agents/NAME`) ends with the folder's name. Folders come before display names, which
    # need not be unique.
    wanted = name.rsplit("/", 1)[-1]
    if wanted in displayed:
        return wanted
    return next((folder for folder, shown in displayed.items() if shown == wanted), None)


def tool_timeout(data: JsonObject) -> float | None:
    """Return the `timeout` of a tool or toolset in seconds; None if it is missing or no duration."""
    return min(parse_duration(data.get("timeout")), MAX_TOOL_SECONDS) or None


def tool_name(tool: ToolConfig) -> str:
    """Return the name by which the model and code call a tool."""
    # Models refuse names with spaces, which display names often have.
    if tool.kind == "pythonFunction" and tool.function and not tool.display_name.isidentifier():
        return tool.function
    if tool.kind == "openApiTool" and tool.function:
        return tool.function
    return tool.display_name if tool.display_name.isidentifier() else tool.name


def referenced_tool_name(app: CxApp, named: JsonObject) -> str:
    """Return the name by which the model calls the tool that an example or evaluation refers to."""
    inside = named.get("toolsetTool")
    if isinstance(inside, Mapping):
        # The name consists of the toolset's display name and the tool's own name, as in `agent_tree.py`.
        toolset_name = str(inside.get("toolset") or "")
        toolset = app.toolset_named(toolset_name)
        shown = app.toolsets[toolset].display_name if toolset else toolset_name.rsplit("/", 1)[-1]
        return f"{shown}_{inside.get('toolId')}"
    name = str(named.get("tool") or named.get("displayName") or named.get("id") or "").rsplit("/", 1)[-1]
    found = app.tool_named(name)
    return tool_name(app.tools[found]) if found else name


def parse_duration(value: JsonValue) -> float:
    """Return the seconds of a duration such as `5s`, or of a number; 0 if the value is neither."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*s?\s*", str(value)) if value is not None else None
    return float(found[1]) if found else 0.0


WIDGET_TOOL = "widgetTool"
TEXT_ARGUMENT = "text_response"
"""The argument for the words spoken with a widget, if the model writes them."""
_PAYLOAD_TYPES: Mapping[str, str] = {
    "PRODUCT_CAROUSEL": "product_detail_carousel",
    "PRODUCT_COMPARISON": "product_comparison",
    "PRODUCT_DETAILS": "base_product_detail",
}
"""Widget type -> `type` of its payload, by which clients tell widgets apart; other types are written in lower case."""
_WITHOUT_PAYLOAD_TYPE = ("", "CUSTOM", "WIDGET_TYPE_UNSPECIFIED")


@dataclass(frozen=True, slots=True)
class Widget:
    """A widget with the settings of its words."""

    type: str
    """The payload's `type`; empty for a custom widget, whose arguments are the whole payload."""
    text: str
    """The fixed text that is spoken with it; empty if there is none."""
    model_writes_words: bool
    """Whether the model writes the words that are spoken with it."""
    words: str
    """The model's instruction for these words."""

    def payload(self, arguments: JsonObject) -> MutableJsonObject:
        """Return the payload for the client's screen."""
        shown = {key: value for key, value in arguments.items() if not self.model_writes_words or key != TEXT_ARGUMENT}
        return {"type": self.type, **shown} if self.type else shown

    def spoken_text(self, arguments: JsonObject) -> str:
        """Return the words spoken with the widget, empty if there are none."""
        return str(arguments.get(TEXT_ARGUMENT) or "") if self.model_writes_words else self.text

    def parameters(self, own: JsonObject) -> MutableJsonObject:
        """Return the schema of the tool's arguments: the widget's own, and the words if the model writes them."""
        schema: MutableJsonObject = {"type": "object", **own}
        if not self.model_writes_words:
            return schema
        words = {"type": "string", "description": self.words or "What is said with it."}
        return {
            **schema,
            "properties": {**object_at(own, "properties"), TEXT_ARGUMENT: words},
            "required": [*list_at(own, "required"), TEXT_ARGUMENT],
        }


def widgets_of(app: CxApp) -> dict[str, Widget]:
    """Return the app's widgets by the names under which the model calls them."""
    return {tool_name(tool): widget_of(tool) for tool in app.tools.values() if tool.kind == WIDGET_TOOL}


def widget_of(config: ToolConfig) -> Widget:
    """Return the widget of a tool of the kind `widgetTool`."""
    own = config.own
    kind = str(own.get("widgetType") or "")
    words = object_at(own, "textResponseConfig")
    return Widget(
        type="" if kind in _WITHOUT_PAYLOAD_TYPE else _PAYLOAD_TYPES.get(kind, kind.lower()),
        text=str(words.get("staticText") or "") if words.get("type") == "STATIC" else "",
        model_writes_words=words.get("type") == "LLM_GENERATED",
        words=str(words.get("textResponseInstruction") or ""),
    )


def settings_without_effect(own: JsonObject) -> Iterator[tuple[str, str]]:
    """Yield key and reason of each setting of a widget that has no effect here."""
    if own.get("dataMapping"):
        yield "dataMapping", "'dataMapping' has no effect here: the model fills in the widget's data"
    if own.get("uiConfig"):
        yield "uiConfig", "'uiConfig' has no effect here: it is not sent to clients"
