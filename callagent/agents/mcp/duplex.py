"""A line that stays open: a thread reads it, and gives every answer to whoever waits for it."""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from typing import Any

from callagent.agents.mcp.wire import Forgotten, McpFailed, Message, reply_to, request_of

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
