"""The text format of FunctionGemma and Gemma 4: control tokens, and values such as `{city:<escape>Paris<escape>}`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any

TRIGGER = "You are a model that can do function calling with the following functions"
"""FunctionGemma calls functions only where this sentence stands before them."""


@dataclass(frozen=True)
class TokenSet:
    """The control tokens of one model family."""

    bos: str
    eos: str
    start_turn: str
    end_turn: str
    start_declaration: str
    end_declaration: str
    start_call: str
    end_call: str
    start_response: str
    end_response: str
    escape: str
    """Stands on both sides of every string."""
    developer: str
    """The role of the turn that holds instructions and declarations."""
    trigger: str
    """A sentence that must stand before the declarations; empty: none."""

    @cached_property
    def control(self) -> tuple[str, ...]:
        """Every token that a model must not see in somebody's words, nor a caller hear."""
        return astuple(self)[:11]

    @property
    def stops(self) -> tuple[str, ...]:
        """What ends an answer. Not `end_call`: a parallel call may follow."""
        return self.end_turn, self.eos, self.start_response


FUNCTIONGEMMA = TokenSet(
    bos="<bos>",
    eos="<eos>",
    start_turn="<start_of_turn>",
    end_turn="<end_of_turn>",
    start_declaration="<start_function_declaration>",
    end_declaration="<end_function_declaration>",
    start_call="<start_function_call>",
    end_call="<end_function_call>",
    start_response="<start_function_response>",
    end_response="<end_function_response>",
    escape="<escape>",
    developer="developer",
    trigger=TRIGGER,
)
GEMMA4 = TokenSet(
    bos="<bos>",
    eos="<eos>",
    start_turn="<|turn>",
    end_turn="<turn|>",
    start_declaration="<|tool>",
    end_declaration="<tool|>",
    start_call="<|tool_call>",
    end_call="<tool_call|>",
    start_response="<|tool_response>",
    end_response="<tool_response|>",
    escape='<|"|>',
    developer="system",
    trigger="",
)
TOKEN_SETS = (FUNCTIONGEMMA, GEMMA4)

_ALL = sorted({token for tokens in TOKEN_SETS for token in tokens.control})
_CONTROL = re.compile("|".join(map(re.escape, _ALL)))


def neutralise(text: str) -> str:
    """The text without control tokens: their angle brackets are dropped.

    For everything that is not ours: what a caller said, what a function returned.
    """
    if "<" not in text:
        return text
    text = _CONTROL.sub(lambda token: token[0][1:-1], text)
    # Dropped brackets may have brought a new token together; a space can be part of none.
    return _CONTROL.sub(lambda token: token[0].replace("<", " ").replace(">", " "), text)


MAX_DEPTH = 100
"""Levels of nested objects and arrays that are written and read."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def format_value(value: Any, *, tokens: TokenSet = FUNCTIONGEMMA, sort: bool = False) -> str:
    """JSON data as the models' text; `sort` puts the keys of objects in order, as the chat template does.

    Control tokens in strings are neutralised. Raises `ValueError` for what is no JSON data, for infinite numbers and
    for data deeper than `MAX_DEPTH`.
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
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is deeper than {MAX_DEPTH} levels")
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
