"""The dialect of our own page at `/phone`, without I/O: text in, events out; verbs give the text to send."""

from __future__ import annotations

import base64
import re
from typing import Any, Final

import msgspec

from callagent.audio import DIGITS
from callagent.carriers.dialect import (
    DialectError,
    DigitReceived,
    MarkReached,
    MediaReceived,
    StreamEvent,
    StreamStopped,
    read_message,
)

_MARK = re.compile(r"[a-z0-9]{1,16}")
MAX_PAYLOAD: Final = 8000
"""Bytes of μ-law in one message: a second."""


class _Message(msgspec.Struct):
    event: str
    payload: bytes = b""
    name: str = ""
    digit: str = ""
    at: float = 0.0


_decode = msgspec.json.Decoder(_Message).decode


class BrowserDialect:
    """The messages of one page. It asks how far away we are with `ping`; the answer goes through `reply`."""

    def __init__(self) -> None:
        self._asked: list[float] = []

    def receive(self, text: str | bytes) -> StreamEvent | None:
        """The event that a message tells. Raises `DialectError` only."""
        message = read_message(_decode, text)
        match message.event:
            case "media" if 0 < len(message.payload) <= MAX_PAYLOAD:
                return MediaReceived(message.payload)
            case "mark" if _MARK.fullmatch(message.name):
                return MarkReached(message.name)
            case "digit" if len(message.digit) == 1 and message.digit in DIGITS:
                return DigitReceived(message.digit)
            case "stop":
                return StreamStopped()
            case "ping":
                self._asked = [message.at]
                return None
        raise DialectError(f"'{message.event[:20]}' is not valid")

    def reply(self) -> str | None:
        """What answers the last `ping`, once."""
        return self.tell("pong", at=self._asked.pop()) if self._asked else None

    def media(self, payload: bytes) -> str:
        """Queue μ-law audio at the page."""
        return f'{{"event":"media","payload":"{base64.b64encode(payload).decode("ascii")}"}}'

    def mark(self, name: str) -> str:
        """Ask to be told when what was queued so far has been played."""
        return f'{{"event":"mark","name":"{name}"}}'

    def clear(self) -> str:
        """Drop what is queued."""
        return '{"event":"clear"}'

    def tell(self, event: str, **data: Any) -> str:
        """Anything else that the page shows."""
        return msgspec.json.encode({"event": event, **data}).decode()
