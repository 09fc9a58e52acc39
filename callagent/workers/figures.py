"""How the worker processes of this server do, counted over all its projects."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(slots=True)
class WorkerFigures:
    """Since the server began, but for `live`."""

    live: int = 0
    """Workers that are there now, one for each call with project code."""
    started: int = 0
    """Replacements too."""
    killed: int = 0
    """For a function that did not end in time."""
    died: int = 0
    """By themselves: a crash, or a limit of the operating system."""
    replaced: int = 0
    """Started from a call's last checkpoint in place of one that was killed or died."""

    def lines(self) -> Iterable[str]:
        """Prometheus text."""
        yield from _family("callagent_workers_live", "gauge", "Worker processes that are there.", self.live)
        for name, text, value in (
            ("started", "Worker processes started.", self.started),
            ("killed", "Workers killed because a function did not end in time.", self.killed),
            ("died", "Workers that ended by themselves.", self.died),
            ("replaced", "Workers started in place of one that was killed or died.", self.replaced),
        ):
            yield from _family(f"callagent_workers_{name}_total", "counter", text, value)


def _family(name: str, kind: str, text: str, value: int) -> Iterable[str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}", f"{name} {value}"


FIGURES: Final = WorkerFigures()
"""Of this process: a server has one set of workers."""
