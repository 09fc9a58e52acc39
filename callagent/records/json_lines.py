"""Ended calls as lines of a file for other programs, written by a thread of its own: no call waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from pathlib import Path
from typing import Final

from callagent.log import get_logger

log = get_logger(__name__)

RETRY_SECONDS: Final = 1.0
"""Between attempts to write a line where the file cannot be written."""
_MAX_QUEUED: Final = 1_000
_CLOSING_SECONDS: Final = 5.0


class JsonLines:
    """Lines wait in memory, so many at most, while the file cannot be written; further ones are lost and counted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lines: queue.Queue[str | None] = queue.Queue(_MAX_QUEUED)
        self._lost = 0
        self._failing = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="json lines", daemon=True)
        self._thread.start()

    def add(self, line: str) -> None:
        """Never waits."""
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            if not self._lost:
                log.error("json_lines_lost", path=str(self._path), waiting=_MAX_QUEUED)
            self._lost += 1

    async def close(self) -> None:
        """Write what waits, if the file takes it soon."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self._stopping.set()
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_CLOSING_SECONDS)
        self._thread.join(_CLOSING_SECONDS)
        if self._thread.is_alive() or not self._lines.empty():
            log.error("json_lines_not_written", path=str(self._path), lines=self._lines.qsize())

    def _run(self) -> None:
        while (line := self._lines.get()) is not None:
            while not self._append(line):
                if self._stopping.wait(RETRY_SECONDS):
                    return

    def _append(self, line: str) -> bool:
        """Whether the line is in the file."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _append(self._path, f"{line}\n".encode("utf-8", "replace"))
        except OSError as error:
            if not self._failing:
                log.error("json_lines_failing", path=str(self._path), error=str(error))
            self._failing = True
            return False
        if self._failing or self._lost:
            log.warning("json_lines_work_again", path=str(self._path), lost=self._lost)
        self._failing, self._lost = False, 0
        return True


def _append(path: Path, line: bytes) -> None:
    """Add the whole line or, where it does not fit, nothing. Raises `OSError`."""
    with path.open("ab", buffering=0) as file:
        written = 0
        try:
            while written < len(line):
                written += file.write(line[written:])
        except OSError:
            if written:
                file.truncate(file.tell() - written)
            raise
