"""A position at which a project asks its model: the instructions there, the tools, and what callers say there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from callagent.models import Tool


@dataclass(frozen=True, slots=True)
class ExampleQuery:
    """A caller's words that the project's own files give as an example."""

    utterance: str
    calls: tuple[Mapping[str, Any], ...]
    """The functions that the model should call, `{"name", "arguments"}` each; empty: none."""
    source: str
    """The file in which the example stands."""


@dataclass(frozen=True, slots=True)
class PromptPosition:
    """One position of a conversation and what the model is given there."""

    flow: str | None
    step: str | None
    instructions: str
    """The system message nearest to the position."""
    tools: tuple[Tool, ...]
    queries: tuple[ExampleQuery, ...] = ()
