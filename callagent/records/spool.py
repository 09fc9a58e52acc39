"""The spool: files in a second place that keep what the store could not take, until it can.

A server appends to one file of its own, named after its process. The file outlives a kill of the server: the next
server claims it by renaming it. Folder and files are for the server's user only, and what is redacted from records is
redacted here.

The format suits any append-only journal of calls. A file is a sequence of lines, each one entry:

    <length> <checksum> <JSON>\\n

`length` is that of the JSON in bytes and `checksum` its CRC-32, each as eight hexadecimal digits. The JSON is an object
in UTF-8 without a line feed. The first entry is `{"format": "callagent-journal", "version": 1}`; what further entries
hold is up to the file's owner.

An entry that was cut off by a kill or a full disk, or whose bytes have changed, does not agree with its length or
checksum: it is skipped and counted. The line feed lets the reader find the entry after it again, so that a damaged one
costs only itself.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from callagent.log import get_logger
from callagent.records.store import owner_of
from callagent.records.tables import json_text

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
    body = json_text(entry).encode()
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


log = get_logger(__name__)

MAX_BYTES: Final = 256 << 20
"""Of a server's file; what comes beyond is held in memory."""
_CHUNK: Final = 1 << 20
_SUFFIX: Final = ".spool"


class Spool:
    """One server's file and those it has claimed. Every method uses the disk and may block: call it in a thread."""

    def __init__(self, folder: Path, bound: int = MAX_BYTES) -> None:
        self._folder = folder
        self._bound = bound
        owner = owner_of(os.getpid()).replace(":", "-")
        self._path = folder / f"{owner}{_SUFFIX}"
        self._owner = owner
        self._file: int | None = None
        self._size = 0
        self._torn = False

    @property
    def path(self) -> Path:
        """This server's file; it is there while something is in it."""
        return self._path

    def append(self, entry: Mapping[str, Any]) -> int:
        """Write an entry; its size in bytes. Raises `OSError`: then nothing of it counts."""
        line = frame(entry)
        if self._size + len(line) > self._bound:
            raise OSError(f"the spool holds {self._size} bytes, and is to hold {self._bound} at most")
        if self._file is None:
            self._open()
        assert self._file is not None, "opened above"
        if self._torn:
            # What is left of the entry before is a damaged line of its own.
            line = b"\n" + line
        try:
            _write_all(self._file, line)
            os.fdatasync(self._file)
        except OSError:
            self._cut()
            raise
        self._size += len(line)
        self._torn = False
        return len(line)

    def clear(self) -> None:
        """Everything in this server's file is in the store."""
        if self._file is not None:
            os.close(self._file)
            self._file, self._size, self._torn = None, 0, False
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Keep what is in the file for the next server."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def claim(self) -> list[Path]:
        """The files of servers that are no more, from now on this server's to apply and to remove."""
        claimed: list[Path] = []
        if not self._folder.is_dir():
            return claimed
        self._expect_private()
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            process, _, rest = path.name.removesuffix(_SUFFIX).partition("-")
            owner = f"{process}-{rest.partition('.')[0]}"
            if not process.isdigit() or owner_of(int(process)).replace(":", "-") == owner:
                continue
            target = self._folder / f"{self._owner}.{len(claimed)}-{os.urandom(4).hex()}{_SUFFIX}"
            try:
                # Whoever is first has it: another server that starts at the same time finds it gone.
                path.rename(target)
            except FileNotFoundError:
                continue
            claimed.append(target)
        return claimed

    def read(self, path: Path, offset: int) -> tuple[list[dict[str, Any]], int, int]:
        """As `read_frames`."""
        with path.open("rb") as file:
            return read_frames(file, offset, _CHUNK)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._expect_private()
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not (size := os.fstat(file).st_size):
                size = _write_all(file, header())
        except OSError:
            os.close(file)
            raise
        self._file, self._size = file, size

    def _expect_private(self) -> None:
        """In a folder that others may write, a stranger may have made ours before us. Raises `OSError`."""
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"records.spool '{self._folder}' belongs to another user; name another folder")
        if stat.S_IMODE(found.st_mode) & 0o077:
            self._folder.chmod(0o700)

    def _cut(self) -> None:
        """Take back what was written of an entry that did not fit."""
        assert self._file is not None, "something was written"
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._torn = True


def spool_folder(setting: str, store: Path) -> Path:
    """Where the spool of the store at `store` is: the setting, else a folder of its own in the temporary one."""
    if setting:
        return Path(setting)
    name = hashlib.sha256(os.fsencode(store.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"callagent-{os.getuid()}-{name}"


def warn_of_one_disk(folder: Path, store: Path) -> None:
    """A spool on the store's own file system is full when the store is."""
    if _device(folder) == _device(store.parent):
        advice = "name a folder on another file system in records.spool"
        log.warning("spool_beside_store", spool=str(folder), store=str(store), advice=advice)


def _device(path: Path) -> int | None:
    """Of the nearest folder that exists."""
    for one in (path.absolute(), *path.absolute().parents):
        try:
            return one.stat().st_dev
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _write_all(file: int, data: bytes) -> int:
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    return len(data)
