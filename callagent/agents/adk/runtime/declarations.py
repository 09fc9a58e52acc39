"""Python functions as tools: the JSON schema that a model is shown, and the arguments that the function gets."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticUserError

_CONTEXT = "tool_context"
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def context_parameter(function: Callable[..., Any]) -> str:
    """Return the name of the parameter that takes the context: found by its type, else `tool_context`."""
    from callagent.agents.adk.runtime.contexts import ReadonlyContext

    for name, hint in _hints(function).items():
        if inspect.isclass(hint) and issubclass(hint, ReadonlyContext):
            return name
    return _CONTEXT


def declare(function: Callable[..., Any], name: str) -> dict[str, Any] | None:
    """Return the JSON schema of a function's parameters; None when it takes none from a model."""
    hints = _hints(function)
    context = context_parameter(function)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == context or parameter.kind not in _NAMED:
            continue
        default = ... if parameter.default is inspect.Parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    if not fields:
        return None
    try:
        return _schema(name, fields)
    except PydanticUserError:
        # An annotation has no JSON schema: the model is shown the names without types.
        return _schema(name, {key: (Any, default) for key, (_, default) in fields.items()})


def _schema(name: str, fields: dict[str, Any]) -> dict[str, Any]:
    made: type[BaseModel] = create_model(f"{name}Params", **fields)
    return made.model_json_schema()


def schema_of(value: Any) -> dict[str, Any] | None:
    """Return the JSON schema of a pydantic class or of any other type; a schema is returned as it is."""
    if value is None or isinstance(value, dict):
        return value
    if inspect.isclass(value) and issubclass(value, BaseModel):
        return value.model_json_schema()
    return TypeAdapter(value).json_schema()


def prepare_arguments(
    function: Callable[..., Any], name: str, arguments: dict[str, Any], context: Any
) -> tuple[dict[str, Any], dict[str, str] | None]:
    """Return the arguments for a function, and the error for the model when mandatory ones are missing."""
    signature, hints = inspect.signature(function), _hints(function)
    takes_all = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in signature.parameters.values())
    given = {
        key: _as_declared(value, hints.get(key))
        for key, value in arguments.items()
        if takes_all or key in signature.parameters
    }
    own = context_parameter(function)
    if own in signature.parameters:
        given[own] = context
    missing = [
        each.name
        for each in signature.parameters.values()
        if each.kind in _NAMED and each.default is inspect.Parameter.empty and each.name not in given
    ]
    if not missing:
        return given, None
    return given, {
        "error": f"Invoking `{name}()` failed as the following mandatory input parameters are not present:\n"
        + "\n".join(missing)
        + "\nYou could retry calling this tool, but it is IMPORTANT for you to provide all the mandatory parameters."
    }


def _as_declared(value: object, hint: Any) -> Any:
    """Return an object for a parameter that is a pydantic class, and every other value as the model wrote it."""
    options = [hint, *typing.get_args(hint)]
    if not any(inspect.isclass(each) and issubclass(each, BaseModel) for each in options):
        return value
    try:
        return TypeAdapter(hint).validate_python(value)
    except ValidationError:
        return value


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError):
        return dict(getattr(function, "__annotations__", {}))
