"""A process's standard output and error as lines, with a cap."""

from __future__ import annotations

import asyncio
import fcntl
import os

_READ = 64 * 1024
_LINE_BYTES = 4096
_DISCARD = 1024 * 1024
_DISCARD_SECONDS = 0.01


class OutputReader:
    """Reads a pipe as it fills; `take()` gives the lines. Over the cap one line says so and the rest is discarded."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._left = limit
        self._limit = limit
        self._partial = b""
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._open = True
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    @property
    def left(self) -> int:
        """Bytes until the cap; a replacement's reader goes on with them."""
        return self._left

    def take(self) -> list[str]:
        """What was written up to now, the last line also when it is not finished."""
        if self._open and self._left > 0:
            self._read()
        if self._partial:
            self._keep(self._partial)
            self._partial = b""
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        if self._open:
            self._stop()
            os.close(self._descriptor)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _READ)
        except BlockingIOError:
            return
        if not data:
            self._stop_reading()
            return
        *lines, self._partial = (self._partial + data[: self._left]).split(b"\n")
        self._left -= len(data)
        for line in lines:
            self._keep(line)
        if len(self._partial) > _LINE_BYTES or self._left <= 0:
            self._keep(self._partial)
            self._partial = b""
        if self._left <= 0:
            if self._limit > 0:
                self._lines.append(f"output is over {self._limit} bytes; the rest is dropped")
            # A writer must not block for ever on a full pipe, nor keep the loop busy: discard much, now and then.
            self._stop_reading()
            self._widen()
            self._discard()

    def _keep(self, line: bytes) -> None:
        if line:
            self._lines.append(line[:_LINE_BYTES].decode("utf-8", "replace"))

    def _discard(self) -> None:
        try:
            if not os.read(self._descriptor, _DISCARD):
                return
        except BlockingIOError:
            pass
        self._timer = self._loop.call_later(_DISCARD_SECONDS, self._discard)

    def _widen(self) -> None:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _DISCARD)
        except OSError:
            pass  # over the user's allowance: it will only be slower

    def _stop(self) -> None:
        self._open = False
        self._stop_reading()
        if self._timer is not None:
            self._timer.cancel()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)
