"""Secure digits: the model, the history, the log and the record see a placeholder for what the caller keyed in.

A function whose argument holds the placeholder is given the digits. In everything that project code returns, the
digits are replaced with the placeholder again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import overload

from callagent.json_values import JsonValue, MutableJsonObject

MIN_DIGITS = 3
"""Shorter sequences are not replaced, because unrelated numbers contain them."""


class Vault:
    """The secure digits of one call, by placeholder."""

    def __init__(self) -> None:
        self._digits: dict[str, str] = {}
        """Placeholder -> digits."""

    def put(self, digits: str) -> str:
        """Keep the digits and return the placeholder that stands for them from now on."""
        name = f"[secure digits {len(self._digits) + 1}]"
        self._digits[name] = digits
        return name

    @overload
    def reveal(self, value: Mapping[str, JsonValue]) -> MutableJsonObject: ...
    @overload
    def reveal(self, value: JsonValue) -> JsonValue: ...
    def reveal(self, value: object) -> object:
        """Return JSON data with the digits in place of their placeholders."""
        for name, digits in self._digits.items():
            value = _replaced(value, re.compile(re.escape(name)), digits)
        return value

    @overload
    def conceal(self, value: str) -> str: ...
    @overload
    def conceal(self, value: Mapping[str, JsonValue]) -> MutableJsonObject: ...
    @overload
    def conceal(self, value: JsonValue) -> JsonValue: ...
    def conceal(self, value: object) -> object:
        """Return JSON data with placeholders in place of the digits, also where these are grouped or an integer."""
        for name, digits in self._digits.items():
            if len(digits) >= MIN_DIGITS:
                # Project code may have formatted them: "5550 1234" and "555-0123" are the same digits.
                spaced = r"[ -]?".join(map(re.escape, digits))
                # The same digits inside a longer number are another number, which the caller did not key in.
                value = _replaced(value, re.compile(rf"(?<!\d){spaced}(?!\d)"), name)
        return value


def _replaced(value: object, pattern: re.Pattern[str], new: str) -> object:
    match value:
        case str():
            # The replacement is a function, because `sub` would interpret backslashes in a string.
            return pattern.sub(lambda _: new, value)
        case bool() | float() | None:
            return value
        case int():
            return new if pattern.fullmatch(str(value)) else value
        case dict():
            return {_replaced(key, pattern, new): _replaced(one, pattern, new) for key, one in value.items()}
        case list() | tuple():
            return [_replaced(one, pattern, new) for one in value]
    return value
