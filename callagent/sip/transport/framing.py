"""Framing: cuts a stream into SIP messages by their Content-Length, with bounds on what is kept (RFC 3261 §18.3)."""

from __future__ import annotations

import re

MAX_STREAM_MESSAGE = 64 * 1024

_LENGTH = re.compile(rb"^(?:content-length|l)[ \t]*:[ \t]*([0-9]{1,10})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_HAS_LENGTH = re.compile(rb"^(?:content-length|l)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_HAS_TYPE = re.compile(rb"^(?:content-type|c)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_END = b"\r\n\r\n"


class Framer:
    """The messages of one stream; once `broken` is set, nothing more can be read from it."""

    def __init__(self) -> None:
        self.broken: bytes | None = None
        """The head of a message without a valid length, to be answered 400; empty if there is nothing to answer."""
        self.pings = 0
        """Keep-alives that were received; the caller answers each with CRLF (RFC 5626 §3.5.1) and resets the number."""
        self._buffer = bytearray()
        self._searched = 0

    @property
    def partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take in octets, and return the messages that are complete."""
        messages: list[bytes] = []
        if self.broken is not None:
            return messages
        self._buffer += data
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> bytes | None:
        self._skip_keep_alives()
        end = self._buffer.find(_END, self._searched)
        if end < 0:
            # The next search begins before the end: the blank line may be split over two reads.
            self._searched = max(0, len(self._buffer) - len(_END) + 1)
            if len(self._buffer) > MAX_STREAM_MESSAGE:
                self._break(b"")
            return None
        head = bytes(self._buffer[: end + len(_END)])
        length = _length_of(head)
        if length is None or len(head) + length > MAX_STREAM_MESSAGE:
            self._break(head)
            return None
        self._searched = end
        if len(self._buffer) < len(head) + length:
            return None
        message = bytes(self._buffer[: len(head) + length])
        del self._buffer[: len(message)]
        self._searched = 0
        return message

    def _skip_keep_alives(self) -> None:
        if self._searched or not self._buffer.startswith((b"\r", b"\n")):
            return
        rest = self._buffer.lstrip(b"\r\n")
        blank = bytes(self._buffer[: len(self._buffer) - len(rest)])
        self.pings += blank.count(_END)
        # An incomplete keep-alive (CRLF without the second CRLF) stays for the next read.
        keep = b"" if rest else blank[len(blank) - len(blank) % len(_END) :]
        self._buffer = bytearray(keep) + rest

    def _break(self, head: bytes) -> None:
        self.broken = head
        self._buffer.clear()


def _length_of(head: bytes) -> int | None:
    """Return the octets of the body, 0 without Content-Length; None if that is invalid, or absent beside a type."""
    lengths = _LENGTH.findall(head)
    if len(lengths) == 1 and len(_HAS_LENGTH.findall(head)) == 1:
        return int(lengths[0])
    return None if _HAS_LENGTH.search(head) or _HAS_TYPE.search(head) else 0
