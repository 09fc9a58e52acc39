"""The file format of the spool, made so that any append-only journal of calls can be kept in it.

A file is a sequence of lines, each one entry:

    <length> <checksum> <JSON>\\n

`length` is that of the JSON in bytes and `checksum` its CRC-32, each as eight hexadecimal digits. The JSON is an object
in UTF-8 without a line feed. The first entry is `{"format": "callagent-journal", "version": 1}`; what further entries
hold is up to the file's owner.

An entry that was cut off by a kill or a full disk, or whose bytes have changed, does not agree with its length or
checksum: it is skipped and counted. The line feed lets the reader find the entry after it again, so that a damaged one
costs only itself.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, BinaryIO, Final

from callagent.records.rows import dumps

VERSION: Final = 1
_FORMAT: Final = "callagent-journal"
_HEAD: Final = 18
"""Bytes before the JSON: two numbers and two spaces."""
MAX_ENTRY: Final = 64 << 20
"""Bytes of a line; the rest of a longer one is skipped as damaged."""


class UnknownFormat(ValueError):
    """The file is no journal, or one of a newer version."""


def frame(entry: Mapping[str, Any]) -> bytes:
    """One entry as a line."""
    body = dumps(entry).encode()
    return b"%08x %08x %b\n" % (len(body), zlib.crc32(body), body)


def header() -> bytes:
    """The line that a file begins with."""
    return frame({"format": _FORMAT, "version": VERSION})


def unframe(line: bytes) -> dict[str, Any] | None:
    """The entry of a line; None: it is damaged, or not complete."""
    body = line[_HEAD:].removesuffix(b"\n")
    try:
        length, checksum = int(line[:8], 16), int(line[9:17], 16)
        if (len(body), zlib.crc32(body), line[8:9], line[17:18], line[-1:]) != (length, checksum, b" ", b" ", b"\n"):
            return None
        entry = json.loads(body)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def read_frames(file: BinaryIO, offset: int, size: int) -> tuple[list[dict[str, Any]], int, int]:
    """Entries from `offset` on, about `size` bytes of them: entries, the offset after them, how many are damaged.

    An offset that has not moved means the end of the file. Raises `UnknownFormat` and `OSError`.
    """
    entries: list[dict[str, Any]] = []
    damaged = 0
    file.seek(offset)
    at = offset
    while at - offset < size and (line := file.readline(MAX_ENTRY)):
        entry = unframe(line)
        if at == 0 and entry is not None:
            if entry.get("format") != _FORMAT or entry.get("version") != VERSION:
                raise UnknownFormat(f"its first entry is {str(entry)[:100]}")
        elif entry is None:
            damaged += 1
        else:
            entries.append(entry)
        at += len(line)
    return entries, at, damaged
