"""Python's garbage collector in a process that serves calls."""

from __future__ import annotations

import gc

_THRESHOLDS = (1_000, 10, 1_000)
"""No packet is sent while it runs, and a full collection was seen to take 90 ms beside 3,000 calls: there is one in
ten million objects, not in seventy thousand; the smaller ones stay small."""


def calm_collector() -> None:
    """Once everything is open: what is there by now is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
