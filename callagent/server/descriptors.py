"""File descriptors: how many the server may have, and whether a call still finds some."""

from __future__ import annotations

import os
import resource

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
