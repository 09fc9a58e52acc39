"""Arguments as a function's schema wants them: the model writes "42" where it means 42."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]

_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_MOST_DIGITS = 1000
_DEEPEST = 100
_ABSENT = object()


def coerce_arguments(arguments: Mapping[str, Any], schema: Schema) -> dict[str, Any]:
    """The arguments with the types of a JSON schema of an object, or of the map of its properties alone.

    Null for an optional argument counts as absent; arguments that the schema does not know are left out unless it
    allows them. Raises `ValueError`, which names the argument, for what is missing or does not fit.
    """
    whole = schema if _is_object_schema(schema) else {"properties": schema}
    return _object(arguments, whole, "", 0)


def _is_object_schema(schema: Schema) -> bool:
    kind, properties = schema.get("type"), schema.get("properties")
    if isinstance(kind, str):
        return True
    return not schema or (
        isinstance(properties, Mapping) and all(isinstance(each, Mapping) for each in properties.values())
    )


def _object(value: Any, schema: Schema, place: str, depth: int) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise _misfit(place, "an object", value)
    properties = schema.get("properties") or {}
    required = schema.get("required") or ()
    more = schema.get("additionalProperties", not properties and bool(place))
    found = {}
    for name, given in value.items():
        here = f"{place}.{name}" if place else str(name)
        if name in properties:
            fitted = _fit_property(given, properties[name], here, name in required, depth)
            if fitted is not _ABSENT:
                found[name] = fitted
        elif more:
            found[name] = _fit(given, more, here, depth + 1) if isinstance(more, Mapping) else given
    if missing := [name for name in required if name not in found]:
        raise ValueError(f"{place or 'the call'} needs {', '.join(missing)}")
    return found


def _fit_property(value: Any, schema: Any, place: str, required: bool, depth: int) -> Any:
    schema = schema if isinstance(schema, Mapping) else {}
    if value is None and not _allows_null(schema):
        if required:
            raise _misfit(place, "a value", value)
        return _ABSENT
    return _fit(value, schema, place, depth + 1)


def _fit(value: Any, schema: Schema, place: str, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError(f"{place[:80]} is too deep")
    if value is None and _allows_null(schema):
        return None
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _fit_one(value, choices, place, depth)
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return _fit_one(value, [{**schema, "type": kind} for kind in kinds], place, depth)
    if kinds is not None:
        value = _fit_type(value, str(kinds).lower(), schema, place, depth)
    return _checked(value, schema, place)


def _fit_one(value: Any, choices: list[Schema], place: str, depth: int) -> Any:
    """By the first choice that takes the value as it is, else by the first that takes it at all."""
    fitted, error = [], ValueError(f"{place} fits nothing that is allowed")
    for choice in choices:
        try:
            fitted.append(_fit(value, choice, place, depth + 1))
        except ValueError as refused:
            error = refused
    if not fitted:
        raise error
    return next((each for each in fitted if type(each) is type(value) and each == value), fitted[0])


def _fit_type(value: Any, kind: str, schema: Schema, place: str, depth: int) -> Any:
    match kind:
        case "array":
            items = schema.get("items")
            values = value if isinstance(value, list) else [value]
            if not isinstance(items, Mapping):
                return values
            return [_fit(each, items, f"{place}[{number}]", depth + 1) for number, each in enumerate(values)]
        case "object":
            return _object(value, schema, place, depth)
        case _ if kind in _SCALARS:
            expected, fit = _SCALARS[kind]
            fitted = fit(value)
            if fitted is _ABSENT:
                raise _misfit(place, expected, value)
            return fitted
    return value


def _string(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else _ABSENT


def _integer(value: Any) -> Any:
    number = _number(value)
    if isinstance(number, float):
        return int(number) if number.is_integer() else _ABSENT
    return number


def _number(value: Any) -> Any:
    if isinstance(value, str):
        return _number_of(value.strip())
    return value if isinstance(value, int | float) and not isinstance(value, bool) else _ABSENT


def _number_of(text: str) -> Any:
    written = _NUMBER.fullmatch(text)
    if written is None or len(text) > _MOST_DIGITS:
        return _ABSENT
    if written[1] is None and written[2] is None:
        return int(text)
    number = float(text)
    return number if abs(number) != float("inf") else _ABSENT


def _boolean(value: Any) -> Any:
    if isinstance(value, str):
        return {"true": True, "false": False}.get(value.strip().lower(), _ABSENT)
    return value if isinstance(value, bool) else _ABSENT


def _null(value: Any) -> Any:
    return None if value is None or value == "null" else _ABSENT


_SCALARS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "string": ("a string", _string),
    "integer": ("an integer", _integer),
    "number": ("a number", _number),
    "boolean": ("true or false", _boolean),
    "null": ("null", _null),
}


def _checked(value: Any, schema: Schema, place: str) -> Any:
    """The value if it is one of the enumerated ones and within its limits."""
    if (enum := schema.get("enum")) is not None:
        value = _enumerated(value, enum, place)
    if isinstance(value, int | float) and not isinstance(value, bool):
        least, most = schema.get("minimum"), schema.get("maximum")
        if (least is not None and value < least) or (most is not None and value > most):
            raise ValueError(f"{place} is {value}, expected {least if least is not None else ''}…{most or ''}")
    return value


def _enumerated(value: Any, enum: list[Any], place: str) -> Any:
    for each in enum:
        if type(each) is type(value) and each == value:
            return each
    # The caller's spelling of a choice; two choices that differ in case only are the project's own.
    same = [each for each in enum if str(each).casefold() == str(value).strip().casefold()]
    if len(same) != 1:
        raise _misfit(place, f"one of {', '.join(map(str, enum))}", value)
    return same[0]


def _allows_null(schema: Schema) -> bool:
    kind = schema.get("type")
    kinds = [str(each).lower() for each in (kind if isinstance(kind, list) else [kind])]
    choices = schema.get("anyOf") or schema.get("oneOf") or ()
    return (
        schema.get("nullable") is True
        or "null" in kinds
        or any(isinstance(choice, Mapping) and _allows_null(choice) for choice in choices)
    )


def _misfit(place: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{place or 'the arguments'}: expected {expected}, got {str(value)[:80]!r}")
