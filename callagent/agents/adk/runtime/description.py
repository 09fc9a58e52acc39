"""The description of a project's agents and tools that the core builds its tree from, as plain data."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from callagent.agents.adk.config_keys import SAMPLING
from callagent.agents.adk.runtime import google_classes as google
from callagent.agents.adk.runtime.mcp_toolset import McpTool, McpToolset, is_mcp_set
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
    """Describes agents and numbers them in the order in which it meets them."""

    def __init__(self, numbered: list[google.BaseAgent]) -> None:
        self._numbered = numbered
        self.sets: list[McpToolset] = []
        """The toolsets of MCP servers; a description has their index in the place of their tools."""

    def agent(self, agent: google.BaseAgent) -> Plain:
        """Describe an agent and all below it. Raises ValueError for an agent with two places in the tree."""
        # By identity: two agents may be equal by their fields, as pydantic compares them.
        if any(agent is each for each in self._numbered):
            raise ValueError(f"agent '{agent.name}' has two places; it can only have one")
        number = len(self._numbered)
        self._numbered.append(agent)
        described: Plain = {
            "number": number,
            "kind": google.kind_of(agent),
            "name": agent.name,
            "description": agent.description,
            "callbacks": {point: count for point in _POINTS if (count := _count(agent, point))},
            "children": [self.agent(child) for child in agent.sub_agents],
        }
        if isinstance(agent, google.LoopAgent):
            described["max_iterations"] = agent.max_iterations
        if isinstance(agent, google.LlmAgent):
            described |= self._llm(agent)
        return described

    def _llm(self, agent: google.LlmAgent) -> Plain:
        # On the agent itself, because calls look their tools up there: `Catalog.tool` does not ask a toolset again.
        agent.tools = [one for each in agent.tools for one in _taken_apart(each)]
        generation = agent.generate_content_config
        return {
            "instruction": agent.instruction if isinstance(agent.instruction, str) else None,
            "static_instruction": _text(agent.static_instruction),
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
        # Servers are asked by `with_sets`, all at the same time and again whenever the project is described.
        if is_mcp_set(value):
            self.sets.append(value)
            return {"set": len(self.sets) - 1}
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
        # What is left runs in the worker: functions, and tools of the project's own classes.
        if isinstance(tool, StorageTool):
            described |= {"text": tool.text, "adds": tool.adds, "remembers": tool.remembers}
            if not tool.is_seen:
                return {**described, "kind": "unseen"}
        return {**described, **_declared(tool)}


def _taken_apart(tool: object) -> Sequence[object]:
    """Return the tools of a toolset; that of an MCP server stays whole, as its tools are asked for later."""
    return tools_of(tool) if isinstance(tool, BaseToolset) and not is_mcp_set(tool) else [tool]


def with_sets(described: Plain, sets: list[McpToolset]) -> tuple[Plain, list[Plain]]:
    """Ask the MCP servers for their tools.

    Returns the description with those tools in the places of their toolsets, and a finding for each unreachable server.
    """
    offered: list[list[Plain]] = []
    unreachable: list[Plain] = []
    for toolset, found in zip(sets, list_all([each.server for each in sets]), strict=True):
        if isinstance(found, Exception):
            # The project opens without these tools; the core asks for another description later.
            file, line = toolset.place
            text = f"its tools are not known: {error_message(found)}"
            unreachable.append({"file": file, "line": line, "message": text})
            offered.append([])
        else:
            offered.append([_remote(tool) for tool in toolset.keep_listed(found)])
    return _filled(described, offered), unreachable


def _remote(tool: McpTool) -> Plain:
    return {"name": tool.name, "kind": "code", "long_running": False, "timeout": tool.timeout, **_declared(tool)}


def _filled(described: Plain, offered: list[list[Plain]]) -> Plain:
    filled: Plain = {**described, "children": [_filled(child, offered) for child in described["children"]]}
    if "tools" in described:
        tools = [one for each in described["tools"] for one in (offered[each["set"]] if "set" in each else [each])]
        filled["tools"] = [
            {**each, "agent": _filled(each["agent"], offered)} if each.get("agent") else each for each in tools
        ]
    return filled


def _declared(tool: BaseTool) -> Plain:
    declaration = tool._get_declaration()
    if declaration is None:
        raise ValueError(f"tool '{tool.name}' has no declaration")
    parameters = declaration.parameters_json_schema
    if parameters is None and declaration.parameters is not None:
        schema = declaration.parameters
        parameters = _lower_types(schema.model_dump(exclude_none=True) if isinstance(schema, google.Schema) else schema)
    # A function is described by its docstring, whatever its declaration says; LongRunningFunctionTool adds to it.
    description = tool.description if isinstance(tool, FunctionTool) else declaration.description or tool.description
    return {"description": description, "parameters": parameters}


def _lower_types(schema: object) -> object:
    """Return a schema with the type names in lowercase: the Gemini API writes them in capitals."""
    if isinstance(schema, dict):
        return {
            key: value.lower() if key == "type" and isinstance(value, str) else _lower_types(value)
            for key, value in schema.items()
        }
    return [_lower_types(each) for each in schema] if isinstance(schema, list) else schema


def _agent_parameters(agent: google.BaseAgent) -> Plain:
    # Of a workflow agent, the first child with a model is given the arguments.
    while not isinstance(agent, google.LlmAgent) and agent.sub_agents:
        agent = agent.sub_agents[0]
    schema = schema_of(agent.input_schema) if isinstance(agent, google.LlmAgent) else None
    return schema or {"type": "object", "properties": {"request": {"type": "string"}}, "required": ["request"]}


def _sampling(generation: google.GenerateContentConfig | None) -> Plain:
    values = {ours: getattr(generation, theirs, None) for theirs, ours in SAMPLING.items()}
    return {key: value for key, value in values.items() if value is not None}


def _safety(generation: google.GenerateContentConfig | None) -> dict[str, str]:
    """Return the threshold of each category of harm; in Python both may be members of the API's enumerations."""
    found = {}
    for each in (generation.safety_settings if generation else None) or ():
        setting = each if isinstance(each, dict) else each.model_dump()
        kind, threshold = (getattr(setting.get(key), "value", setting.get(key)) for key in ("category", "threshold"))
        # YAML 1.1 reads OFF as false.
        threshold = "OFF" if threshold is False else threshold
        if kind and threshold:
            found[str(kind)] = str(threshold)
    return found


def _count(agent: google.BaseAgent, point: str) -> int:
    callbacks = getattr(agent, f"{point}_callback", None)
    return len(callbacks) if isinstance(callbacks, list) else int(callbacks is not None)


def _text(value: object) -> str:
    """Return the text of a static instruction: a text, or a content with text parts."""
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, dict):
        parts = value.get("parts") or [value]
    else:
        parts = value if isinstance(value, list) else getattr(value, "parts", None)
    texts = [_text_of(part) for part in parts or ()]
    return "\n".join(text for text in texts if text)


def _text_of(part: object) -> str:
    if isinstance(part, str):
        return part
    return str((part.get("text") if isinstance(part, dict) else getattr(part, "text", "")) or "")


TOOLSET_TIMEOUT = 60.0
"""Seconds for a toolset of the project's own class to list its tools."""


class ToolsetFailed(Exception):
    """A toolset of the project's own class could not list its tools."""

    def __init__(self, toolset: BaseToolset, text: str) -> None:
        super().__init__(f"'{type(toolset).__name__}': its tools are not known: {text}")
        self.place = toolset.place


def tools_of(toolset: BaseToolset) -> list[BaseTool]:
    """Ask a toolset for its tools. Raises `ToolsetFailed`."""
    found: list[list[BaseTool]] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            found.append([as_tool(each) for each in asyncio.run(_asked(toolset))])
        except BaseException as error:  # listing the tools runs the project's own code
            errors.append(error)

    # In a thread, because `asyncio.run` refuses to run where the importing thread has an event loop already.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    # A thread that goes on is left alone: it is a daemon, and ends with the process.
    thread.join(TOOLSET_TIMEOUT)
    if errors:
        raise ToolsetFailed(toolset, f"{type(errors[0]).__name__}: {error_message(errors[0])}") from errors[0]
    if not found:
        raise ToolsetFailed(toolset, f"it did not say within {TOOLSET_TIMEOUT:g} s")
    return found[0]


async def _asked(toolset: BaseToolset) -> list[object]:
    return list(await toolset.get_tools(None))
