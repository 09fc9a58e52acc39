"""The `flow` argument of flow functions and function steps."""

from __future__ import annotations

from callagent.agents.flows.runtime.effects import Effects
from callagent.agents.flows.runtime.executors import Find, FunctionExecutor


class Flow:
    def __init__(self, conv: object, find: Find, current_step: str | None, effects: Effects) -> None:
        self.current_step = current_step
        self.functions = FunctionExecutor(find, conv, self)
        self._effects = effects

    def goto_step(self, step_name: str, label: str | None = None) -> None:
        """Queue going to a step; the last call wins."""
        del label  # decoration of the editor's graph
        self._effects.goto_step = str(step_name)
