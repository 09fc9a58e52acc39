"""Where a project asks its model: what the model is told there, what it may call, and what callers say there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callagent.models.protocol import Tool


@dataclass(frozen=True, slots=True)
class Query:
    """Words of a caller, as the project itself gives them."""

    said: str
    calls: tuple[Mapping[str, Any], ...]
    """`{"name", "arguments"}` each; empty: nothing is to be called."""
    source: str
    """The file that it is from."""


@dataclass(frozen=True, slots=True)
class Place:
    """One position of a conversation."""

    flow: str | None
    step: str | None
    instructions: str
    """The system message nearest to the position."""
    tools: tuple[Tool, ...]
    queries: tuple[Query, ...] = ()
