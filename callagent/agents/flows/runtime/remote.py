"""Functions of MCP servers, listed and called from a worker."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from callagent.agents.flows.runtime.failures import InvalidInput, NotAvailable, SecretNotFound

Secret = Callable[[str], Any]


class RemoteFunctions:
    """The MCP servers of a project; a connection is opened with a server's first request."""

    def __init__(self, servers: Mapping[str, Mapping[str, Any]], secret: Secret) -> None:
        self._settings = servers
        self._secret = secret
        self._servers: dict[str, Any] = {}

    def describe(self) -> dict[str, Any]:
        from callagent.agents.mcp import McpFailed

        functions: list[dict[str, Any]] = []
        failures: list[dict[str, Any]] = []
        for provider, settings in self._settings.items():
            enabled = settings.get("enabled")
            try:
                tools = [] if enabled == [] else self._server(provider).tools()
            except (McpFailed, OSError, InvalidInput, SecretNotFound, NotAvailable) as error:
                failures.append({"provider": provider, "error": str(error)})
                continue
            functions += [
                {
                    "provider": provider,
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": dict(tool.parameters),
                }
                for tool in tools
                if enabled is None or tool.name in enabled
            ]
        return {"functions": functions, "failures": failures}

    def call(self, provider: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a function's answer as text for the model: it cannot steer the call as a project function's can.

        Raises `McpFailed`, `SecretNotFound`, `NotAvailable` and OSError.
        """
        return json.dumps(self._server(provider).call(name, arguments), ensure_ascii=False)

    def _server(self, provider: str) -> Any:
        from callagent.agents.mcp import HttpWire, McpServer

        if provider not in self._settings:
            raise NotAvailable(f"there is no MCP server '{provider}'")
        if provider not in self._servers:
            settings = self._settings[provider]
            headers, query = self._credentials(settings.get("auth") or {})
            url = _with_query(str(settings["url"]), query)
            self._servers[provider] = McpServer(HttpWire(url, headers), float(settings["timeout"]))
        return self._servers[provider]

    def _credentials(self, auth: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
        """Return the headers and query parameters that authenticate a request."""
        for kind, default in (("header", "Authorization"), ("query_param", "api_key")):
            if isinstance(own := auth.get(kind), dict):
                given = {_name(own, default): str(self._secret(str(own.get("secret_name"))))}
                return (given, {}) if kind == "header" else ({}, given)
        if isinstance(own := auth.get("oauth"), dict):
            from callagent.agents.flows.runtime.api import fetched_token

            secret = self._secret(str(own.get("client_secret_name")))
            return {"Authorization": f"Bearer {fetched_token({**own, 'client_secret': secret})}"}, {}
        return {}, {}


def _name(own: Mapping[str, Any], default: str) -> str:
    return str(own.get("name") or own.get("key") or default)


def _with_query(url: str, query: Mapping[str, str]) -> str:
    if not query:
        return url
    parts = urlsplit(url)
    return urlunsplit(parts._replace(query="&".join(part for part in (parts.query, urlencode(query)) if part)))
