"""A client of Model Context Protocol servers over streamable HTTP, for worker processes: it blocks.

As much of the protocol (2025-06-18) as tools need: initialize, tools/list, tools/call. The official package would bring
a web server and seconds of importing into every worker.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import requests

from callagent.errors import CallagentError

VERSION = "2025-06-18"
TIMEOUT = 30.0
BODY_LIMIT = 16 * 1024 * 1024
"""Bytes of one answer."""
MAX_PAGES = 50
_SESSION, _VERSION = "Mcp-Session-Id", "MCP-Protocol-Version"


class McpFailed(CallagentError):
    """The server cannot be reached, does not speak the protocol, or refused."""


@dataclass(frozen=True, slots=True)
class McpTool:
    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema."""


class McpServer:
    """One server. The session is begun with the first request, and anew where the server has forgotten it."""

    def __init__(self, url: str, headers: Mapping[str, str], timeout: float = TIMEOUT) -> None:
        """`timeout`: seconds for one answer."""
        self._url = url
        self._timeout = timeout
        self._http = requests.Session()
        # Neither proxies nor passwords of the environment are the project's.
        self._http.trust_env = False
        self._http.headers.update(headers)
        self._http.headers["Accept"] = "application/json, text/event-stream"
        self._numbers = itertools.count(1)
        self._begun = False

    def tools(self) -> list[McpTool]:
        """Raises `McpFailed`."""
        found: list[McpTool] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = self._ask("tools/list", {"cursor": cursor} if cursor else {})
            found += [_tool(each) for each in page.get("tools") or ()]
            cursor = page.get("nextCursor")
            if not cursor:
                break
        return found

    def call(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The result as an object; `{"error": …}` when the tool says that it failed. Raises `McpFailed`."""
        result = self._ask("tools/call", {"name": name, "arguments": dict(arguments)})
        texts = [str(each.get("text")) for each in result.get("content") or () if each.get("type") == "text"]
        if result.get("isError"):
            return {"error": "\n".join(texts) or "the tool failed"}
        structured = result.get("structuredContent")
        if isinstance(structured, dict):
            return structured
        return _as_object("\n".join(texts))

    def _ask(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        if not self._begun:
            self._begin()
        try:
            return self._request(method, parameters)
        except _Forgotten:
            self._begin()
            return self._request(method, parameters)

    def _begin(self) -> None:
        for name in (_SESSION, _VERSION):
            self._http.headers.pop(name, None)
        client = {"name": "callagent", "version": "1"}
        parameters = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        found = self._request("initialize", parameters)
        self._http.headers[_VERSION] = str(found.get("protocolVersion") or VERSION)
        self._post({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self._begun = True

    def _request(self, method: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        messages = self._post({"jsonrpc": "2.0", "id": number, "method": method, "params": dict(parameters)})
        answer = next((each for each in messages if isinstance(each, dict) and each.get("id") == number), None)
        if answer is None:
            raise McpFailed(f"{self._url}: no answer to {method}")
        if "error" in answer:
            error = answer["error"] or {}
            raise McpFailed(f"{self._url}: {method}: {error.get('message') or error}")
        result = answer.get("result")
        return result if isinstance(result, dict) else {}

    def _post(self, message: Mapping[str, Any]) -> list[Any]:
        """What came back. Raises `McpFailed`."""
        if urlsplit(self._url).scheme not in ("http", "https"):
            raise McpFailed(f"'{self._url}' is no web address")
        try:
            with self._http.post(
                self._url, json=message, timeout=self._timeout, stream=True, allow_redirects=False
            ) as response:
                if response.status_code == 404 and _SESSION in self._http.headers:
                    raise _Forgotten(f"{self._url}: the session is gone")
                if response.status_code >= 300:
                    raise McpFailed(f"{self._url}: {response.status_code} {response.reason}")
                if session := response.headers.get(_SESSION):
                    self._http.headers[_SESSION] = session
                return list(_messages(response, message.get("id")))
        except (requests.RequestException, ValueError) as error:
            raise McpFailed(f"{self._url}: {error}") from None


class _Forgotten(McpFailed):
    """The server knows the session no more."""


def _messages(response: requests.Response, wanted: Any) -> Iterator[Any]:
    """The JSON-RPC messages of an answer, up to the wanted one: a stream may stay open behind it."""
    if response.status_code == 202 or wanted is None:
        return
    if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
        yield json.loads(b"".join(_limited(response.iter_content(65536))))
        return
    data: list[str] = []
    for raw in _limited(response.iter_lines()):
        line = raw.decode("utf-8")
        if line.startswith("data:"):
            data.append(line[5:].strip())
        elif not line and data:
            message = json.loads("\n".join(data))
            data = []
            yield message
            if isinstance(message, dict) and message.get("id") == wanted:
                return


def _limited(pieces: Iterator[bytes]) -> Iterator[bytes]:
    left = BODY_LIMIT
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise ValueError(f"the answer has more than {BODY_LIMIT} bytes")
        yield piece


def _tool(given: Mapping[str, Any]) -> McpTool:
    schema = given.get("inputSchema")
    parameters = schema if isinstance(schema, dict) else {"type": "object", "properties": {}}
    return McpTool(str(given.get("name") or ""), str(given.get("description") or ""), parameters)


def _as_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        return {"result": text}
    return value if isinstance(value, dict) else {"result": value}


def chosen(tools: Sequence[McpTool], names: Sequence[str] | None) -> list[McpTool]:
    """Those of the names; None: all."""
    return [tool for tool in tools if names is None or tool.name in names]
