"""Types of JSON data (RFC 8259), and typed access to what a peer or a document sent.

Where the shape of the data is known, declare a `msgspec.Struct` or a dataclass. These types are for data that is passed
on as it came, and for code that has to find out the shape of the data.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

JsonValue: TypeAlias = "bool | int | float | str | Sequence[JsonValue] | Mapping[str, JsonValue] | None"
"""Any JSON value, read-only. Read-only types are covariant, so a `dict[str, str]` is a `JsonValue` too."""
JsonObject: TypeAlias = Mapping[str, JsonValue]
MutableJsonObject: TypeAlias = dict[str, JsonValue]
"""A JSON object that is being built."""


def parse_json(text: str | bytes) -> JsonValue:
    """Return the value of a JSON text. Raises `ValueError` if the text is not JSON or is nested too deep."""
    try:
        value: JsonValue = json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON text is nested too deep") from error
    return value


def parse_object(text: str | bytes) -> JsonObject:
    """Return the object of a JSON text. Raises `ValueError` where the text is not JSON or holds something else."""
    value = parse_json(text)
    if not isinstance(value, Mapping):
        raise ValueError("a JSON object is expected")
    return value


def object_at(data: JsonObject, *keys: str) -> JsonObject:
    """Return the object under a path of keys; an empty one where there is none."""
    found: JsonValue = data
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def objects_at(data: JsonObject, key: str) -> list[JsonObject]:
    """Return the objects of the list under `key`, without items of other types; empty where there is no list."""
    return [item for item in list_at(data, key) if isinstance(item, Mapping)]


def list_at(data: JsonObject, key: str) -> Sequence[JsonValue]:
    """Return the list under `key`; an empty one where there is none."""
    found = data.get(key)
    return found if isinstance(found, Sequence) and not isinstance(found, str) else ()


def text_at(data: JsonObject, key: str, default: str = "") -> str:
    """Return the string under `key`; `default` where there is none or something else."""
    found = data.get(key)
    return found if isinstance(found, str) else default


def number_at(data: JsonObject, key: str, default: float = 0.0) -> float:
    """Return the number under `key`; `default` where there is none or something else, such as a Boolean value."""
    found = data.get(key)
    return found if isinstance(found, (int, float)) and not isinstance(found, bool) else default


def is_true(data: JsonObject, key: str) -> bool:
    """Return whether the value under `key` is the Boolean value true."""
    return data.get(key) is True
