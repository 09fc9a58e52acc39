"""Timers of a core without a clock: its owner asks when the next one is due, and tells the time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class TimerSettings:
    """The timer values of RFC 3261 §17.1.1.1, in seconds."""

    t1: float = 0.5
    """Estimated round-trip time, and the first interval between retransmissions."""
    t2: float = 4.0
    """Longest interval between retransmissions."""
    t4: float = 5.0
    """How long a message may live in the network."""
    d: float = 32.0
    """How long retransmitted responses to an INVITE that failed are absorbed (timer D)."""

    @property
    def timeout(self) -> float:
        """How long a response or an ACK is waited for (timers B, F, H)."""
        return 64 * self.t1


class Timer:
    """One timer; cancelling it twice does no harm."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[float], None]) -> None:
        self.when = when
        self.callback: Callable[[float], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    """All timers of one user agent, ordered by time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._sweep_at = 64

    def at(self, when: float, callback: Callable[[float], None]) -> Timer:
        """Call `callback(now)` when `handle` is told a time that is not before `when`."""
        timer = Timer(when, callback)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        self._drop_cancelled()
        return timer

    def next(self) -> float | None:
        """Return when the next timer is due; None if there is none."""
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def handle(self, now: float) -> None:
        """Run the timers that are due, in order, including those that the callbacks start."""
        while (when := self.next()) is not None and when <= now:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback(now)

    def __len__(self) -> int:
        return sum(1 for entry in self._heap if entry[2].callback is not None)

    def _drop_cancelled(self) -> None:
        # A cancelled timer of 32 s would keep its call alive for as long. Sweeping only when the heap has doubled costs
        # O(1) per timer on average.
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._sweep_at = max(64, 2 * len(self._heap))
