"""The description of a project's agents and tools that the core builds its tree from, as plain data."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from callagent.agents.adk.config_keys import SAMPLING
from callagent.agents.adk.runtime import google_classes as google
from callagent.agents.adk.runtime.mcp_toolset import McpTool, McpToolset, is_mcp_toolset
from callagent.agents.adk.runtime.tools import (
    BUILT_IN_SCHEMAS,
    AgentTool,
    BaseTool,
    BaseToolset,
    BuiltInTool,
    ExampleTool,
    FunctionTool,
    PhoneTool,
    StorageTool,
    as_tool,
    schema_of,
)
from callagent.agents.kernel import error_message
from callagent.agents.mcp import list_all
from callagent.workers import Plain

_POINTS = ("before_agent", "after_agent", "before_model", "after_model", "before_tool", "after_tool")


class Describer:
    """The maker of a project's description, which numbers the agents in the order in which it describes them."""

    def __init__(self, numbered: list[google.BaseAgent]) -> None:
        """`numbered` collects the agents; an agent's number is its index there."""
        self._numbered = numbered
        self.mcp_toolsets: list[McpToolset] = []
        """The toolsets of MCP servers. In the description, their index stands in the place of their tools."""

    def agent(self, agent: google.BaseAgent) -> Plain:
        """Describe an agent and all below it. Raises ValueError for an agent with two places in the tree."""
        # Compared by identity, because pydantic calls two agents with the same fields equal.
        if any(agent is each for each in self._numbered):
            raise ValueError(f"agent '{agent.name}' has two places in the tree; make an agent object for each of them")
        number = len(self._numbered)
        self._numbered.append(agent)
        described: Plain = {
            "number": number,
            "kind": google.kind_of(agent),
            "name": agent.name,
            "description": agent.description,
            "callbacks": {point: count for point in _POINTS if (count := _count_callbacks(agent, point))},
            "children": [self.agent(child) for child in agent.sub_agents],
        }
        if isinstance(agent, google.LoopAgent):
            described["max_iterations"] = agent.max_iterations
        if isinstance(agent, google.LlmAgent):
            described |= self._llm(agent)
        return described

    def _llm(self, agent: google.LlmAgent) -> Plain:
        # Kept on the agent, where `Catalog.tool` finds the tools without asking a toolset again.
        agent.tools = [one for each in agent.tools for one in _expand_toolset(each)]
        generation = agent.generate_content_config
        return {
            "instruction": agent.instruction if isinstance(agent.instruction, str) else None,
            "static_instruction": _instruction_text(agent.static_instruction),
            "model": agent.model if isinstance(agent.model, str) else str(getattr(agent.model, "model", "")),
            "temperature": generation.temperature if generation else None,
            "max_tokens": generation.max_output_tokens if generation else None,
            "sampling": _sampling(generation),
            "safety": _safety(generation),
            "json_output": generation is not None and generation.response_mime_type == "application/json",
            "output_key": agent.output_key or "",
            "output_schema": schema_of(agent.output_schema),
            "input_schema": schema_of(agent.input_schema),
            "has_history": agent.include_contents != "none",
            "can_transfer_to_parent": not agent.disallow_transfer_to_parent,
            "can_transfer_to_peers": not agent.disallow_transfer_to_peers,
            "tools": [self._tool(tool) for tool in agent.tools],
        }

    def _tool(self, value: object) -> Plain:
        # `with_mcp_tools` asks the servers, all at the same time and again whenever the project is described.
        if is_mcp_toolset(value):
            self.mcp_toolsets.append(value)
            return {"set": len(self.mcp_toolsets) - 1}
        tool = as_tool(value)
        described: Plain = {
            "name": tool.name,
            "description": tool.description,
            "long_running": bool(tool.is_long_running),
            "kind": "code",
        }
        match tool:
            case AgentTool():
                return {
                    **described,
                    "kind": "agent",
                    "agent": self.agent(tool.agent),
                    "parameters": _agent_parameters(tool.agent),
                    "skip_summarization": bool(tool.skip_summarization),
                }
            case ExampleTool():
                return {**described, "kind": "examples", "text": tool.text}
            case BuiltInTool():
                return {**described, "kind": tool.kind, "parameters": BUILT_IN_SCHEMAS.get(tool.kind)}
            case PhoneTool():
                return {**described, "kind": "phone", "options": tool.options}
        # The remaining kinds run in the worker: functions, and tools of the project's own classes.
        if isinstance(tool, StorageTool):
            described |= {"text": tool.text, "adds": tool.adds, "remembers": tool.remembers}
            if not tool.is_offered:
                return {**described, "kind": "unseen"}
        return {**described, **_declaration(tool)}


def _expand_toolset(tool: object) -> Sequence[object]:
    """Return the tools of a toolset. One of an MCP server is returned itself, because the server is asked later."""
    return list_tools(tool) if isinstance(tool, BaseToolset) and not is_mcp_toolset(tool) else [tool]


def with_mcp_tools(described: Plain, toolsets: list[McpToolset]) -> tuple[Plain, list[Plain]]:
    """Ask the MCP servers for their tools.

    Returns the description with those tools in the places of their toolsets, and a finding for each unreachable server.
    """
    offered: list[list[Plain]] = []
    unreachable: list[Plain] = []
    for toolset, found in zip(toolsets, list_all([each.server for each in toolsets]), strict=True):
        if isinstance(found, Exception):
            # The project opens without these tools; the core asks for another description later.
            file, line = toolset.place
            text = f"its tools are not known: {error_message(found)}"
            unreachable.append({"file": file, "line": line, "message": text})
            offered.append([])
        else:
            offered.append([_describe_mcp_tool(tool) for tool in toolset.keep_listed(found)])
    return _fill_toolsets(described, offered), unreachable


def _describe_mcp_tool(tool: McpTool) -> Plain:
    return {"name": tool.name, "kind": "code", "long_running": False, "timeout": tool.timeout, **_declaration(tool)}


def _fill_toolsets(described: Plain, offered: list[list[Plain]]) -> Plain:
    """Return an agent's description with `offered[i]` in the place of the toolset with the index i."""
    filled: Plain = {**described, "children": [_fill_toolsets(child, offered) for child in described["children"]]}
    if "tools" in described:
        tools = [one for each in described["tools"] for one in (offered[each["set"]] if "set" in each else [each])]
        filled["tools"] = [
            {**each, "agent": _fill_toolsets(each["agent"], offered)} if each.get("agent") else each for each in tools
        ]
    return filled


def _declaration(tool: BaseTool) -> Plain:
    declaration = tool._get_declaration()
    if declaration is None:
        raise ValueError(f"tool '{tool.name}' has no declaration: its _get_declaration() returned None")
    parameters = declaration.parameters_json_schema
    if parameters is None and declaration.parameters is not None:
        schema = declaration.parameters
        parameters = _lower_types(schema.model_dump(exclude_none=True) if isinstance(schema, google.Schema) else schema)
    # A function's description is its docstring, to which LongRunningFunctionTool adds, and not its declaration's.
    description = tool.description if isinstance(tool, FunctionTool) else declaration.description or tool.description
    return {"description": description, "parameters": parameters}


def _lower_types(schema: object) -> object:
    """Return a schema with the type names in lowercase, because the Gemini API writes them in capitals."""
    if isinstance(schema, dict):
        return {
            key: value.lower() if key == "type" and isinstance(value, str) else _lower_types(value)
            for key, value in schema.items()
        }
    return [_lower_types(each) for each in schema] if isinstance(schema, list) else schema


def _agent_parameters(agent: google.BaseAgent) -> Plain:
    # A workflow agent passes the arguments to its first child.
    while not isinstance(agent, google.LlmAgent) and agent.sub_agents:
        agent = agent.sub_agents[0]
    schema = schema_of(agent.input_schema) if isinstance(agent, google.LlmAgent) else None
    return schema or {"type": "object", "properties": {"request": {"type": "string"}}, "required": ["request"]}


def _sampling(generation: google.GenerateContentConfig | None) -> Plain:
    values = {ours: getattr(generation, theirs, None) for theirs, ours in SAMPLING.items()}
    return {key: value for key, value in values.items() if value is not None}


def _safety(generation: google.GenerateContentConfig | None) -> dict[str, str]:
    """Return the threshold of each category of harm. In Python code, both may be members of the API's enumerations."""
    found = {}
    for each in (generation.safety_settings if generation else None) or ():
        setting = each if isinstance(each, dict) else each.model_dump()
        kind, threshold = (getattr(setting.get(key), "value", setting.get(key)) for key in ("category", "threshold"))
        # YAML 1.1 reads OFF as false.
        threshold = "OFF" if threshold is False else threshold
        if kind and threshold:
            found[str(kind)] = str(threshold)
    return found


def _count_callbacks(agent: google.BaseAgent, point: str) -> int:
    callbacks = getattr(agent, f"{point}_callback", None)
    return len(callbacks) if isinstance(callbacks, list) else int(callbacks is not None)


def _instruction_text(value: object) -> str:
    """Return the text of a static instruction: a text, or a content with text parts."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, dict):
        parts = value.get("parts") or [value]
    else:
        parts = value if isinstance(value, list) else getattr(value, "parts", None)
    texts = [_part_text(part) for part in parts or ()]
    return "\n".join(text for text in texts if text)


def _part_text(part: object) -> str:
    if isinstance(part, str):
        return part
    return str((part.get("text") if isinstance(part, dict) else getattr(part, "text", "")) or "")


TOOLSET_TIMEOUT = 60.0
"""Seconds for a toolset of the project's own class to list its tools."""


class ToolsetFailed(Exception):
    """The failure of a toolset of the project's own class to list its tools."""

    def __init__(self, toolset: BaseToolset, text: str) -> None:
        super().__init__(f"'{type(toolset).__name__}': its tools are not known: {text}")
        self.place = toolset.place


def list_tools(toolset: BaseToolset) -> list[BaseTool]:
    """Ask a toolset for its tools. Raises `ToolsetFailed`."""
    found: list[list[BaseTool]] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            found.append([as_tool(each) for each in asyncio.run(_get_tools(toolset))])
        except BaseException as error:  # listing the tools runs the project's own code
            errors.append(error)

    # In a thread of its own, because the importing thread may have an event loop, where `asyncio.run` would fail.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    # A thread that still runs is left alone: it is a daemon and ends with the process.
    thread.join(TOOLSET_TIMEOUT)
    if errors:
        raise ToolsetFailed(toolset, f"{type(errors[0]).__name__}: {error_message(errors[0])}") from errors[0]
    if not found:
        raise ToolsetFailed(toolset, f"get_tools() did not end within {TOOLSET_TIMEOUT:g} s")
    return found[0]


async def _get_tools(toolset: BaseToolset) -> list[object]:
    return list(await toolset.get_tools(None))
