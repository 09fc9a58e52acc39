"""What carries messages to a Model Context Protocol server and back."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from callagent.errors import CallagentError

BODY_LIMIT = 16 * 1024 * 1024
"""Bytes of one answer."""
NO_METHOD = -32601
"""JSON-RPC 2.0 §5.1."""
Message = Mapping[str, Any]


class McpFailed(CallagentError):
    """The server cannot be reached, does not speak the protocol, or refused."""


class Forgotten(McpFailed):
    """The server knows the session no more, and has done nothing of what was asked: it may be begun anew."""


class Wire(Protocol):
    """One line to one server. It blocks, and several threads may use it."""

    name: str
    """Of the server, for messages; nothing secret is in it."""

    def open(self, seconds: float) -> None:
        """Begin from nothing. Raises `McpFailed`."""

    def exchange(self, message: Message, seconds: float) -> Message:
        """A request's answer. Raises `McpFailed`, and `Forgotten` where nothing was asked yet."""

    def tell(self, message: Message) -> None:
        """A notification. Raises `McpFailed`."""

    def agree(self, version: str) -> None:
        """The version of the protocol that both speak from now on."""

    def close(self) -> None: ...


def request_of(message: Any) -> bool:
    """Whether the server asks something of us."""
    return isinstance(message, dict) and "method" in message and message.get("id") is not None


def reply_to(message: Message) -> Message:
    """We are there, and offer a server nothing else."""
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**answer, "result": {}}
    return {**answer, "error": {"code": NO_METHOD, "message": f"there is no {message['method']} here"}}


def server_events(lines: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Kind and data of server-sent events (WHATWG HTML §9.2). Raises ValueError for what is no UTF-8."""
    kind, data = "message", list[str]()
    for raw in lines:
        line = raw.decode("utf-8")
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line:
            if data:
                yield kind, "\n".join(data)
            kind, data = "message", []
        elif field == "event":
            kind = value
        elif field == "data":
            data.append(value)


def parsed(text: str | bytes) -> Any:
    """Raises ValueError, for what is nested too deeply as well."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None
