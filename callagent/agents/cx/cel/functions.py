"""Operators and functions of CEL on Python values. Operands that do not fit raise what Python raises for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from callagent.agents.cx.cel.timestamps import Timestamp, duration, part_functions, timestamp
from callagent.agents.kernel import Pattern


def _equal(left: Any, right: Any) -> bool:
    """Compare two values; unlike in Python, a truth value never equals a number."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _multiply(left: Any, right: Any) -> Any:
    """Multiply two numbers; unlike in Python, texts and lists are not repeated."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise ValueError("'*' requires two numbers")
    return left * right


def _divide(left: Any, right: Any) -> Any:
    """Divide; the quotient of whole numbers is truncated towards zero, as in CEL."""
    if not isinstance(left, int) or not isinstance(right, int):
        return left / right
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


OPERATORS: Mapping[str, Callable[[Any, Any], Any]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "in": lambda left, right: left in right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": _multiply,
    "/": _divide,
    "%": lambda left, right: int(math.fmod(left, right)),
    "[]": lambda left, right: left[right],
}


@lru_cache(maxsize=1000)
def _pattern(text: str) -> Pattern:
    """Return a compiled pattern. It is cached, because a pattern that once took too long stays switched off."""
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
"""Function or method -> numbers of arguments that it takes (the receiver counts as one), and the function itself."""
