"""Signs and functions of conditions, on values. They raise what Python raises where values do not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from callagent.agents.cx.cel.timestamps import Timestamp, duration, part_functions, timestamp
from callagent.agents.kernel import Pattern


def _same(left: Any, right: Any) -> bool:
    """Truth values are no numbers."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _times(left: Any, right: Any) -> Any:
    """Texts and lists are not repeated."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise ValueError("'*' is of two numbers")
    return left * right


def _divided(left: Any, right: Any) -> Any:
    """Whole numbers are cut towards zero."""
    if not isinstance(left, int) or not isinstance(right, int):
        return left / right
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


SIGNS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": _same,
    "!=": lambda left, right: not _same(left, right),
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "in": lambda left, right: left in right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": _times,
    "/": _divided,
    "%": lambda left, right: int(math.fmod(left, right)),
    "[]": lambda left, right: left[right],
}


@lru_cache(maxsize=1000)
def _pattern(text: str) -> Pattern:
    """Kept: an expression that took too long is not tried for ever."""
    return Pattern(text)


def _int(value: Any) -> int:
    return value.seconds if isinstance(value, Timestamp) else int(value)


def _string(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bool(value: Any) -> bool:
    return value is True or value == "true"


_ONE, _TWO = (1,), (2,)
FUNCTIONS: Mapping[str, tuple[Sequence[int], Callable[..., Any]]] = {
    "size": (_ONE, len),
    "int": (_ONE, _int),
    "uint": (_ONE, int),
    "double": (_ONE, float),
    "string": (_ONE, _string),
    "bool": (_ONE, _bool),
    "timestamp": (_ONE, timestamp),
    "duration": (_ONE, duration),
    "contains": (_TWO, lambda text, part: str(part) in str(text)),
    "startsWith": (_TWO, lambda text, part: str(text).startswith(part)),
    "endsWith": (_TWO, lambda text, part: str(text).endswith(part)),
    "matches": (_TWO, lambda text, pattern: _pattern(pattern).search(text) is not None),
    "lowerAscii": (_ONE, lambda text: text.lower()),
    "upperAscii": (_ONE, lambda text: text.upper()),
    "trim": (_ONE, lambda text: text.strip()),
    **{name: ((1, 2), function) for name, function in part_functions().items()},
}
"""How many arguments, what they are of included, and what is made of them."""
