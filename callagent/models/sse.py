"""Server-sent events (WHATWG HTML §9.2), as far as model servers use them: data fields only."""

from __future__ import annotations


class EventTooLong(ValueError):
    """A line or an event is longer than allowed."""


class EventParser:
    """Bytes in, the data of complete events out."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._line = bytearray()
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> list[str]:
        """The data of the events that `chunk` completes.

        Raises `EventTooLong` beyond the limit and `UnicodeDecodeError` for what is not UTF-8.
        """
        self._line += chunk
        found: list[str] = []
        # A trailing CR may be the first half of a line's end: it waits for the next chunk.
        *lines, rest = _split(self._line)
        self._line = bytearray(rest)
        for line in lines:
            if event := self._take(line.decode()):
                found.append(event)
        if len(self._line) > self._limit:
            raise EventTooLong(f"a line is longer than {self._limit} bytes")
        return found

    def _take(self, line: str) -> str:
        """The event that the line ends; empty: none."""
        if not line:
            event, self._data, self._size = "\n".join(self._data), [], 0
            return event
        name, _, value = line.partition(":")
        if name == "data":
            self._size += len(value)
            if self._size > self._limit:
                raise EventTooLong(f"an event is longer than {self._limit} characters")
            self._data.append(value.removeprefix(" "))
        return ""


def _split(data: bytearray) -> list[bytes]:
    """Complete lines, then the rest; lines end in LF, CRLF or CR."""
    if data.endswith(b"\r"):
        *lines, rest = bytes(data[:-1]).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        return [*lines, rest + b"\r"]
    return bytes(data).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
