"""How project functions are declared and called: decorators, binding of arguments, `conv.functions`, `flow`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])

_ATTRIBUTE = "__function_notes__"


@dataclass(slots=True)
class FunctionNotes:
    """What the decorators declare for one function."""

    description: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    latency: dict[str, object] | None = None


def notes_of(function: object) -> FunctionNotes:
    notes = getattr(function, _ATTRIBUTE, None)
    return notes if isinstance(notes, FunctionNotes) else FunctionNotes()


def _own_notes(function: object) -> FunctionNotes:
    notes = notes_of(function)
    setattr(function, _ATTRIBUTE, notes)
    return notes


def func_description(description: str) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        _own_notes(function).description = str(description)
        return function

    return decorate


def func_parameter(name: str, description: str = "") -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        _own_notes(function).parameters[name] = str(description)
        return function

    return decorate


def func_latency_control(
    delay_before_responses_start: float = 0,
    silence_after_each_response: float = 0,
    delay_responses: Sequence[tuple[str, float]] | None = None,
    randomize: bool = False,
) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        _own_notes(function).latency = {
            "delay_before_start": delay_before_responses_start,
            "silence_after_each": silence_after_each_response,
            "responses": [[str(text), seconds] for text, seconds in delay_responses or ()],
            "randomize": bool(randomize),
        }
        return function

    return decorate


JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TRUE = frozenset({"true", "yes", "y", "1", "on"})
_FALSE = frozenset({"false", "no", "n", "0", "off", ""})
_INJECTED = frozenset({"conv", "conversation", "flow"})
_INJECTED_TYPES = frozenset({"Conversation", "Flow"})


def type_name(parameter: inspect.Parameter) -> str:
    """Return the annotation as written, such as `str` or `Conversation`; empty when there is none."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return ""
    # With `from __future__ import annotations` every annotation is a string.
    return annotation.strip("'\"") if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def takes_flow(function: Callable[..., object]) -> bool:
    """Return whether the second parameter of a function is the flow."""
    parameters = list(inspect.signature(function).parameters.values())
    return len(parameters) > 1 and (parameters[1].name == "flow" or type_name(parameters[1]) == "Flow")


def model_parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters that the model fills: all but `conv` and `flow`."""
    return [
        parameter
        for index, parameter in enumerate(inspect.signature(function).parameters.values())
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not (index < 2 and (parameter.name in _INJECTED or type_name(parameter) in _INJECTED_TYPES))
    ]


def bind(function: Callable[..., object], arguments: Mapping[str, object]) -> tuple[dict[str, object], list[str]]:
    """Return the keyword arguments for a call, and remarks for the log on arguments that do not fit the function."""
    bound: dict[str, object] = {}
    remarks: list[str] = []
    for parameter in model_parameters(function):
        wanted = type_name(parameter)
        given = arguments.get(parameter.name)
        # Null counts as missing: models write it for values that they do not know.
        if given is None and parameter.default is not inspect.Parameter.empty:
            continue
        if given is None:
            remarks.append(f"argument '{parameter.name}' is missing")
            # The function runs nevertheless, and can ask the caller for the missing value.
            bound[parameter.name] = "" if wanted == "str" else None
            continue
        try:
            bound[parameter.name] = _coerce(given, wanted)
        except (ValueError, OverflowError):
            remarks.append(f"argument '{parameter.name}' should be of type {wanted}: {str(given)[:80]!r}")
            # The function gets the value as the model wrote it, and may understand it.
            bound[parameter.name] = given
    unknown = sorted(set(arguments) - {parameter.name for parameter in model_parameters(function)})
    remarks.extend(f"argument '{name}' is not a parameter of the function" for name in unknown)
    return bound, remarks


def _coerce(given: object, wanted: str) -> object:
    match wanted:
        case "str":
            return _as_text(given)
        case "bool":
            return _as_bool(given)
        case "int" if not isinstance(given, int) or isinstance(given, bool):
            return _as_int(given)
        case "float" if isinstance(given, (int, str)):
            return float(given)
        case _:
            return given


def _as_text(given: object) -> str:
    if isinstance(given, bool):
        return "true" if given else "false"
    return given if isinstance(given, str) else str(given)


def _as_bool(given: object) -> bool:
    if isinstance(given, str):
        word = given.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(word)
        return word in _TRUE
    return bool(given)


def _as_int(given: object) -> int:
    if isinstance(given, str):
        given = given.strip()
        try:
            return int(given)
        except ValueError:
            given = float(given)
    # 2.0 becomes 2, but 2.5 is an error: it would lose its fraction.
    if isinstance(given, float) and not given.is_integer():
        raise ValueError(given)
    if not isinstance(given, (int, float)):
        raise ValueError(given)
    return int(given)


FindFunction = Callable[[str], Callable[..., object]]
"""Returns the main function of a file. Raises `AttributeError` if there is none, and any error of the file's import."""


class FunctionExecutor:
    """`conv.functions`, whose functions are called without the `conv` and `flow` that they take."""

    def __init__(self, find: FindFunction, conv: object, flow: object) -> None:
        self._find = find
        self._conv = conv
        self._flow = flow

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        function = self._find(name)

        def call(*arguments: object, **named: object) -> object:
            return function(*self._inject(function, arguments, named), **named)

        return call

    def _inject(
        self, function: Callable[..., object], given: tuple[object, ...], named: dict[str, object]
    ) -> tuple[object, ...]:
        """Put `conv` and `flow` before the arguments, unless the project passes them itself."""
        given_conv, *rest = given if given and given[0] is self._conv else (self._conv, *given)
        if "conv" in named:
            return given
        if takes_flow(function) and "flow" not in named and not (rest and rest[0] is self._flow):
            rest = [self._flow, *rest]
        return (given_conv, *rest)


FlowFunctionExecutor = FunctionExecutor
"""The type of `flow.functions`, as projects name it."""
