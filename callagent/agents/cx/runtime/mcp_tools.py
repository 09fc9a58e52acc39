"""Tools of Model Context Protocol servers: single ones (`mcpTool`) and toolsets (`mcpToolset`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from callagent.agents.cx.format import CxApp, ToolsetConfig, lookup, tool_name, tool_timeout
from callagent.agents.cx.runtime.authentication import Authentication
from callagent.agents.mcp import HttpWire, McpFailed, McpServer, McpTool, list_all

MAX_SERVERS = 16
"""Sessions with servers that one call keeps; the least recently used one is closed first."""
_CONTEXT = "$context."


class McpTools:
    """The MCP tools of an app. Servers list their tools when the app is described; a call only calls them."""

    def __init__(self, app: CxApp, authentication: Authentication) -> None:
        self._authentication = authentication
        self._servers: OrderedDict[tuple[str, tuple[tuple[str, str], ...]], McpServer] = OrderedDict()
        self._toolsets = {each.name: each for each in app.toolsets.values() if each.mcp is not None}
        self._single = {tool_name(tool): tool for tool in app.tools.values() if tool.kind == "mcpTool"}

    def describe(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return declarations by name, and a finding for each server that did not answer.

        Of such a server the tools are known that the app has pinned (`toolOverrides` with a snapshot).
        """
        found: dict[str, Any] = {}
        failures: list[dict[str, Any]] = []
        sets = list(self._toolsets.values())
        asked = [lambda each=each: self._server(each.mcp or {}, {}) for each in sets]
        for toolset, told in zip(sets, list_all(asked), strict=True):
            if isinstance(told, Exception):
                failures.append({"file": toolset.file, "line": 1, "message": f"its tools are not known: {told}"})
            tools = list(_pinned(toolset)) if isinstance(told, Exception) else told
            for tool in tools:
                declared = _declared(toolset, tool)
                found[f"{toolset.display_name}_{declared['name']}"] = declared
        for called, single in self._single.items():
            own = single.data["mcpTool"]
            parameters = own.get("inputSchema") or {"type": "object", "properties": {}}
            timeout = tool_timeout(single.data)
            found[called] = {"description": single.description, "parameters": parameters, "timeout": timeout}
        return found, failures

    def knows(self, name: str) -> bool:
        return name in self._single or self._of_toolset(name) is not None

    def names(self) -> list[str]:
        return [*self._single, *(f"{each.display_name}_…" for each in self._toolsets.values())]

    def call(
        self, name: str, arguments: Mapping[str, Any], session: Mapping[str, Any], seconds: float | None
    ) -> dict[str, Any]:
        """Call a tool. Raises `McpFailed`, `SecretMissing` and OSError."""
        if name in self._single:
            own = self._single[name].data["mcpTool"]
            return self._server(own, session).call(str(own.get("name") or name), arguments, seconds)
        found = self._of_toolset(name)
        if found is None:
            raise McpFailed(f"there is no tool '{name}'")
        own, tool = found
        return self._server(own, session).call(tool, arguments, seconds)

    def _of_toolset(self, name: str) -> tuple[Mapping[str, Any], str] | None:
        for toolset in self._toolsets.values():
            prefix = f"{toolset.display_name}_"
            if toolset.mcp is not None and name.startswith(prefix):
                return toolset.mcp, _servers_name(toolset, name.removeprefix(prefix))
        return None

    def _server(self, own: Mapping[str, Any], session: Mapping[str, Any]) -> McpServer:
        """Return the session for an address and its headers, whose values may differ from call to call."""
        address = str(own.get("serverAddress") or "")
        request: dict[str, Any] = {"headers": dict(_headers(own, session))}
        self._authentication.apply(own.get("apiAuthentication"), request, session, address)
        if query := request.get("params"):
            address = f"{address}{'&' if '?' in address else '?'}{urlencode(query)}"
        key = address, tuple(sorted(request["headers"].items()))
        if key not in self._servers:
            self._servers[key] = McpServer(HttpWire(address, request["headers"]), timeout=300.0)
        self._servers.move_to_end(key)
        if len(self._servers) > MAX_SERVERS:
            self._servers.popitem(last=False)[1].close()
        return self._servers[key]


def _headers(own: Mapping[str, Any], session: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the app's own headers; those whose `$context` value is missing are left out."""
    for name, value in (own.get("customHeaders") or {}).items():
        found = lookup(str(value), session) if str(value).startswith(_CONTEXT) else value
        if found is not None:
            yield str(name), str(found)


def _overrides(toolset: ToolsetConfig) -> dict[str, Mapping[str, Any]]:
    """Return the app's overrides of a server's tools, by the server's names."""
    given = (toolset.mcp or {}).get("toolOverrides") or ()
    return {str(each["tool"]): each for each in given if isinstance(each, Mapping) and each.get("tool")}


def _servers_name(toolset: ToolsetConfig, name: str) -> str:
    renamed = (tool for tool, each in _overrides(toolset).items() if each.get("nameOverride") == name)
    return next(renamed, name)


def _pinned(toolset: ToolsetConfig) -> Iterator[McpTool]:
    for name, each in _overrides(toolset).items():
        snapshot = each.get("snapshot")
        if isinstance(snapshot, Mapping):
            schema = snapshot.get("inputSchema") or {"type": "object", "properties": {}}
            yield McpTool(name, str(snapshot.get("description") or ""), schema)


def _declared(toolset: ToolsetConfig, tool: McpTool) -> dict[str, Any]:
    own = _overrides(toolset).get(tool.name, {})
    return {
        "description": str(own.get("descriptionOverride") or tool.description),
        "parameters": dict(tool.parameters),
        "toolset": toolset.name,
        "name": str(own.get("nameOverride") or tool.name),
        "original": tool.name,
        "timeout": tool_timeout(toolset.data),
    }
