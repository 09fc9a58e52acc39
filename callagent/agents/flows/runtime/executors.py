"""`conv.functions` and `flow.functions`: calling one project function from another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from callagent.agents.flows.runtime.binding import takes_flow

Find = Callable[[str], Callable[..., Any]]
"""The main function of a file; raises AttributeError when there is none and what its import raised when it failed."""


class FunctionExecutor:
    """`conv.functions.name(…)`: the conversation (and the flow, where it is taken) need not be passed."""

    def __init__(self, find: Find, conv: Any, flow: Any) -> None:
        self._find = find
        self._conv = conv
        self._flow = flow

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        function = self._find(name)

        def call(*arguments: Any, **named: Any) -> Any:
            return function(*self._inject(function, arguments, named), **named)

        return call

    def _inject(self, function: Callable[..., Any], given: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        """Some projects pass `conv` and `flow` themselves; then nothing is injected."""
        given_conv, *rest = given if given and given[0] is self._conv else (self._conv, *given)
        if "conv" in named:
            return given
        if takes_flow(function) and "flow" not in named and not (rest and rest[0] is self._flow):
            rest = [self._flow, *rest]
        return (given_conv, *rest)


FlowFunctionExecutor = FunctionExecutor
