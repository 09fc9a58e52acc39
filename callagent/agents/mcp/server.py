"""A session with one Model Context Protocol server (revision 2025-06-18).

It has the part of the protocol that tools need: `initialize`, `tools/list` and `tools/call`. Calls block the thread
that makes them; several threads may use one session.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from callagent.agents.mcp.wires import McpFailed, Message, SessionExpired, Wire
from callagent.json_values import JsonObject, MutableJsonObject, object_at, objects_at, parse_json, text_at

VERSION = "2025-06-18"
DEFAULT_TIMEOUT = 30.0
"""Seconds for the answer to one request."""
LIST_SECONDS = 20.0
"""Seconds for a server to begin a session, and again to list its tools. Its tools may take longer to answer."""
MAX_PAGES = 50
"""Pages of a tool list that are read."""
MAX_TOOLS = 1000
"""Tools of one server that are used."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool as its server declares it."""

    name: str
    description: str
    parameters: JsonObject
    """JSON schema."""


class McpServer:
    """A session with one server. It begins with the first request, and anew when the server has ended it."""

    def __init__(self, wire: Wire, timeout: float = DEFAULT_TIMEOUT, begin_timeout: float = LIST_SECONDS) -> None:
        """`timeout`: seconds for one answer; `begin_timeout`: seconds to begin a session and to list the tools."""
        self._wire = wire
        self._timeout = timeout
        self._begin_timeout = min(begin_timeout, timeout, LIST_SECONDS)
        self._numbers = itertools.count(1)
        self._session_lock = threading.Lock()
        self._session = 0
        """The number of the open session; 0: none is open."""

    @property
    def name(self) -> str:
        """The server's name in messages."""
        return self._wire.name

    def tools(self) -> list[McpTool]:
        """List the server's tools. Raises `McpFailed`."""
        found: list[McpTool] = []
        cursor = ""
        # Without this limit, a server that repeats its cursor would be asked for ever.
        for _ in range(MAX_PAGES):
            page = self._ask("tools/list", {"cursor": cursor} if cursor else {}, self._begin_timeout)
            found += [_parse_tool(each) for each in objects_at(page, "tools")]
            cursor = text_at(page, "nextCursor")
            if not cursor or len(found) >= MAX_TOOLS:
                break
        return found[:MAX_TOOLS]

    def call(self, name: str, arguments: JsonObject, seconds: float | None = None) -> MutableJsonObject:
        """Call a tool and return its result as an object. Raises `McpFailed`.

        If the tool itself reports an error, the result is `{"error": …}`, which the model sees.
        """
        parameters: JsonObject = {"name": name, "arguments": dict(arguments)}
        result = self._ask("tools/call", parameters, min(seconds or self._timeout, self._timeout))
        texts = [str(each.get("text")) for each in objects_at(result, "content") if each.get("type") == "text"]
        if result.get("isError"):
            return {"error": "\n".join(texts) or "the tool failed"}
        structured = result.get("structuredContent")
        if isinstance(structured, dict):
            return structured
        return _as_object("\n".join(texts))

    def close(self) -> None:
        """End the session; the next request begins a new one."""
        with self._session_lock:
            self._session = 0
            self._wire.close()

    def _ask(self, method: str, parameters: JsonObject, seconds: float) -> JsonObject:
        session = self._begin(0)
        try:
            return self._request(method, parameters, seconds)
        except SessionExpired:
            # The server has done nothing of the request, so it is safe to send it again. If another thread has begun
            # a new session already, `_begin` leaves it open.
            self._begin(session)
            return self._request(method, parameters, seconds)

    def _begin(self, expired: int) -> int:
        """Begin a session unless one other than `expired` is open; return the open session's number."""
        # One thread begins the session; the others wait here and then find a session with another number.
        with self._session_lock:
            if self._session == expired:
                self._session = 0
                self._wire.open(self._begin_timeout)
                self._initialize()
                self._session = expired + 1
            return self._session

    def _initialize(self) -> None:
        client: JsonObject = {"name": "callagent", "version": "1"}
        parameters: JsonObject = {"protocolVersion": VERSION, "capabilities": {}, "clientInfo": client}
        answer = self._request("initialize", parameters, self._begin_timeout)
        self._wire.set_version(str(answer.get("protocolVersion") or VERSION))
        self._wire.notify({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _request(self, method: str, parameters: JsonObject, seconds: float) -> JsonObject:
        number = next(self._numbers)
        message: Message = {"jsonrpc": "2.0", "id": number, "method": method, "params": dict(parameters)}
        answer = self._wire.exchange(message, seconds)
        if "error" in answer:
            error = answer["error"] or {}
            text = error.get("message") if isinstance(error, Mapping) else None
            raise McpFailed(f"{self.name}: {method}: {text or error}")
        return object_at(answer, "result")


def list_all(servers: Sequence[Callable[[], McpServer]]) -> list[list[McpTool] | Exception]:
    """Ask all servers at the same time for their tools; return the tools or the error of each, in order."""
    found: list[list[McpTool] | Exception] = [McpFailed("the server did not list its tools in time")] * len(servers)

    def ask(index: int) -> None:
        try:
            found[index] = servers[index]().tools()
        except Exception as error:  # a server is made from project settings: a missing secret, a malformed address
            found[index] = error

    threads = [threading.Thread(target=ask, args=(index,), daemon=True) for index in range(len(servers))]
    for thread in threads:
        thread.start()
    # Twice, because beginning the session and listing the tools may each take `LIST_SECONDS`.
    until = time.monotonic() + 2 * LIST_SECONDS
    for thread in threads:
        thread.join(max(until - time.monotonic(), 0))
    return list(found)


def select_tools(tools: Sequence[McpTool], names: Sequence[str] | None) -> list[McpTool]:
    """Return the tools with these names; None: all."""
    return [tool for tool in tools if names is None or tool.name in names]


def _parse_tool(declared: JsonObject) -> McpTool:
    schema = declared.get("inputSchema")
    parameters: JsonObject = schema if isinstance(schema, Mapping) else {"type": "object", "properties": {}}
    return McpTool(str(declared.get("name") or ""), str(declared.get("description") or ""), parameters)


def _as_object(text: str) -> MutableJsonObject:
    try:
        value = parse_json(text)
    except ValueError:
        return {"result": text}
    return value if isinstance(value, dict) else {"result": value}
