"""Percentiles, and what a process and its descendants use, from /proc."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from callagent.phone import nearest_rank


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


_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    cpu_seconds: float
    memory: int
    """Bytes, shared pages counted in part (PSS)."""


class ProcessTree:
    def __init__(self, root: int) -> None:
        self._root = root

    def usage(self) -> Usage:
        """Of the processes alive now."""
        cpu, memory = 0.0, 0
        for process in self._processes():
            try:
                fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
                rollup = (_PROC / str(process) / "smaps_rollup").read_text()
            except OSError:
                continue
            cpu += (int(fields[11]) + int(fields[12])) / _TICKS
            memory += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
        return Usage(cpu, memory)

    def _processes(self) -> set[int]:
        children: dict[int, list[int]] = {}
        for entry in _PROC.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
        found, left = {self._root}, [self._root]
        while left:
            for child in children.get(left.pop(), []):
                if child not in found:
                    found.add(child)
                    left.append(child)
        return found
