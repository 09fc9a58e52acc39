"""The graph of a project as the dashboard shows it: its flows with their steps, and what leads from step to step."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class GraphStep:
    id: str
    name: str
    kind: str
    """`step`: it asks the model; `function`: it runs a function."""


@dataclass(frozen=True, slots=True)
class GraphFlow:
    name: str
    start: str
    """The identifier of its start step."""
    steps: tuple[GraphStep, ...]


@dataclass(frozen=True, slots=True)
class GraphEdge:
    source: str
    """The identifier of a step; empty: the start of the call."""
    target: str
    by: str
    """The condition or the function that leads there."""


@dataclass(frozen=True, slots=True)
class ProjectGraph:
    """Empty for project formats without flows."""

    flows: tuple[GraphFlow, ...] = ()
    edges: tuple[GraphEdge, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return asdict(self)
