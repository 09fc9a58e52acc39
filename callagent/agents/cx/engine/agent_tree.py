"""The tree of agents that the engine runs, built from an app's agents, tools, toolsets and guardrails.

Tools of supported kinds become tools that a worker runs. Tools that need the platform's services are offered to the
model, too, because instructions name them; when called, they answer that they are not available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from callagent.agents.cx import format
from callagent.agents.cx.guardrails import guardrails_for
from callagent.agents.tree import CallbackPoint, LlmNode, Tool, ToolKind
from callagent.json_values import JsonObject, JsonValue, number_at, object_at, text_at

ASYNCHRONOUS_TIMEOUT = 60.0
"""Seconds for an asynchronous tool that names no `timeout`."""
DESCRIBED_KINDS = ("pythonFunction", "mcpTool")
"""Kinds of tools whose parameters a worker determines."""
END_SESSION, CUSTOMIZE_RESPONSE = "end_session", "customize_response"
_AGENT_REQUEST: JsonObject = {
    "type": "object",
    "properties": {"request": {"type": "string"}},
    "required": ["request"],
}
_SYSTEM_DECLARATIONS: Mapping[str, tuple[str, JsonObject]] = {
    END_SESSION: (
        "End the conversation, or give it to a person.",
        {
            "type": "object",
            "properties": {
                "reason": {"type": "string", "description": "Why the conversation ends."},
                "session_escalated": {"type": "boolean", "description": "True: a person goes on."},
                "params": {"type": "object", "description": "Information for whoever takes over."},
            },
            "required": ["reason"],
        },
    ),
    CUSTOMIZE_RESPONSE: (
        "Say something that the caller cannot interrupt, or that asks for an entry on the telephone's keys.",
        {
            "type": "object",
            "properties": {
                "content": {"type": "string", "description": "What is said."},
                "enable_dtmf": {"type": "boolean"},
                "dtmf_endpointing_timeout_modes": {"type": "string", "enum": ["short", "mid", "long"]},
                "dtmf_finish_digit": {"type": "string"},
                "disable_barge_in": {"type": "boolean"},
            },
            "required": ["content"],
        },
    ),
}


def build_tree(app: format.CxApp, described: JsonObject, *, clients: bool = False) -> LlmNode:
    """Build the tree and return its root.

    Args:
        described: declarations of Python and MCP tools by name, from a worker.
        clients: whether a client carries out client functions and shows widgets.
    """
    return _TreeBuilder(app, described, clients=clients).build_node(app.root_agent)


def agent_numbers(app: format.CxApp) -> dict[str, int]:
    """Return each agent's number in messages to the worker: its place in alphabetical order."""
    # `runtime/session.py` in the worker numbers the agents in the same order.
    return {name: number for number, name in enumerate(sorted(app.agents))}


def app_tools(app: format.CxApp, described: JsonObject) -> dict[str, Tool]:
    """Return all tools that callbacks may call, also those that no agent lists."""
    builder = _TreeBuilder(app, described)
    tools = [builder.system_tool(name) for name in _SYSTEM_DECLARATIONS]
    # Without client functions: a client answers after the turn, which a call by a callback does not end.
    own = [tool for tool in app.tools.values() if tool.kind != "clientFunction"]
    tools += [made for tool in own if (made := builder.code_tool(tool))]
    for toolset in app.toolsets:
        tools += builder.toolset_tools(toolset, None)
    return {tool.name: tool for tool in tools}


class _TreeBuilder:
    """The builder of one app's nodes and tools.

    `described` comes from a worker. It has, by a tool's name, `{"description", "parameters"}`, and for tools of MCP
    (Model Context Protocol) toolsets also `{"toolset", "name", "original"}`.
    """

    def __init__(self, app: format.CxApp, described: JsonObject, *, clients: bool = False) -> None:
        self._app = app
        self._clients = clients
        self._described = described
        self._agent_numbers = agent_numbers(app)
        self._ancestors: set[str] = set()
        """The agents around the one that is being built."""

    def build_node(self, name: str) -> LlmNode:
        agent = self._app.agents[name]
        self._ancestors.add(name)
        children = [found for each in agent.children if (found := self._app.agent_named(each))]
        # An agent's settings replace the app's as a whole; they are not merged.
        settings = object_at(agent.data, "modelSettings") or object_at(self._app.data, "modelSettings")
        safety: dict[str, str] = {}
        for guardrail in guardrails_for(self._app, agent):
            safety |= guardrail.safety
        node = LlmNode(
            name=name,
            description=str(agent.data.get("description") or ""),
            children=tuple(self.build_node(child) for child in children),
            callbacks=self._callbacks(agent),
            code=self._agent_numbers[name],
            # `PlatformCode.instruction` renders it anew for each request, because it depends on variables.
            instruction=None,
            model=str(settings.get("model") or ""),
            temperature=number_at(settings, "temperature") if settings.get("temperature") is not None else None,
            safety=safety,
            can_transfer_to_peers=False,
            # Models refuse two tools of one name, and an agent may list a tool both by itself and in a toolset.
            tools=(*{tool.name: tool for tool in self._tools(agent)}.values(), *self._example_tools(name)),
        )
        self._ancestors.discard(name)
        return node

    def _callbacks(self, agent: format.AgentConfig) -> dict[CallbackPoint, int]:
        """Return how many callbacks run at each point.

        Before the model and before tools there is always at least one, because the platform's own steps run there.
        """
        counts = {CallbackPoint(point): len(row) for point, row in agent.callbacks.items() if row}
        counts |= {CallbackPoint.BEFORE_MODEL: 1, CallbackPoint.BEFORE_TOOL: 1}
        if any(each.checks_answers for each in guardrails_for(self._app, agent)):
            counts[CallbackPoint.AFTER_MODEL] = 1
        return counts

    def _tools(self, agent: format.AgentConfig) -> list[Tool]:
        tools: list[Tool] = []
        for named in agent.tools:
            name = named.rsplit("/", 1)[-1]
            found = self._app.tool_named(name)
            config = self._app.tools[found] if found else None
            # A tool of the app replaces a system tool of the same name, unless it only declares the system tool.
            if config is None or config.kind == "systemTool":
                # `transfer_to_agent` is left out, because the tree offers it by itself.
                tools += [self.system_tool(name)] if name in _SYSTEM_DECLARATIONS else []
            elif config.kind == "clientFunction" and self._clients:
                tools.append(_client_tool(config))
            elif config.kind == format.WIDGET_TOOL and self._clients:
                tools.append(_widget_tool(config))
            else:
                made = self._agent_tool(config) if config.kind == "agentTool" else self.code_tool(config)
                tools += [made] if made else []
        for toolset, operation_names in agent.toolsets:
            tools += self.toolset_tools(self._app.toolset_named(toolset) or toolset, operation_names)
        return tools

    def system_tool(self, name: str) -> Tool:
        assert name in format.SYSTEM_TOOLS
        description, parameters = _SYSTEM_DECLARATIONS[name]
        return Tool(name, ToolKind.CODE, description, parameters)

    def code_tool(self, config: format.ToolConfig) -> Tool | None:
        """Return a tool that the worker runs or refuses; None for a tool of another kind."""
        name = format.tool_name(config)
        declared = self._declaration(name, config)
        if declared is None:
            return None
        description, parameters = declared
        asynchronous = config.data.get("executionType") == "ASYNCHRONOUS"
        # The call does not wait for an asynchronous tool, so it may take longer than the server's limit for tools.
        timeout = format.tool_timeout(config.data) or (ASYNCHRONOUS_TIMEOUT if asynchronous else None)
        return Tool(name, ToolKind.CODE, description, parameters, asynchronous=asynchronous, timeout=timeout)

    def _declaration(self, name: str, config: format.ToolConfig) -> tuple[str, JsonObject | None] | None:
        """Return a tool's description and parameters; None if no worker runs tools of its kind."""
        if (operation := format.single_operation(config)) is not None:
            return str(config.own.get("description") or operation.description), operation.schema()
        if config.kind in format.UNAVAILABLE:
            return _unavailable_declaration(config)
        if config.kind not in DESCRIBED_KINDS or name not in self._described:
            return None
        described = object_at(self._described, name)
        return text_at(described, "description"), _schema_at(described, "parameters")

    def toolset_tools(self, name: str, operation_names: Sequence[str] | None) -> list[Tool]:
        """Return the tools of a toolset; `operation_names`: those that the agent may use, None: all."""
        toolset = self._app.toolsets[name]
        wanted = None if operation_names is None else set(operation_names)
        timeout = format.tool_timeout(toolset.data)
        if toolset.mcp is None:
            return [
                Tool(
                    f"{toolset.display_name}_{each.name}",
                    ToolKind.CODE,
                    each.description,
                    each.schema(),
                    timeout=timeout,
                )
                for each in format.operations(toolset.schema or {})
                if wanted is None or each.name in wanted
            ]
        declared = [(tool_name, object_at(self._described, tool_name)) for tool_name in self._described]
        return [
            Tool(
                tool_name,
                ToolKind.CODE,
                text_at(each, "description"),
                lower_types(_schema_at(each, "parameters")),
                timeout=timeout,
            )
            for tool_name, each in declared
            if text_at(each, "toolset") == name
            # An agent may list a tool by the app's name for it or by the server's.
            and (wanted is None or wanted & {text_at(each, "name"), text_at(each, "original")})
        ]

    def _example_tools(self, name: str) -> list[Tool]:
        """Return a tool that only adds the agent's examples to its instruction."""
        text = self._app.examples.get(name)
        return [Tool("examples", ToolKind.EXAMPLES, text=text)] if text else []

    def _agent_tool(self, config: format.ToolConfig) -> Tool | None:
        target = self._app.agent_named(str(config.own.get("rootAgent") or config.own.get("agent") or ""))
        if target is None or target in self._ancestors:
            # An agent that contains itself would make the tree infinite.
            return None
        return Tool(
            format.tool_name(config), ToolKind.AGENT, config.description, _AGENT_REQUEST, agent=self.build_node(target)
        )


def _client_tool(config: format.ToolConfig) -> Tool:
    """Return a client function. The model's turn ends with the call; the client's answer begins the next one."""
    parameters = lower_types(_schema_at(config.own, "parameters") or {"type": "object", "properties": {}})
    name = str(config.own.get("name") or format.tool_name(config))
    description = str(config.own.get("description") or config.description)
    return Tool(name, ToolKind.CLIENT, description, parameters, long_running=True)


def _widget_tool(config: format.ToolConfig) -> Tool:
    parameters = format.widget_of(config).parameters(
        lower_types(_schema_at(config.own, "parameters") or {"properties": {}}) or {}
    )
    description = str(config.own.get("description") or config.description)
    return Tool(format.tool_name(config), ToolKind.CODE, description, parameters)


def _unavailable_declaration(config: format.ToolConfig) -> tuple[str, JsonObject | None]:
    """Declare a tool that needs the platform's services or a client; the worker answers that it is not available."""
    description = str(config.own.get("description") or config.description)
    parameters = _schema_at(config.own, "parameters")
    if parameters is None:
        parameters = {"type": "object", "properties": {"query": {"type": "string"}}}
    return f"{description} (Not available in this conversation.)".strip(), lower_types(parameters)


def _schema_at(data: JsonObject, key: str) -> JsonObject | None:
    found = data.get(key)
    return found if isinstance(found, Mapping) else None


def lower_types(schema: JsonObject | None) -> JsonObject | None:
    """Return a schema with type names in lower case, as JSON Schema has them; the platform's API writes capitals."""
    return None if schema is None else {key: _lowered(key, value) for key, value in schema.items()}


def _lowered(key: str, value: JsonValue) -> JsonValue:
    if isinstance(value, Mapping):
        return {inner: _lowered(inner, each) for inner, each in value.items()}
    if isinstance(value, list):
        return [_lowered("", each) for each in value]
    return value.lower() if key == "type" and isinstance(value, str) else value
