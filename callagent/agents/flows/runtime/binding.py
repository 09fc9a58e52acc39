"""Binds what a language model gave to a function's parameters, leniently."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

JSON_TYPES = {"str": "string", "int": "integer", "float": "number", "bool": "boolean"}
_TRUE = frozenset({"true", "yes", "y", "1", "on"})
_FALSE = frozenset({"false", "no", "n", "0", "off", ""})
_INJECTED = frozenset({"conv", "conversation", "flow"})
_INJECTED_TYPES = frozenset({"Conversation", "Flow"})


def type_name(parameter: inspect.Parameter) -> str:
    """The annotation as written: `str`, `Conversation`; empty when there is none."""
    annotation = parameter.annotation
    if annotation is inspect.Parameter.empty:
        return ""
    return annotation.strip("'\"") if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def takes_flow(function: Callable[..., Any]) -> bool:
    """Whether the second parameter is the flow."""
    parameters = list(inspect.signature(function).parameters.values())
    return len(parameters) > 1 and (parameters[1].name == "flow" or type_name(parameters[1]) == "Flow")


def model_parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters that the model fills: all but `conv` and `flow`."""
    return [
        parameter
        for index, parameter in enumerate(inspect.signature(function).parameters.values())
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and not (index < 2 and (parameter.name in _INJECTED or type_name(parameter) in _INJECTED_TYPES))
    ]


def bind(function: Callable[..., Any], arguments: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The keyword arguments to call with, and what had to be put right, for the log."""
    bound: dict[str, Any] = {}
    remarks: list[str] = []
    for parameter in model_parameters(function):
        wanted = type_name(parameter)
        given = arguments.get(parameter.name)
        if given is None and parameter.default is not inspect.Parameter.empty:
            continue
        if given is None:
            remarks.append(f"argument '{parameter.name}' is missing")
            bound[parameter.name] = "" if wanted == "str" else None
            continue
        try:
            bound[parameter.name] = _coerce(given, wanted)
        except (ValueError, OverflowError):
            remarks.append(f"argument '{parameter.name}' is no {wanted}: {str(given)[:80]!r}")
            bound[parameter.name] = given
    unknown = sorted(set(arguments) - {parameter.name for parameter in model_parameters(function)})
    remarks.extend(f"argument '{name}' is not a parameter" for name in unknown)
    return bound, remarks


def _coerce(given: Any, wanted: str) -> Any:
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


def _as_text(given: Any) -> str:
    if isinstance(given, bool):
        return "true" if given else "false"
    return given if isinstance(given, str) else str(given)


def _as_bool(given: Any) -> bool:
    if isinstance(given, str):
        word = given.strip().lower()
        if word not in _TRUE | _FALSE:
            raise ValueError(word)
        return word in _TRUE
    return bool(given)


def _as_int(given: Any) -> int:
    if isinstance(given, str):
        given = given.strip()
        try:
            return int(given)
        except ValueError:
            given = float(given)
    if isinstance(given, float) and not given.is_integer():
        raise ValueError(given)
    if not isinstance(given, (int, float)):
        raise ValueError(given)
    return int(given)
