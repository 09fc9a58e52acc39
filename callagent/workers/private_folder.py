"""The folders that project code may write to: one for each call, made and removed by the core.

The folders of a pool have one parent folder in the system's temp folder, which the core keeps locked as long as it
runs. A parent folder that is not locked was left by a core that was killed; the next core that starts removes it.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "callagent-workers-"
_TRIES = 10


class PrivateFolder:
    """One call's folder, mode 0700."""

    def __init__(self, path: str, max_files: int, max_bytes: int) -> None:
        self.path = path
        self._max_files = max_files
        self._max_bytes = max_bytes

    async def find_excess(self) -> str:
        """Return which limit the folder exceeds, in words that complete "the function left …"; empty: none."""
        if self._is_empty():
            return ""
        return await asyncio.to_thread(self._measure_excess)

    async def clear(self) -> None:
        """Remove everything in the folder. To be called when no process writes there any more."""
        await asyncio.to_thread(_remove_contents, self.path)

    async def remove(self) -> None:
        """Remove the folder with everything in it. Idempotent."""
        try:
            # Most functions write nothing; then no thread is needed.
            os.rmdir(self.path)
        except FileNotFoundError:
            pass
        except OSError:
            await asyncio.to_thread(remove_tree, self.path)

    def _is_empty(self) -> bool:
        try:
            with os.scandir(self.path) as entries:
                return next(entries, None) is None
        except FileNotFoundError:
            return True
        except OSError:
            return False

    def _measure_excess(self) -> str:
        files = size = 0
        try:
            for bytes_on_disk in _sizes(self.path):
                files += 1
                size += bytes_on_disk
                if files > self._max_files or size > self._max_bytes:
                    break
        except OSError as error:
            return f"a private folder whose files cannot be counted: {error.strerror}"
        if files > self._max_files:
            return f"more than {self._max_files} files in its private folder (limits.function_files)"
        if size > self._max_bytes:
            return f"more than {self._max_bytes >> 20} MB in its private folder (limits.function_disk_mb)"
        return ""


def _sizes(top: str) -> Iterator[int]:
    """Yield the size on disk of each file and folder below `top`. Raises OSError."""
    waiting = [top]
    while waiting:
        for entry in _entries(waiting.pop()):
            size = _disk_bytes(entry)
            if size is not None:
                yield size
            if size is not None and entry.is_dir(follow_symlinks=False):
                waiting.append(entry.path)


def _entries(folder: str) -> Iterator[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        yield from entries


def _disk_bytes(entry: os.DirEntry[str]) -> int | None:
    """Return the size of an entry; None if a thread of the project has removed it meanwhile."""
    try:
        return entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return None


class PrivateFolders:
    """The private folders of one pool, in a locked parent folder."""

    def __init__(self, max_files: int, max_bytes: int) -> None:
        self._max_files = max_files
        self._max_bytes = max_bytes
        self._root = ""
        self._lock = -1

    async def open(self) -> None:
        """Make and lock the parent folder; does nothing the second time. Raises OSError."""
        if not self._root:
            await asyncio.to_thread(remove_abandoned)
            self._root, self._lock = _make_locked()

    def make(self) -> PrivateFolder:
        """Make the folder of one call. To be called after `open()`. Raises OSError."""
        return PrivateFolder(tempfile.mkdtemp(dir=self._root), self._max_files, self._max_bytes)

    async def close(self) -> None:
        """Remove all folders. Idempotent."""
        if self._root:
            root, self._root = self._root, ""
            await asyncio.to_thread(remove_tree, root)
            os.close(self._lock)


def remove_abandoned() -> None:
    """Remove the parent folders that killed cores of this user have left.

    The kernel releases a lock when its process ends, however it ends: a folder that can be locked has no running core.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if os.fstat(descriptor).st_uid == os.getuid():
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove_tree(str(folder))
        except BlockingIOError:
            # The core that holds the lock is running.
            pass
        finally:
            os.close(descriptor)


def _make_locked() -> tuple[str, int]:
    """Return a new folder and the descriptor that holds its lock. Raises OSError."""
    for _ in range(_TRIES):
        path = tempfile.mkdtemp(prefix=_PREFIX)
        # Until the folder is locked, another core may remove it as abandoned; then the next attempt makes another one.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.isdir(path):
                return path, descriptor
        except BlockingIOError:
            pass
        os.close(descriptor)
    raise OSError(f"no folder can be made and locked in {tempfile.gettempdir()}: {_TRIES} attempts failed")


def remove_tree(path: str) -> None:
    """Remove a folder, even if project code took permissions away or nested folders until their paths were too long."""
    _remove_contents(path)
    shutil.rmtree(path, ignore_errors=True)


def _remove_contents(top: str) -> None:
    """Remove everything in `top`.

    Inner folders are moved up into `top` before they are emptied. So paths stay short and no recursion is needed,
    however deeply project code has nested them.
    """
    waiting = _remove_files(top)
    while waiting:
        folder = waiting.pop()
        for inner in _remove_files(folder):
            moved = os.path.join(top, secrets.token_hex(8))
            try:
                os.chmod(inner, stat.S_IRWXU)
                os.rename(inner, moved)
            except OSError:
                continue
            waiting.append(moved)
        try:
            os.rmdir(folder)
        except OSError:
            continue


def _remove_files(folder: str) -> list[str]:
    """Remove the files in a folder; return the folders in it."""
    folders = []
    try:
        os.chmod(folder, stat.S_IRWXU)
        with os.scandir(folder) as entries:
            found = list(entries)
    except OSError:
        return []
    for entry in found:
        try:
            if entry.is_dir(follow_symlinks=False):
                folders.append(entry.path)
            else:
                os.unlink(entry.path)
        except OSError:
            continue
    return folders
