"""Sets of tools that are known only when somebody asks: a project's own classes, and Model Context Protocol servers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from callagent.agents.adk.runtime.contexts import ToolContext
from callagent.agents.adk.runtime.genai import FunctionDeclaration
from callagent.agents.adk.runtime.tools import BaseTool, BaseToolset, ToolArgsConfig, as_tool
from callagent.agents.mcp import McpServer
from callagent.agents.mcp import McpTool as Declared

SECONDS = 60.0
"""For a set to say what is in it."""
_OVER_HTTP = ("streamable_http_connection_params", "connection_params")


class StreamableHTTPConnectionParams(BaseModel):
    """Where an MCP server is, as projects write it in Python."""

    model_config = ConfigDict(extra="allow")
    url: str
    headers: dict[str, Any] | None = None


class McpTool(BaseTool):
    def __init__(self, server: McpServer, declared: Declared, prefix: str) -> None:
        name = f"{prefix}_{declared.name}" if prefix else declared.name
        super().__init__(name=name, description=declared.description)
        self._server = server
        self._declared = declared

    def _get_declaration(self) -> FunctionDeclaration:
        return FunctionDeclaration(
            name=self.name, description=self.description, parameters_json_schema=dict(self._declared.parameters)
        )

    async def run_async(self, *, args: dict[str, Any], tool_context: ToolContext) -> Any:
        return self._server.call(self._declared.name, args)


class McpToolset(BaseToolset):
    """Of a server that is reached by HTTP. Servers that are programs to be started are not: they would run for every
    call, outside of its worker's limits."""

    def __init__(self, **options: Any) -> None:
        given = next((options[key] for key in _OVER_HTTP if options.get(key) is not None), None)
        plain = given.model_dump() if isinstance(given, BaseModel) else given
        if not isinstance(plain, Mapping) or not plain.get("url"):
            raise ValueError("McpToolset: 'streamable_http_connection_params' with a 'url' is needed")
        headers = {str(name): str(value) for name, value in (plain.get("headers") or {}).items()}
        self._server = McpServer(str(plain["url"]), headers)
        self._wanted = options.get("tool_filter")
        self._prefix = str(options.get("tool_name_prefix") or "")

    @classmethod
    def from_config(cls, config: ToolArgsConfig, config_abs_path: str) -> McpToolset:
        return cls(**config.model_dump())

    async def get_tools(self, readonly_context: Any = None) -> list[BaseTool]:
        wanted = self._wanted
        return [
            McpTool(self._server, tool, self._prefix)
            for tool in self._server.tools()
            if not isinstance(wanted, list) or tool.name in wanted
        ]


def tools_of(toolset: BaseToolset) -> list[BaseTool]:
    """What is in a set now. Raises what the set raises."""
    found: list[list[BaseTool]] = []
    errors: list[BaseException] = []

    def ask() -> None:
        try:
            found.append([as_tool(each) for each in asyncio.run(_asked(toolset))])
        except BaseException as error:  # raised where the answer is awaited
            errors.append(error)

    # A thread: whoever imports the project may run an event loop.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(SECONDS)
    if errors:
        raise errors[0]
    if not found:
        raise TimeoutError(f"{type(toolset).__name__} did not say within {SECONDS:g} s which tools it has")
    return found[0]


async def _asked(toolset: BaseToolset) -> list[Any]:
    return list(await toolset.get_tools(None))
