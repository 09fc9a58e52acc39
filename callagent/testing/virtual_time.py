"""An event loop whose clock jumps: a call of a minute runs in milliseconds, the same way every time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """A selector that, in place of waiting, moves the loop's clock on by the time of the wait."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # Ready events come first: time must not jump past them.
        ready = super().select(0)
        if ready or timeout is None:
            # Without a timer there is no time to jump to, so wait for an event from outside the loop.
            return ready or super().select(timeout)
        self.now += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop without threads and I/O: its time starts at 0 and jumps to the next timer when nothing is ready."""

    def __init__(self) -> None:
        self._clock = _JumpingSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.now


def run(main: Coroutine[object, object, T], *, limit: float = 3600.0) -> T:
    """Run `main` on a virtual clock. Raises `TimeoutError` after `limit` virtual seconds."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(main, limit))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
