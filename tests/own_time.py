"""A clock that stands still while the machine has no time for us: upper bounds hold where others work, too."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

_BEAT_SECONDS = 0.01
_SLACK_SECONDS = 0.05
"""A beat so late is the machine's doing. What the code under test does on its own thread delays no beat by so much."""


class OwnTime:
    """Calling it gives the seconds of a clock that runs as `time.monotonic` does, but for the stalls."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = monotonic()
        self._stalled = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def __call__(self) -> float:
        with self._lock:
            now = monotonic()
            return now - self._stalled - self._late(now)

    @property
    def stalled(self) -> float:
        """Seconds that it stood still."""
        with self._lock:
            return self._stalled + self._late(monotonic())

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _beat(self) -> None:
        while not self._over.wait(_BEAT_SECONDS):
            with self._lock:
                now = monotonic()
                self._stalled += self._late(now)
                self._last = now

    def _late(self, now: float) -> float:
        return max(0.0, now - self._last - _SLACK_SECONDS)


@contextmanager
def own_time() -> Iterator[OwnTime]:
    clock = OwnTime()
    try:
        yield clock
    finally:
        clock.close()
