"""The contract of a wire to a Model Context Protocol server, JSON-RPC messages, and wires that a thread reads."""

from __future__ import annotations

import json
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from callagent.errors import CallagentError

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Bytes of one message."""
METHOD_NOT_FOUND = -32601
"""Error code of JSON-RPC 2.0, section 5.1."""
Message = Mapping[str, Any]


class McpFailed(CallagentError):
    """The server cannot be reached, does not speak the protocol, or refused the request."""


class SessionExpired(McpFailed):
    """The session is over and the server has done nothing of the request, so it may be sent in a new session."""


class Wire(Protocol):
    """A connection to one server. Its methods block, and several threads may use it."""

    name: str
    """The server's name for messages, without secrets."""

    def open(self, seconds: float) -> None:
        """Connect, closing what was open before. Raises `McpFailed`."""

    def exchange(self, message: Message, seconds: float) -> Message:
        """Send a request and return its answer.

        Raises `SessionExpired` when the server has done nothing of the request, and `McpFailed` for other failures.
        """

    def notify(self, message: Message) -> None:
        """Send a notification. Raises `McpFailed`."""

    def set_version(self, version: str) -> None:
        """Note the protocol version that both sides have agreed on."""

    def close(self) -> None:
        """Disconnect."""


def is_request(message: Any) -> bool:
    """Return whether a message of the server is a request to us."""
    return isinstance(message, dict) and "method" in message and message.get("id") is not None


def answer_request(message: Message) -> Message:
    """Return the answer to a server's request: we answer pings and offer no other method."""
    answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if message["method"] == "ping":
        return {**answer, "result": {}}
    return {**answer, "error": {"code": METHOD_NOT_FOUND, "message": f"there is no {message['method']} here"}}


def server_events(lines: Iterator[bytes]) -> Iterator[tuple[str, str]]:
    """Yield kind and data of server-sent events (WHATWG HTML section 9.2). Raises ValueError for invalid UTF-8."""
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


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, also for a document that is nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("the message is nested too deeply") from None


_REASON_SECONDS = 1.5
"""Time for the reading thread to learn why the line ended, once writing has failed."""


class DuplexWire(ABC):
    """A wire that stays open: a thread reads it and gives every answer to the caller that waits for it.

    Implements `Wire` except for `open` and `close`, which subclasses add.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting: dict[Any, queue.SimpleQueue[Any]] = {}
        self._writing = threading.Lock()
        self._line: object | None = None
        """The line that is open now; what the thread of an older line still reads is ignored."""
        self._over = threading.Event()
        self._reason = "the line is closed"

    def open_line(self) -> object:
        """Begin a new line; its reading thread passes the returned object to `deliver` and `fail_pending`."""
        line = self._line = object()
        self._over = threading.Event()
        return line

    @abstractmethod
    def write(self, message: Message) -> None:
        """Write a message.

        Raises OSError when certainly nothing was sent, and `McpFailed` when the server may have received it.
        """

    def set_version(self, version: str) -> None:  # noqa: B027
        """Do nothing: only HTTP repeats the version with every message."""

    def exchange(self, message: Message, seconds: float) -> Message:
        number = message["id"]
        answered = self._waiting[number] = queue.SimpleQueue()
        try:
            self._send(message)
            answer = answered.get(timeout=seconds)
        except queue.Empty:
            self._give_up(number)
            raise McpFailed(f"{self.name}: no answer to {message['method']} within {seconds:g} s") from None
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, McpFailed):
            raise answer
        found: Message = answer
        return found

    def notify(self, message: Message) -> None:
        self._send(message)

    def _send(self, message: Message) -> None:
        if self._line is None:
            raise SessionExpired(f"{self.name}: {self._reason}")
        try:
            with self._writing:
                self.write(message)
        except (OSError, ValueError):
            # The reading thread knows better why the line ended, a program's last words for example.
            self._over.wait(_REASON_SECONDS)
            raise SessionExpired(f"{self.name}: {self._reason}") from None

    def _give_up(self, number: Any) -> None:
        parameters = {"requestId": number, "reason": "it took too long"}
        try:
            self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": parameters})
        except McpFailed:
            pass  # a server that cannot be reached has nothing to cancel

    def deliver(self, line: object, message: Any) -> None:
        """Take a message of the server from the reading thread."""
        if line is not self._line or not isinstance(message, dict):
            return
        if is_request(message):
            try:
                self._send(answer_request(message))
            except McpFailed:
                pass  # the reading thread learns of the end by itself
        elif (waiting := self._waiting.get(message.get("id"))) is not None:
            waiting.put(message)

    def fail_pending(self, line: object, reason: str) -> None:
        """Fail the requests that wait for an answer, because the line has ended."""
        if line is not self._line:
            return
        self._line, self._reason = None, reason
        self._over.set()
        for waiting in list(self._waiting.values()):
            waiting.put(McpFailed(f"{self.name}: {reason}"))
