"""One flow: its configuration, steps and functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from callagent.agents.flows.functions import ProjectFunction
from callagent.agents.flows.steps import Step


@dataclass(frozen=True, slots=True)
class Flow:
    name: str
    folder: str
    description: str
    start_step: str
    steps: Mapping[str, Step] = field(default_factory=dict)
    function_steps: Mapping[str, ProjectFunction] = field(default_factory=dict)
    functions: Mapping[str, ProjectFunction] = field(default_factory=dict)

    def has_step(self, name: str | None) -> bool:
        return name in self.steps or name in self.function_steps
