"""The messages of each call, kept for the ladder diagram in the dashboard, in bounded memory."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from callagent.sip.message import Hop

MAX_BYTES: Final = 32 << 20
"""For all calls; beyond it the oldest calls are forgotten."""
MAX_ENDED: Final = 256
"""Ended calls whose messages have not been taken: their record is being written, or they were refused."""
MAX_MESSAGES: Final = 120
"""For one call; beyond it the first and the last half are kept."""
MAX_TEXT: Final = 4000
"""Octets kept of one message."""
_CALL_ID = re.compile(rb"^(?:Call-ID|i)[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
# Proofs of passwords, and the keys of the audio, are removed before anybody reads a message.
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
    """The message without proofs, keys and bodies other than SDP, which may hold digits that a caller pressed."""


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
        # The octets are searched, not a parsed message: one that cannot be parsed belongs into the diagram as well.
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
        # Kept as received: the text for the dashboard is made once the call has ended, in `take`.
        messages.append((now, sent, hop, data))
        self._size += len(data)
        if len(messages) > MAX_MESSAGES:
            self._size -= len(messages.pop(MAX_MESSAGES // 2)[3])
        while self._size > MAX_BYTES:
            self._forget(next(iter(self._calls)))

    def end(self, call_id: str) -> None:
        """Note that the call has ended: its messages are kept until `take`, or until `MAX_ENDED` others have ended."""
        if call_id not in self._calls:
            return
        self._ended[call_id] = None
        if len(self._ended) > MAX_ENDED:
            self._forget(next(iter(self._ended)))

    def take(self, call_id: str) -> list[TracedMessage]:
        """Return the messages of a call in order, and forget them."""
        return [_traced(*one) for one in self._forget(call_id)]

    def _forget(self, call_id: str) -> list[tuple[float, bool, Hop, bytes]]:
        messages = self._calls.pop(call_id, [])
        self._ended.pop(call_id, None)
        self._size -= sum(len(one[3]) for one in messages)
        return messages


def _traced(at: float, sent: bool, hop: Hop, data: bytes) -> TracedMessage:
    text = _shown(data)
    return TracedMessage(at, sent, f"{hop.transport} {hop.host}:{hop.port}", text.partition("\n")[0].strip(), text)


def _shown(data: bytes) -> str:
    head, blank, body = _text(data).partition("\r\n\r\n")
    if body and not _SDP.search(head):
        body = f"({len(body)} characters)"
    return _SECRET.sub(r"\1 [hidden]", head + blank + body)


def _text(data: bytes) -> str:
    """Return valid Unicode without control characters other than line ends."""
    text = data.decode("utf-8", "replace")
    return "".join(character for character in text if character.isprintable() or character in "\r\n")
