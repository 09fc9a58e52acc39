"""Limits of the server's process: the garbage collector, the C library's arenas, and file descriptors."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
from time import monotonic

_NEVER = 1_000_000_000
_THRESHOLDS = (300, 1, _NEVER)
"""No packet is sent while it runs. A collection of the middle generation looks at six hundred new objects; of two
thousand it took up to 6 ms on a machine with other work. A full one was seen to take 90 ms beside 3,000 calls: it waits
for a moment without calls (`QuietCollections`). Ended calls need none: they leave no cycles."""
QUIET_SECONDS = 3600.0
"""From one full collection to the next, at least."""


_M_ARENA_MAX = -8
"""Of glibc's `malloc.h`."""


def share_arenas() -> None:
    """Before there are threads: they take memory from two places. What each freed and kept for itself was a megabyte
    after 3,000 messages; with one place alone, speech engines would keep the media waiting. Where the C library is
    another, nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_ARENA_MAX, 2)


def calm_collector() -> None:
    """Once everything is open: what is there by now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)


class QuietCollections:
    """Full collections in moments without calls: cycles that libraries leave behind do not pile up for weeks."""

    def __init__(self) -> None:
        self._collected_at = monotonic()

    def no_call_is_on(self) -> None:
        """Collect now, unless the last time was less than `QUIET_SECONDS` ago; it takes some tens of milliseconds."""
        if monotonic() - self._collected_at < QUIET_SECONDS:
            return
        # What was there at the last time may have become garbage since: it is looked at as well.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._collected_at = monotonic()


PER_CALL = 12
"""RTP and RTCP, a worker's socket, pidfd and output, a recording, a web socket, a bridge, connections to providers."""
OWN = 256
"""Listeners, the store, zygotes, connections to providers, pages that watch."""
RESERVE = 2 * PER_CALL
"""Free descriptors without which no call is taken: calls that begin at the same time have not opened theirs yet."""


def calls_that_fit(calls: int) -> int:
    """Raise the soft limit to what `calls` at a time need; return how many the hard limit lets in, one at least."""
    needed = OWN + RESERVE + PER_CALL * calls
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return calls
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, min(calls, (allowed - OWN - RESERVE) // PER_CALL))


def room_for_call() -> bool:
    """Whether `RESERVE` descriptors are free now; it takes some microseconds."""
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(opened) < RESERVE:
            opened.append(os.dup(opened[0]))
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True
