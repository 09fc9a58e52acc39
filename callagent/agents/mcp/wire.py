"""What carries messages to a Model Context Protocol server and back."""

from __future__ import annotations

import json
import queue
import threading
from abc import ABC, abstractmethod
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


_WHY_SECONDS = 1.5


class Duplex(ABC):
    """Implements `wire.Wire` but for `open` and `close`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._waiting: dict[Any, queue.SimpleQueue[Any]] = {}
        self._writing = threading.Lock()
        self._line: object | None = None
        """The line that is open now: what an older one's thread still reads is nobody's."""
        self._over = threading.Event()
        self._reason = "the line is closed"

    def begin(self) -> object:
        """A new line; whoever reads it says which one it is."""
        line = self._line = object()
        self._over = threading.Event()
        return line

    @abstractmethod
    def write(self, message: Message) -> None:
        """Raises OSError when the line is closed and nothing went over it, and `McpFailed` when something may have."""

    def agree(self, version: str) -> None:  # noqa: B027
        """The line knows it from the session's beginning."""

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

    def tell(self, message: Message) -> None:
        self._send(message)

    def _send(self, message: Message) -> None:
        if self._line is None:
            raise Forgotten(f"{self.name}: {self._reason}")
        try:
            with self._writing:
                self.write(message)
        except (OSError, ValueError):
            # Who reads knows better why it ended.
            self._over.wait(_WHY_SECONDS)
            raise Forgotten(f"{self.name}: {self._reason}") from None

    def _give_up(self, number: Any) -> None:
        parameters = {"requestId": number, "reason": "it took too long"}
        try:
            self._send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": parameters})
        except McpFailed:
            pass  # whoever does not listen has nothing to give up

    def arrived(self, line: object, message: Any) -> None:
        """A message of the server, from the reading thread."""
        if line is not self._line or not isinstance(message, dict):
            return
        if request_of(message):
            try:
                self._send(reply_to(message))
            except McpFailed:
                pass  # the reading thread learns of the end by itself
        elif (waiting := self._waiting.get(message.get("id"))) is not None:
            waiting.put(message)

    def ended(self, line: object, reason: str) -> None:
        """The line is over: nobody waits in vain."""
        if line is not self._line:
            return
        self._line, self._reason = None, reason
        self._over.set()
        for waiting in list(self._waiting.values()):
            waiting.put(McpFailed(f"{self.name}: {reason}"))
