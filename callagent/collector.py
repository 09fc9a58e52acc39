"""Python's garbage collector in a process that serves calls."""

from __future__ import annotations

import gc

_THRESHOLDS = (500, 3, 5_000)
"""No packet is sent while it runs. A collection of the middle generation looks at two thousand new objects, half a
millisecond; of ten thousand it took 3 to 10 ms. A full one was seen to take 90 ms beside 3,000 calls: there is one in
ten million objects, not in seventy thousand."""


def calm_collector() -> None:
    """Once everything is open: what is there by now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
