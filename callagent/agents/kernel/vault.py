"""Digits that a caller keyed in secret: the model, the history and the record see a name for them.

A function whose argument holds the name is given the digits; whatever comes back from project code has the name again
where it held the digits.
"""

from __future__ import annotations

import re
from typing import Any

SHORTEST = 3
"""Digits; fewer are found in every other number."""


class Vault:
    """One call's."""

    def __init__(self) -> None:
        self._digits: dict[str, str] = {}
        """By the name that stands for them."""

    def put(self, digits: str) -> str:
        """The name that stands for the digits from now on."""
        name = f"[secure digits {len(self._digits) + 1}]"
        self._digits[name] = digits
        return name

    def reveal(self, value: Any) -> Any:
        """JSON data with the digits in place of their names."""
        for name, digits in self._digits.items():
            value = _replaced(value, re.compile(re.escape(name)), digits)
        return value

    def conceal(self, value: Any) -> Any:
        """JSON data with names in place of the digits, also where these stand in groups or as a number."""
        for name, digits in self._digits.items():
            if len(digits) >= SHORTEST:
                spaced = r"[ -]?".join(map(re.escape, digits))
                value = _replaced(value, re.compile(rf"(?<!\d){spaced}(?!\d)"), name)
        return value


def _replaced(value: Any, pattern: re.Pattern[str], new: str) -> Any:
    match value:
        case str():
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
