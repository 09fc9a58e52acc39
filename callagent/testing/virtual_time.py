"""An event loop whose clock jumps: a call of a minute runs in milliseconds, the same way every time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Instead of waiting, moves the loop's clock on by what it would have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        # What is ready comes first: time must not jump past something that could happen now.
        ready = super().select(0)
        if ready or timeout is None:
            # Without a timer there is nothing to jump to: only something from outside can go on, so wait for it.
            return ready or super().select(timeout)
        self.now += max(timeout, 0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`loop.time()` starts at 0 and jumps to the next timer whenever nothing is ready. No threads, no real I/O."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


def run(main: Coroutine[object, object, T], *, limit: float = 3600.0) -> T:
    """Run `main` on a virtual clock; `TimeoutError` after `limit` virtual seconds."""
    loop = VirtualTimeLoop()
    try:
        return loop.run_until_complete(asyncio.wait_for(main, limit))
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
