"""One tick for all legs whose audio has no thread of its own: a timer per call collapses at a thousand calls."""

from __future__ import annotations

import asyncio
from typing import Protocol

from callagent.audio import FRAME_SECONDS
from callagent.log import get_logger

HALF_FRAME = FRAME_SECONDS / 2
"""For a leg that is ahead of its peer's playing: what comes to be said waits for half a frame at most."""

log = get_logger(__name__)


class Ticking(Protocol):
    def tick(self, now: float, lateness: float) -> None:
        """A tick, `lateness` seconds after it was due."""

    def fail(self, detail: str) -> None:
        """The tick raised; it will not come again."""


class FrameClock:
    """Ticks at absolute times while it has members; a tick that comes too late for the next one skips it."""

    def __init__(self, period: float = FRAME_SECONDS) -> None:
        self._period = period
        self._loop = asyncio.get_running_loop()
        self._members: dict[int, Ticking] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def now(self) -> float:
        return self._loop.time()

    def add(self, member: Ticking) -> None:
        self._members[id(member)] = member
        if self._timer is None:
            self._schedule(self.now() + self._period)

    def remove(self, member: Ticking) -> None:
        self._members.pop(id(member), None)
        if not self._members and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, due: float) -> None:
        self._due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        now = self.now()
        lateness = max(0.0, now - self._due)
        for member in tuple(self._members.values()):
            try:
                member.tick(now, lateness)
            except Exception:
                # The outermost edge of one call's audio: the other calls go on.
                log.exception("carrier_tick_failed")
                self.remove(member)
                member.fail("the audio of the call raised an error")
        if self._members:
            missed = int(max(0.0, self.now() - self._due) / self._period)
            self._schedule(self._due + (missed + 1) * self._period)
