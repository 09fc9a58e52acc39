"""Processor time of work whose cost must be bounded, measured so that other load on the machine does not count."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

ATTEMPTS = 3


def processor_seconds(work: Callable[[], object], below: float = 0.0) -> float:
    """Return the least processor time of up to three runs of `work`, in seconds of this thread.

    The first run that takes less than `below` is the last. Other threads are not counted, and the garbage of other
    tests is not collected meanwhile.
    """
    least = float("inf")
    for _ in range(ATTEMPTS):
        gc.disable()
        try:
            began = time.thread_time()
            work()
            least = min(least, time.thread_time() - began)
        finally:
            gc.enable()
        if least < below:
            break
    return least
