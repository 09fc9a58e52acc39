"""The tools of Model Context Protocol servers that an app names: `mcpTool`, and toolsets of the kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callagent.agents.cx.app import CxApp, tool_name
from callagent.agents.cx.runtime.authentication import Authentication, SecretMissing
from callagent.agents.mcp import McpFailed, McpServer


class RemoteTools:
    """Asked for their names when the app is described; a worker asks only for those that it calls."""

    def __init__(self, app: CxApp, authentication: Authentication) -> None:
        self._authentication = authentication
        self._servers: dict[str, McpServer] = {}
        self._toolsets = {each.name: each for each in app.toolsets.values() if each.mcp is not None}
        self._single = {tool_name(tool): tool for tool in app.tools.values() if tool.kind == "mcpTool"}

    def describe(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Declarations by name, and what could not be asked, as findings."""
        found: dict[str, Any] = {}
        failures: list[dict[str, Any]] = []
        for name, toolset in self._toolsets.items():
            try:
                tools = self._server(toolset.mcp or {}, {}).tools()
            except (McpFailed, OSError, SecretMissing) as error:
                failures.append({"file": toolset.file, "line": 1, "message": f"its tools are not known: {error}"})
                continue
            for tool in tools:
                declared = {"description": tool.description, "parameters": dict(tool.parameters)}
                found[f"{toolset.display_name}_{tool.name}"] = {**declared, "toolset": name, "name": tool.name}
        for called, single in self._single.items():
            own = single.data["mcpTool"]
            parameters = own.get("inputSchema") or {"type": "object", "properties": {}}
            found[called] = {"description": single.description, "parameters": parameters}
        return found, failures

    def knows(self, name: str) -> bool:
        return name in self._single or self._of_toolset(name) is not None

    def names(self) -> list[str]:
        return [*self._single, *(f"{each.display_name}_…" for each in self._toolsets.values())]

    def call(self, name: str, arguments: Mapping[str, Any], session: Mapping[str, Any]) -> dict[str, Any]:
        """Raises `McpFailed`, `SecretMissing` and OSError."""
        if name in self._single:
            own = self._single[name].data["mcpTool"]
            return self._server(own, session).call(str(own.get("name") or name), arguments)
        found = self._of_toolset(name)
        if found is None:
            raise McpFailed(f"there is no tool '{name}'")
        own, tool = found
        return self._server(own, session).call(tool, arguments)

    def _of_toolset(self, name: str) -> tuple[Mapping[str, Any], str] | None:
        for toolset in self._toolsets.values():
            prefix = f"{toolset.display_name}_"
            if toolset.mcp is not None and name.startswith(prefix):
                return toolset.mcp, name.removeprefix(prefix)
        return None

    def _server(self, own: Mapping[str, Any], session: Mapping[str, Any]) -> McpServer:
        address = str(own.get("serverAddress") or "")
        if address not in self._servers:
            request: dict[str, Any] = {"headers": {str(k): str(v) for k, v in (own.get("customHeaders") or {}).items()}}
            self._authentication.apply(own.get("apiAuthentication"), request, session)
            self._servers[address] = McpServer(address, request["headers"])
        return self._servers[address]
