"""Bounded JSON views of live Python values, as prompts, records and the core see them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
from collections.abc import Mapping, Set
from typing import Any

_DEPTH = 24


class TooLarge(ValueError):
    """The value does not fit into the limit, or is nested too deeply."""


class _Projector:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def project(self, value: Any, depth: int = 0) -> Any:
        self._spend(8)
        if value is None or isinstance(value, bool):
            return value
        if depth > _DEPTH:
            raise TooLarge("nested too deeply or containing itself")
        if isinstance(value, enum.Enum):
            return self.project(value.value, depth + 1)
        if isinstance(value, (str, int, float)):
            return self._scalar(value)
        inside = _members(value)
        if isinstance(inside, Mapping):
            return {self._text(str(key)): self.project(item, depth + 1) for key, item in inside.items()}
        if inside is not None:
            return [self.project(item, depth + 1) for item in inside]
        return self._text(_described(value))

    def _scalar(self, value: str | float) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else None
        if -(2**63) <= value < 2**64:
            return int(value)
        if value.bit_length() > 8 * 1024:
            raise TooLarge(f"an integer of {value.bit_length()} bits")
        return str(value)

    def _text(self, text: str) -> str:
        self._spend(len(text))
        # A lone surrogate has no UTF-8 form.
        return str.__str__(text) if text.isascii() else text.encode("utf-8", "replace").decode()

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(f"more than {self._limit} bytes")


def _members(value: Any) -> Any:
    """Return the dict or the elements of a container; None when the value is none."""
    if isinstance(value, (Mapping, list, tuple)):
        return value
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    dump = getattr(value, "model_dump", None)
    if callable(dump) and not isinstance(value, type):
        return dump()
    return None


def _described(value: Any) -> str:
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return bytes(value).decode("utf-8", "replace")
    return str(value)


def project(value: Any, limit: int) -> Any:
    """Return `value` as JSON data of at most about `limit` bytes. Raises `TooLarge`. Runs the value's own `__str__`."""
    return _Projector(limit).project(value)


def project_or_note(value: Any, limit: int) -> Any:
    """Return `value` as `project` does; a value that cannot be shown becomes a note that says why."""
    try:
        return project(value, limit)
    except Exception as error:  # the value's own code runs, and it must not take the other values with it
        return f"<{type(value).__name__}: {type(error).__name__}: {str(error)[:200]}>"
