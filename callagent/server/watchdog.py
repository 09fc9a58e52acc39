"""A thread that notices when another one of the process stands still: the event loop, or the sending clock."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from callagent.log import get_logger

MAX_STILL = 1.0
"""Seconds without a sign of life after which a thread stands still."""
LOOK_SECONDS = 0.25
PROCESS = "process"
"""Counted where the watchdog itself was late: the whole process was stopped or its machine suspended, or one thread
kept the interpreter to itself."""

log = get_logger(__name__)


@dataclass(slots=True)
class Watched:
    """One thread."""

    name: str
    moved_at: Callable[[], float | None]
    """Monotonic seconds of its last sign of life; None while it has nothing to do."""
    thread: Callable[[], int | None]
    stalls: int = 0
    still: bool = False


class Watchdog:
    """`look` is the core; `start` runs it on a thread."""

    def __init__(self) -> None:
        self._watched: list[Watched] = []
        self._stopped = threading.Event()
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
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    @property
    def still(self) -> list[str]:
        """The threads that stand still now."""
        return [watched.name for watched in self._watched if watched.still]

    def metrics(self) -> list[str]:
        """Lines of Prometheus text."""
        name = "callagent_stalls_total"
        counts = {PROCESS: self.process_stalls} | {watched.name: watched.stalls for watched in self._watched}
        lines = [f'{name}{{thread="{thread}"}} {count}' for thread, count in counts.items()]
        help_text = f"# HELP {name} How often a thread stood still for longer than a second."
        return [help_text, f"# TYPE {name} counter", *lines]

    def look(self, now: float) -> None:
        """Look at every thread; `now` in monotonic seconds."""
        late = 0.0 if self._looked_at is None else now - self._looked_at - LOOK_SECONDS
        self._looked_at = now
        if late > MAX_STILL:
            self.process_stalls += 1
            # After that every thread is late: it is nobody's fault, and each gets its time anew.
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
    frame = sys._current_frames().get(watched.thread() or 0)
    return "".join(traceback.format_stack(frame)) if frame is not None else ""
