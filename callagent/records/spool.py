"""The spool: files outside of the store that keep what it could not take, until it can.

A server appends to one file of its own, named after its process. If the server is killed, the file stays, and the next
server claims it by renaming it. Only the server's user may read folder and files; entries are redacted as records are.

The format suits any append-only journal of calls. A file is a sequence of lines, each one entry:

    <length> <checksum> <JSON>\\n

`length` is that of the JSON in bytes and `checksum` its CRC-32, each as eight hexadecimal digits. The JSON is an object
in UTF-8 without a line feed. The first entry is `{"format": "callagent-journal", "version": 1}`; what further entries
hold is up to the file's owner.

An entry that was cut off by a kill or a full disk, or whose bytes have changed, does not fit its length or checksum: it
is skipped and counted. By the line feed the reader finds the entry after it, so no other entry is lost with it.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from callagent.json_values import JsonObject, parse_object
from callagent.log import get_logger
from callagent.records.store import owner_of
from callagent.records.tables import json_text

log = get_logger(__name__)

VERSION: Final = 1
_FORMAT: Final = "callagent-journal"
_HEAD: Final = 18
"""Bytes before the JSON: two numbers and two spaces."""
MAX_ENTRY: Final = 64 << 20
"""Bytes of a line; the rest of a longer one is skipped as damaged."""
MAX_BYTES: Final = 256 << 20
"""Bytes of a server's file; further entries are kept in memory only."""
_CHUNK: Final = 1 << 20
"""Bytes that are read at a time."""
_SUFFIX: Final = ".spool"


class UnknownFormat(ValueError):
    """The file is not a journal of the version that this server writes."""


def frame(entry: Mapping[str, object]) -> bytes:
    """Return the line of an entry."""
    body = json_text(entry).encode()
    return b"%08x %08x %b\n" % (len(body), zlib.crc32(body), body)


def header() -> bytes:
    """Return the first line of a file."""
    return frame({"format": _FORMAT, "version": VERSION})


def unframe(line: bytes) -> JsonObject | None:
    """Return the entry of a line; None: it is damaged or incomplete."""
    body = line[_HEAD:].removesuffix(b"\n")
    try:
        length, checksum = int(line[:8], 16), int(line[9:17], 16)
        if (len(body), zlib.crc32(body), line[8:9], line[17:18], line[-1:]) != (length, checksum, b" ", b" ", b"\n"):
            return None
        return parse_object(body)
    except ValueError:
        return None


def read_frames(file: BinaryIO, offset: int, size: int) -> tuple[list[JsonObject], int, int]:
    """Read entries from `offset` on, about `size` bytes of them. Raises `UnknownFormat` and `OSError`.

    Return the entries, the offset after them, and the number of damaged ones. At the end of the file the returned
    offset is `offset`.
    """
    entries: list[JsonObject] = []
    damaged = 0
    file.seek(offset)
    at = offset
    # Lines are read, because a damaged entry ends at its line feed, after which the next one is found.
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


class Spool:
    """The spool file of one server, and the files that it claims. Every method uses the disk: call it in a thread."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        owner = owner_of(os.getpid()).replace(":", "-")
        self._path = folder / f"{owner}{_SUFFIX}"
        self._owner = owner
        self._file: int | None = None
        self._size = 0
        self._torn = False
        """Whether the file ends with a part of an entry that could not be removed."""

    @property
    def path(self) -> Path:
        """The file of this server; it exists while it has entries."""
        return self._path

    def append(self, entry: Mapping[str, object]) -> int:
        """Write an entry to the disk and return its size in bytes. Raises `OSError`; then the file lacks the entry."""
        line = frame(entry)
        if self._size + len(line) > self._max_bytes:
            raise OSError(f"the spool is full: it holds {self._size} of {self._max_bytes} bytes")
        if self._file is None:
            self._open()
        assert self._file is not None, "opened above"
        if self._torn:
            # The part of the entry before becomes a damaged line of its own.
            line = b"\n" + line
        try:
            _write_all(self._file, line)
            # After this the entry survives a loss of power, so the call may go on.
            os.fdatasync(self._file)
        except OSError:
            self._cut()
            raise
        self._size += len(line)
        self._torn = False
        return len(line)

    def clear(self) -> None:
        """Remove this server's file: everything in it is in the store."""
        if self._file is not None:
            os.close(self._file)
            self._file, self._size, self._torn = None, 0, False
            self._path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file; if it has entries, the next server writes them to the store."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def claim(self) -> list[Path]:
        """Rename the files of servers that have ended, and return them; this server has to apply and remove them."""
        claimed: list[Path] = []
        if not self._folder.is_dir():
            return claimed
        self._make_private()
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            process, _, rest = path.name.removesuffix(_SUFFIX).partition("-")
            # A file that was claimed and not applied has the name of its claimer, and further parts after a dot.
            owner = f"{process}-{rest.partition('.')[0]}"
            if not process.isdigit() or owner_of(int(process)).replace(":", "-") == owner:
                continue
            target = self._folder / f"{self._owner}.{len(claimed)}-{os.urandom(4).hex()}{_SUFFIX}"
            try:
                # Renaming is atomic: of two servers that start at the same time, the second one finds the file gone.
                path.rename(target)
            except FileNotFoundError:
                continue
            claimed.append(target)
        return claimed

    def read(self, path: Path, offset: int) -> tuple[list[JsonObject], int, int]:
        """Read the next entries of a file, as `read_frames` does."""
        with path.open("rb") as file:
            return read_frames(file, offset, _CHUNK)

    def _open(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_private()
        # Records are private: no other user may read the file, and a link in its place must not be followed.
        file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not (size := os.fstat(file).st_size):
                size = _write_all(file, header())
        except OSError:
            os.close(file)
            raise
        self._file, self._size = file, size

    def _make_private(self) -> None:
        """Close the folder to other users. Raises `OSError` if it belongs to one of them.

        The temporary folder is open to all, so somebody else may have made a folder of this name first.
        """
        found = os.lstat(self._folder)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"records.spool '{self._folder}' belongs to another user; name another folder")
        if stat.S_IMODE(found.st_mode) & 0o077:
            self._folder.chmod(0o700)

    def _cut(self) -> None:
        """Remove the part that was written of an entry that did not fit; if the disk refuses, the file is torn."""
        assert self._file is not None, "something was written"
        try:
            os.ftruncate(self._file, self._size)
        except OSError:
            self._torn = True


def spool_folder(setting: str, store: Path) -> Path:
    """Return the folder of a store's spool: the setting, or else one for this store in the temporary folder."""
    if setting:
        return Path(setting)
    name = hashlib.sha256(os.fsencode(store.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"callagent-{os.getuid()}-{name}"


def warn_of_shared_disk(folder: Path, store: Path) -> None:
    """Log a warning if the spool is on the store's own file system, which is full for both at the same time."""
    if _device(folder) == _device(store.parent):
        advice = "name a folder on another file system in records.spool"
        log.warning("spool_beside_store", spool=str(folder), store=str(store), advice=advice)


def _device(path: Path) -> int | None:
    """Return the device of the path, or of its nearest parent that exists; None: it cannot be read."""
    for one in (path.absolute(), *path.absolute().parents):
        try:
            return one.stat().st_dev
        except FileNotFoundError:
            continue
        except OSError:
            return None
    return None


def _write_all(file: int, data: bytes) -> int:
    """Write all of `data` and return its size: `os.write` may take a part only. Raises `OSError`."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]
    return len(data)
