"""Keeps the server's process responsive: when memory is collected, and a watchdog over threads that stand still."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from callagent.log import get_logger

log = get_logger(__name__)

# Memory ---------------------------------------------------------------------------------------------------------------

_NEVER: Final = 1_000_000_000
_THRESHOLDS: Final = (300, 1, _NEVER)
"""No packet is sent while Python's garbage collector runs. A collection of the middle generation looks at six hundred
new objects; with two thousand it took up to 6 ms on a machine with other work. A full one was seen to take 90 ms beside
3,000 calls: it waits for a moment without calls (`QuietCollections`). Ended calls need none: they leave no cycles."""
QUIET_SECONDS = 3600.0
"""Least time from one full collection to the next."""
_M_ARENA_MAX: Final = -8
"""Of glibc's `malloc.h`."""


def limit_malloc_arenas() -> None:
    """Have all threads take memory from two arenas of glibc. To be called before there are threads.

    With an arena for each thread, the memory that each had freed and kept was a megabyte after 3,000 messages. With a
    single arena, the threads of speech engines would make the media thread wait. It does nothing in other C libraries.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)


def reduce_garbage_collection() -> None:
    """Have the garbage collector run seldom, and never look at the objects that exist now: call it once all is open."""
    # Garbage of the start is collected first, or it would be frozen with the objects in use.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


class QuietCollections:
    """Full collections in moments without calls: cycles that libraries leave behind do not pile up for weeks."""

    def __init__(self) -> None:
        self._collected_at = time.monotonic()

    def collect_if_due(self) -> None:
        """Collect now, unless the last time was less than `QUIET_SECONDS` ago; it takes some tens of milliseconds."""
        if time.monotonic() - self._collected_at < QUIET_SECONDS:
            return
        # Objects that were in use the last time may be garbage by now, so they are unfrozen first.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._collected_at = time.monotonic()


# Threads that stand still ---------------------------------------------------------------------------------------------

MAX_STILL: Final = 1.0
"""Seconds without a sign of life after which a thread stands still."""
LOOK_SECONDS: Final = 0.25
"""Time between two looks of the watchdog."""
PROCESS: Final = "process"
"""Label of the count of stalls of the whole process: it was stopped, its machine was suspended, or one thread kept the
interpreter to itself. The watchdog sees them by being late itself."""


@dataclass(slots=True)
class Watched:
    """A thread of which signs of life are expected."""

    name: str
    moved_at: Callable[[], float | None]
    """Return the monotonic time of its last sign of life, in seconds; None while it has nothing to do."""
    thread: Callable[[], int | None]
    """Return the thread's identifier; None: it has not started."""
    stalls: int = 0
    still: bool = False


class Watchdog:
    """Counts and logs threads that stand still. `look` decides which ones do; `start` runs it on its own thread."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._looked_at: float | None = None
        self._awake_since = 0.0
        self.process_stalls = 0

    def watch(self, name: str, moved_at: Callable[[], float | None], thread: Callable[[], int | None]) -> None:
        self._watched.append(Watched(name, moved_at, thread))

    def watch_loop(self) -> None:
        """Watch the running event loop by a timer of its own."""
        loop, ident, moved = asyncio.get_running_loop(), threading.get_ident(), [time.monotonic()]

        def beat() -> None:
            moved[0] = time.monotonic()
            if not self._stopped.is_set():
                loop.call_later(LOOK_SECONDS, beat)

        beat()
        self.watch("loop", lambda: moved[0], lambda: ident)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop looking, and wait for the line of the log that is being written."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(LOOK_SECONDS)

    @property
    def still(self) -> list[str]:
        """Names of the threads that stand still now."""
        return [watched.name for watched in self._watched if watched.still]

    def metrics(self) -> list[str]:
        """Return the counts as lines of Prometheus text."""
        name = "callagent_stalls_total"
        counts = {PROCESS: self.process_stalls} | {watched.name: watched.stalls for watched in self._watched}
        lines = [f'{name}{{thread="{thread}"}} {count}' for thread, count in counts.items()]
        help_text = f"# HELP {name} How often a thread stood still for longer than a second."
        return [help_text, f"# TYPE {name} counter", *lines]

    def look(self, now: float) -> None:
        """Look at every thread; `now` is the monotonic time in seconds."""
        late = 0.0 if self._looked_at is None else now - self._looked_at - LOOK_SECONDS
        self._looked_at = now
        if late > MAX_STILL:
            self.process_stalls += 1
            # Every thread is late now, and none is to blame: the time of each begins anew.
            self._awake_since = now
            log.error("process_stood_still", seconds=round(late, 2), cause="suspended, stopped, or interpreter held")
        for watched in self._watched:
            moved = watched.moved_at()
            seconds = 0.0 if moved is None else now - max(moved, self._awake_since)
            if seconds > MAX_STILL and not watched.still:
                watched.still = True
                watched.stalls += 1
                log.error("thread_stands_still", thread=watched.name, seconds=round(seconds, 2), stack=_stack(watched))
            elif seconds <= MAX_STILL and watched.still:
                watched.still = False
                log.warning("thread_goes_on", thread=watched.name)

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            self.look(time.monotonic())


def _stack(watched: Watched) -> str:
    # The only way to see what another thread is doing. The answer may be a moment old, which is enough for a log line.
    frame = sys._current_frames().get(watched.thread() or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
