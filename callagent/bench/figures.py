"""Figures of a measurement."""

from __future__ import annotations

import math
from collections.abc import Sequence


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest of the sorted values that `share` of them, 0 to 1, do not exceed."""
    # 0.95 * 20 is a little more than 19.
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """`count`, `p50`, `p99`, `max` by nearest rank; zeros where nothing was measured."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    return {
        "count": len(ordered),
        "p50": round(nearest_rank(ordered, 0.5), 2),
        "p99": round(nearest_rank(ordered, 0.99), 2),
        "max": round(ordered[-1], 2),
    }
