"""Timers of a core without a clock: who owns the core asks for the next one and says when it is due."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count


@dataclass(frozen=True, slots=True)
class TimerSettings:
    """RFC 3261 §17.1.1.1, in seconds. A reliable transport is not retransmitted over."""

    t1: float = 0.5
    """Estimated round trip."""
    t2: float = 4.0
    """Longest interval between retransmissions."""
    t4: float = 5.0
    """How long a message may live in the network."""
    d: float = 32.0
    """How long responses to an INVITE that failed are absorbed."""

    @property
    def timeout(self) -> float:
        return 64 * self.t1


class Timer:
    """One appointment; `cancel` is idempotent."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[float], None]) -> None:
        self.when = when
        self.callback: Callable[[float], None] | None = callback

    def cancel(self) -> None:
        self.callback = None


class Timers:
    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = count()
        self._sweep_at = 64

    def at(self, when: float, callback: Callable[[float], None]) -> Timer:
        """Call `callback(now)` once `handle` is told of a time not before `when`."""
        timer = Timer(when, callback)
        heapq.heappush(self._heap, (when, next(self._order), timer))
        self._drop_cancelled()
        return timer

    def next(self) -> float | None:
        while self._heap and self._heap[0][2].callback is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def handle(self, now: float) -> None:
        """Run what is due, in order; a callback's new timer runs in the same round when it is due as well."""
        while (when := self.next()) is not None and when <= now:
            timer = heapq.heappop(self._heap)[2]
            callback, timer.callback = timer.callback, None
            if callback is not None:
                callback(now)

    def __len__(self) -> int:
        return sum(1 for entry in self._heap if entry[2].callback is not None)

    def _drop_cancelled(self) -> None:
        # A cancelled 32 s timer would otherwise keep its call alive for as long; sweeping at each doubling is O(1).
        if len(self._heap) >= self._sweep_at:
            self._heap = [entry for entry in self._heap if entry[2].callback is not None]
            heapq.heapify(self._heap)
            self._sweep_at = max(64, 2 * len(self._heap))
