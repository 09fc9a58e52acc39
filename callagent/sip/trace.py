"""What was said on the wire, call by call, for the ladder of a call's page. Bounded; no I/O."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from callagent.sip.transaction_layer import Hop

MAX_BYTES: Final = 32 << 20
"""Of all calls; of more, the oldest calls are forgotten."""
MAX_MESSAGES: Final = 120
"""Of one call; of more, the first and the last half are kept."""
MAX_TEXT: Final = 4000
_CALL_ID = re.compile(rb"^(?:Call-ID|i)[ \t]*:[ \t]*([^\r\n]*?)[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
# What proves who somebody is, and what decrypts the audio, is nobody's to read afterwards.
_SECRET = re.compile(r"^((?:Proxy-)?Authorization[ \t]*:|a=crypto:\d+ \S+)[^\r\n]*", re.IGNORECASE | re.MULTILINE)
_SDP = re.compile(r"^(?:Content-Type|c)[ \t]*:[ \t]*application/sdp", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TracedMessage:
    at: float
    """Monotonic seconds."""
    sent: bool
    """By us."""
    peer: str
    """Transport, host and port."""
    line: str
    """The start line."""
    text: str
    """The message without passwords, keys and bodies other than SDP: a body may hold digits that a caller pressed."""


class Trace:
    """The messages of the calls that are on, and of those that were of late."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, list[tuple[float, bool, Hop, bytes]]] = OrderedDict()
        self._size = 0

    def add(self, data: bytes, hop: Hop, now: float, *, sent: bool) -> None:
        """One message as it went over the wire. Never raises; what belongs to no call is dropped."""
        data = data[:MAX_TEXT]
        found = _CALL_ID.search(data)
        if found is None or data.startswith((b"OPTIONS ", b"REGISTER ")):
            return
        messages = self._calls.setdefault(_text(found[1]), [])
        messages.append((now, sent, hop, data))
        self._size += len(data)
        if len(messages) > MAX_MESSAGES:
            self._size -= len(messages.pop(MAX_MESSAGES // 2)[3])
        while self._size > MAX_BYTES:
            _, oldest = self._calls.popitem(last=False)
            self._size -= sum(len(one[3]) for one in oldest)

    def take(self, call_id: str) -> list[TracedMessage]:
        """The messages of a call by its Call-ID, in their order; they are forgotten here."""
        found = self._calls.pop(call_id, [])
        self._size -= sum(len(one[3]) for one in found)
        return [_traced(*one) for one in found]


def _traced(at: float, sent: bool, hop: Hop, data: bytes) -> TracedMessage:
    text = _shown(data)
    return TracedMessage(at, sent, f"{hop.transport} {hop.host}:{hop.port}", text.partition("\n")[0].strip(), text)


def _shown(data: bytes) -> str:
    head, blank, body = _text(data).partition("\r\n\r\n")
    if body and not _SDP.search(head):
        body = f"({len(body)} characters)"
    return _SECRET.sub(r"\1 [hidden]", head + blank + body)


def _text(data: bytes) -> str:
    """Valid Unicode without control characters but line ends."""
    text = data.decode("utf-8", "replace")
    return "".join(character for character in text if character.isprintable() or character in "\r\n")
