"""Values as the models read and write them: `{city:<escape>Paris<escape>,days:[1,2]}`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from callagent.models.functiongemma.tokens import FUNCTIONGEMMA, TokenSet, neutralise

DEEPEST = 100
"""Levels of objects and arrays in one another that are written and read."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def format_value(value: Any, *, tokens: TokenSet = FUNCTIONGEMMA, sort: bool = False) -> str:
    """JSON data as the models' text; `sort` puts the keys of objects in order, as the chat template does.

    Control tokens in strings are neutralised. Raises `ValueError` for what is no JSON data, for infinite numbers and
    for data deeper than `DEEPEST`.
    """
    return "".join(_write(value, tokens, sort, 0))


def format_string(text: str, tokens: TokenSet) -> str:
    return f"{tokens.escape}{neutralise(text)}{tokens.escape}"


def format_key(key: str, tokens: TokenSet) -> str:
    """A name stands bare; a key that is no name is written as a string."""
    return key if _IDENTIFIER.fullmatch(key) else format_string(key, tokens)


def is_identifier(text: object) -> bool:
    return isinstance(text, str) and _IDENTIFIER.fullmatch(text) is not None


def dictsort(mapping: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Items in the order of the template's filter of this name: by key, letter case ignored."""
    return sorted(mapping.items(), key=lambda item: item[0].lower())


def _write(value: Any, tokens: TokenSet, sort: bool, depth: int) -> Iterable[str]:
    if depth > DEEPEST:
        raise ValueError(f"the value is deeper than {DEEPEST} levels")
    match value:
        case str():
            yield format_string(value, tokens)
        case None:
            yield "null"
        case bool():
            yield "true" if value else "false"
        case int() | float():
            yield _number(value)
        case Mapping():
            yield from _write_object(value, tokens, sort, depth)
        case Sequence() if not isinstance(value, bytes | bytearray):
            yield "["
            for number, item in enumerate(value):
                yield "," if number else ""
                yield from _write(item, tokens, sort, depth + 1)
            yield "]"
        case _:
            raise ValueError(f"{type(value).__name__} is no JSON data")


def _write_object(value: Mapping[Any, Any], tokens: TokenSet, sort: bool, depth: int) -> Iterable[str]:
    if not all(isinstance(key, str) for key in value):
        raise ValueError("the keys of an object must be strings")
    yield "{"
    for number, (key, item) in enumerate(dictsort(value) if sort else value.items()):
        yield "," if number else ""
        yield f"{format_key(key, tokens)}:"
        yield from _write(item, tokens, sort, depth + 1)
    yield "}"


def _number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    return repr(value)
