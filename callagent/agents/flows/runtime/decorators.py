"""The decorators of function files. They note what they are given and return the same function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_ATTRIBUTE = "__function_notes__"


@dataclass(slots=True)
class FunctionNotes:
    """What the decorators said of one function."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    latency: dict[str, Any] | None = None


def notes_of(function: Any) -> FunctionNotes:
    notes = getattr(function, _ATTRIBUTE, None)
    return notes if isinstance(notes, FunctionNotes) else FunctionNotes()


def _note(function: Any) -> FunctionNotes:
    notes = notes_of(function)
    setattr(function, _ATTRIBUTE, notes)
    return notes


def func_description(description: str) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        _note(function).description = str(description)
        return function

    return decorate


def func_parameter(name: str, description: str = "") -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        _note(function).parameters[name] = str(description)
        return function

    return decorate


def func_latency_control(
    delay_before_responses_start: float = 0,
    silence_after_each_response: float = 0,
    delay_responses: Sequence[tuple[str, float]] | None = None,
    randomize: bool = False,
) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        _note(function).latency = {
            "delay_before_start": delay_before_responses_start,
            "silence_after_each": silence_after_each_response,
            "responses": [[str(text), seconds] for text, seconds in delay_responses or ()],
            "randomize": bool(randomize),
        }
        return function

    return decorate
