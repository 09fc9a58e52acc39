"""Figures of a measurement."""

from __future__ import annotations

from collections.abc import Sequence


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """`count`, `p50`, `p99`, `max` by nearest rank; zeros where nothing was measured."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}

    def rank(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    return {
        "count": len(ordered),
        "p50": round(rank(0.5), 2),
        "p99": round(rank(0.99), 2),
        "max": round(ordered[-1], 2),
    }
