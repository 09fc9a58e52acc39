"""One timer for the audio of all legs on WebSockets: a timer for each call would collapse at a thousand calls."""

from __future__ import annotations

import asyncio
from typing import Protocol

from callagent.audio import FRAME_SECONDS
from callagent.log import get_logger

HALF_FRAME = FRAME_SECONDS / 2
"""The period for legs that send ahead of their peer's playing: new audio waits for half a frame at most."""

log = get_logger(__name__)


class Ticking(Protocol):
    """A leg that is ticked."""

    def tick(self, now: float, lateness: float) -> None:
        """Send and deliver what is due; the tick comes `lateness` seconds late."""

    def fail(self, detail: str) -> None:
        """Close after a tick that raised; no other one will come."""


class FrameClock:
    """Ticks its members at absolute times while it has any; a tick that is too late skips those that are past."""

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
