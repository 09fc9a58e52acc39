"""The messages of each call, kept for the ladder diagram in the dashboard, in bounded memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from callagent.sip.message import Hop

MAX_BYTES: Final = 32 << 20
"""Octets kept of all calls; beyond it the oldest calls are dropped."""
MAX_ENDED: Final = 256
"""Ended calls whose messages are kept until their record is written; refused calls have no record."""
MAX_MESSAGES: Final = 120
"""Messages kept of one call; beyond it the first half and the latest are kept."""
MAX_TEXT: Final = 4000
"""Octets kept of one message."""
_CALL_ID = re.compile(rb"^(?:Call-ID|i)[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
# Digests of passwords and keys of the audio are hidden in the text for the dashboard.
_SECRET = re.compile(r"^((?:Proxy-)?Authorization[ \t]*:|a=crypto:\d+ \S+)[^\r\n]*", re.IGNORECASE | re.MULTILINE)
_SDP = re.compile(r"^(?:Content-Type|c)[ \t]*:[ \t]*application/sdp", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """One message as the dashboard shows it."""

    at: float
    """Monotonic seconds."""
    sent: bool
    """True: by us; False: received."""
    peer: str
    """Transport, host and port."""
    line: str
    """The start line."""
    text: str
    """The message without digests, keys, and bodies other than SDP, which may hold digits that a caller pressed."""


class Trace:
    """The messages of calls that have not ended, and of those that ended recently."""

    def __init__(self, is_call: Callable[[str], bool]) -> None:
        """`is_call` tells whether a call with this Call-ID has not ended; messages of others are not kept."""
        self._is_call = is_call
        self._calls: OrderedDict[str, list[tuple[float, bool, Hop, bytes]]] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._size = 0

    def add(self, data: bytes, hop: Hop, now: float, *, sent: bool) -> None:
        """Add one message as it was sent or received. Never raises."""
        data = data[:MAX_TEXT]
        # The octets are searched, because a message that cannot be parsed belongs into the diagram as well.
        found = _CALL_ID.search(data)
        # OPTIONS and REGISTER belong to no call, and are most of the messages of an idle server.
        if found is None or data.startswith((b"OPTIONS ", b"REGISTER ")):
            return
        call_id = _text(found[1])
        messages = self._calls.get(call_id)
        if messages is None:
            if not self._is_call(call_id):
                return
            messages = self._calls[call_id] = []
        # The octets are kept; `take` makes the text for the dashboard once the call has ended.
        messages.append((now, sent, hop, data))
        self._size += len(data)
        if len(messages) > MAX_MESSAGES:
            self._size -= len(messages.pop(MAX_MESSAGES // 2)[3])
        while self._size > MAX_BYTES:
            self._remove(next(iter(self._calls)))

    def end(self, call_id: str) -> None:
        """Note that the call has ended: its messages are kept until `take`, or until `MAX_ENDED` others have ended."""
        if call_id not in self._calls:
            return
        self._ended[call_id] = None
        if len(self._ended) > MAX_ENDED:
            self._remove(next(iter(self._ended)))

    def take(self, call_id: str) -> list[TracedMessage]:
        """Remove and return the messages of a call, in order."""
        return [_to_traced(*one) for one in self._remove(call_id)]

    def _remove(self, call_id: str) -> list[tuple[float, bool, Hop, bytes]]:
        """Remove and return the messages of a call; empty if none are kept."""
        messages = self._calls.pop(call_id, [])
        self._ended.pop(call_id, None)
        self._size -= sum(len(one[3]) for one in messages)
        return messages


def _to_traced(at: float, sent: bool, hop: Hop, data: bytes) -> TracedMessage:
    text = _redacted(data)
    return TracedMessage(at, sent, f"{hop.transport} {hop.host}:{hop.port}", text.partition("\n")[0].strip(), text)


def _redacted(data: bytes) -> str:
    head, blank, body = _text(data).partition("\r\n\r\n")
    if body and not _SDP.search(head):
        body = f"({len(body)} characters)"
    return _SECRET.sub(r"\1 [hidden]", head + blank + body)


def _text(data: bytes) -> str:
    """Return valid Unicode without control characters other than line ends."""
    text = data.decode("utf-8", "replace")
    return "".join(character for character in text if character.isprintable() or character in "\r\n")
