"""The sending clock: one thread calls each sender of RTP packets on its own 20 ms grid.

The period is cut into ten phases of 2 ms and senders are spread over them, so that a thousand calls are ten short
bursts and not one long one. A phase is filled before the next is begun: where there are few calls, waking up for them
costs more than sending. Packet n of a phase is due at `origin + phase * 2 ms + n * 20 ms`, however late
the packets before it were: lateness never adds up.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from callagent.audio import FRAME_SECONDS
from callagent.log import get_logger

EXIT_STATUS = 70
"""Exit status of a process whose sending clock died (`EX_SOFTWARE` of sysexits)."""
PHASES = 10
SENDERS_PER_PHASE = 25
"""Senders that a phase has before another phase is begun; when all ten have as many, they grow evenly."""
MAX_BURST = 3
"""Packets that a late sender may send at once; older frames are skipped, and the timestamp jumps over them."""


log = get_logger(__name__)


def _end_process() -> None:
    os._exit(EXIT_STATUS)


class Sender(Protocol):
    """A sender, which is called on the pump's thread and never blocks."""

    def send(self, due: float, skipped: int) -> None:
        """Send the packet due at `due`, after `skipped` frames that will never be sent."""

    def fail(self, error: Exception) -> None:
        """Handle an exception that `send` raised."""


class PumpHandle:
    """The place of one sender in the pump."""

    __slots__ = ("lock", "phase", "sender")

    def __init__(self, phase: int, sender: Sender) -> None:
        self.phase = phase
        self.sender: Sender | None = sender
        # Held while the sender runs: once remove() has returned, the sender's socket may be closed.
        self.lock = threading.RLock()

    def send(self, due: float, skipped: int) -> None:
        """Call the sender, unless it was removed; an exception goes to its `fail`."""
        with self.lock:
            sender = self.sender
            if sender is None:
                return
            try:
                sender.send(due, skipped)
            # The outermost boundary of this thread: one call's fault must not silence the others.
            except Exception as error:
                sender.fail(error)


class _Phase:
    """The senders that are called at the same time, and when that is."""

    __slots__ = ("handles", "start", "tick")

    def __init__(self) -> None:
        self.start = 0.0
        self.tick = 0
        # Replaced as a whole, never changed, because the thread may be iterating over the old one.
        self.handles: tuple[PumpHandle, ...] = ()

    def due(self, ahead: int = 0) -> float:
        """Return when the next packets are due, or those `ahead` frames later."""
        # Computed from the start each time, because a sum of 0.02 would drift.
        return self.start + (self.tick + ahead) * FRAME_SECONDS


class Pump:
    """The clock that calls all senders on their grids; `start` runs `send_due` on a thread of its own.

    Senders may be added and removed from any thread.
    """

    def __init__(self, on_death: Callable[[], None] = _end_process) -> None:
        """`on_death` is called when the thread ends by an error."""
        self._phases = [_Phase() for _ in range(PHASES)]
        self._origin: float | None = None
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._on_death = on_death
        self.moved_at: float | None = None
        """When the thread last looked for due packets; None while there are no senders."""

    def start(self) -> None:
        """Start the thread. Called once."""
        self._stopping = False
        self._thread = threading.Thread(target=self._run_until_error, name="rtp-pump", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; when this returns, nothing more is sent. Idempotent."""
        self._stopping = True
        self._wake.set()
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(1.0)

    def add(self, sender: Sender) -> PumpHandle:
        """Let `sender` send from now on; its first packet is due within 40 ms."""
        return self.add_at(sender, time.monotonic())

    def add_at(self, sender: Sender, now: float) -> PumpHandle:
        with self._lock:
            if self._origin is None:
                self._origin = now
            number = self._next_phase()
            phase = self._phases[number]
            if not phase.handles:
                phase.start = self._origin + number * FRAME_SECONDS / PHASES
                # At least one period ahead, because the thread may be asleep for that long.
                phase.tick = int((now - phase.start) / FRAME_SECONDS) + 2
            handle = PumpHandle(number, sender)
            phase.handles = (*phase.handles, handle)
        self._wake.set()
        return handle

    def remove(self, handle: PumpHandle) -> None:
        """Take a sender out. Guaranteed afterwards: it is not running and is never called again. Idempotent."""
        with self._lock:
            phase = self._phases[handle.phase]
            phase.handles = tuple(other for other in phase.handles if other is not handle)
        with handle.lock:
            handle.sender = None

    def _next_phase(self) -> int:
        """Return the phase of the next sender: the fullest that has room, so that few phases wake the thread."""
        sizes = [len(phase.handles) for phase in self._phases]
        roomy = [number for number in range(PHASES) if sizes[number] < SENDERS_PER_PHASE]
        return max(roomy, key=sizes.__getitem__) if roomy else min(range(PHASES), key=sizes.__getitem__)

    def send_due(self, now: float) -> float | None:
        """Call every sender whose packet is due. Return the time of the next one; None: there are no senders."""
        for phase in self._phases:
            if phase.handles and phase.due() <= now:
                self._send_phase(phase, now)
        return min((phase.due() for phase in self._phases if phase.handles), default=None)

    def _send_phase(self, phase: _Phase, now: float) -> None:
        # Count the frames due by now: one, or more after a stall. The newest MAX_BURST are sent, the others skipped.
        # The millionth of a frame makes up for rounding, which could count a packet that is due now as not yet due.
        count = int((now - phase.due()) / FRAME_SECONDS + 1e-6) + 1
        skipped = max(0, count - MAX_BURST)
        dues = [phase.due(ahead) for ahead in range(skipped, count)]
        following = phase.tick + count
        for handle in phase.handles:
            handle.send(dues[0], skipped)
            for due in dues[1:]:
                handle.send(due, 0)
        with self._lock:
            # add() may have set a later tick meanwhile.
            phase.tick = max(phase.tick, following)

    @property
    def thread(self) -> int | None:
        """The identifier of the thread that sends."""
        return None if self._thread is None else self._thread.ident

    def _run_until_error(self) -> None:
        try:
            self._run()
        except BaseException:
            # Without this thread all calls are silent: the process must not live on and answer more of them.
            try:
                log.exception("sending_clock_died")
            finally:
                self._on_death()

    def _run(self) -> None:
        while not self._stopping:
            self.moved_at = now = time.monotonic()
            due = self.send_due(now)
            if due is None:
                self.moved_at = None
                self._wake.clear()
                if not any(phase.handles for phase in self._phases):
                    self._wake.wait()
                continue
            wait = due - time.monotonic()
            # Never longer than a frame, so that a sender added meanwhile is not late.
            if wait > 0:
                time.sleep(min(wait, FRAME_SECONDS))
