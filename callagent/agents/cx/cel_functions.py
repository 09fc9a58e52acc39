"""Operators and functions of the Common Expression Language (CEL), with its timestamps and durations in nanoseconds.

https://github.com/google/cel-spec/blob/master/doc/langdef.md ("Overflow", "Timezones", the functions of time). Operands
of unsuitable types raise Python's own exceptions.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import lru_cache, partial
from zoneinfo import ZoneInfo

from callagent.agents.kernel import Pattern

_SECOND = 1_000_000_000
_MILLISECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_NANOS = 2**63
"""A duration is a signed integer of 64 bits."""
_SMALLEST_INT = -(2**63)
# The range of the specification: 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999999999Z.
_FIRST = int((datetime.min.replace(tzinfo=UTC) - _EPOCH).total_seconds()) * _SECOND
_LAST = int((datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC) - _EPOCH).total_seconds()) * _SECOND + _SECOND - 1
_MAX_DIGITS = 20
"""Digits allowed before the point of a duration, and digits after it that count."""
_SCALE: int = 10**_MAX_DIGITS
_UNITS: Mapping[str, int] = {
    "h": 3600 * _SECOND, "m": 60 * _SECOND, "s": _SECOND, "ms": _MILLISECOND, "us": 1000, "ns": 1
}  # fmt: skip
_PIECE = r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(h|ms|m|s|us|ns)"
_DURATION = re.compile(rf"([+-]?)((?:{_PIECE})+)")
_TIMESTAMP = re.compile(
    r"([0-9]{4,5})-([0-9]{2})-([0-9]{2})[Tt]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)
_OFFSET = re.compile(r"([+-]?)([0-9]{2}):([0-9]{2})")


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A duration of at most about 292 years in either direction. The constructor raises ValueError for longer ones."""

    nanos: int

    def __post_init__(self) -> None:
        if not -_MAX_NANOS <= self.nanos < _MAX_NANOS:
            raise ValueError("the duration is out of range")

    def __add__(self, other: object) -> Duration | Timestamp:
        if isinstance(other, Duration):
            return Duration(self.nanos + other.nanos)
        return other + self if isinstance(other, Timestamp) else NotImplemented

    def __sub__(self, other: object) -> Duration:
        return Duration(self.nanos - other.nanos) if isinstance(other, Duration) else NotImplemented

    def __str__(self) -> str:
        """Return the duration in seconds with an `s`, as CEL writes it."""
        sign = "-" if self.nanos < 0 else ""
        seconds, nanos = divmod(abs(self.nanos), _SECOND)
        return f"{sign}{seconds}{_fraction(nanos)}s"

    def truncated_units(self, unit: int) -> int:
        """Return the duration in units of `unit` nanoseconds, truncated towards zero."""
        count = abs(self.nanos) // unit
        return -count if self.nanos < 0 else count

    def part(self, name: str) -> int:
        """Return a part such as `getHours`. Raises ValueError for parts that only timestamps have."""
        if name == "getMilliseconds":
            # Only the milliseconds of the last second count; the other parts count the whole duration.
            milliseconds = abs(self.nanos) % _SECOND // _MILLISECOND
            return -milliseconds if self.nanos < 0 else milliseconds
        unit = {"getHours": "h", "getMinutes": "m", "getSeconds": "s"}.get(name)
        if unit is None:
            raise ValueError(f"a duration has no {name}()")
        return self.truncated_units(_UNITS[unit])


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A moment in the years 1 to 9999. The constructor raises ValueError for others."""

    nanos: int
    """Nanoseconds since 1970, UTC."""

    def __post_init__(self) -> None:
        if not _FIRST <= self.nanos <= _LAST:
            raise ValueError("the timestamp is out of range")

    def __add__(self, other: object) -> Timestamp:
        return Timestamp(self.nanos + other.nanos) if isinstance(other, Duration) else NotImplemented

    def __sub__(self, other: object) -> Duration | Timestamp:
        if isinstance(other, Timestamp):
            return Duration(self.nanos - other.nanos)
        return Timestamp(self.nanos - other.nanos) if isinstance(other, Duration) else NotImplemented

    def __str__(self) -> str:
        """Return the moment in UTC by RFC 3339."""
        whole = self._at(UTC).replace(microsecond=0, tzinfo=None).isoformat()
        return f"{whole}{_fraction(self.nanos % _SECOND)}Z"

    @property
    def seconds(self) -> int:
        """Whole seconds since 1970, UTC."""
        return self.nanos // _SECOND

    def part(self, name: str, zone: str = "UTC") -> int:
        """Return a part such as `getFullYear` in a time zone.

        Raises ValueError for an unknown time zone, OverflowError if the local year is not from 1 to 9999.
        """
        return _PARTS[name](self._at(_zone(zone)))

    def _at(self, zone: tzinfo) -> datetime:
        return (_EPOCH + timedelta(microseconds=self.nanos // 1000)).astimezone(zone)


# CEL counts months, days of the year and `getDayOfMonth` from 0, `getDate` from 1; Sunday is day 0 of the week.
_PARTS: Mapping[str, Callable[[datetime], int]] = {
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getFullYear": lambda at: at.year,
    "getHours": lambda at: at.hour,
    "getMilliseconds": lambda at: at.microsecond // 1000,
    "getMinutes": lambda at: at.minute,
    "getMonth": lambda at: at.month - 1,
    "getSeconds": lambda at: at.second,
}


def timestamp(value: object) -> Timestamp:
    """Return the moment of a text (RFC 3339) or of seconds since 1970. Raises ValueError."""
    if isinstance(value, Timestamp):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return Timestamp(value * _SECOND)
    found = _TIMESTAMP.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("a timestamp is written as 2027-01-31T12:00:00Z")
    year, month, day, hour, minute, second = (int(found[number]) for number in range(1, 7))
    if not 1 <= year <= 9999:
        raise ValueError("the timestamp is out of range")
    # `datetime` raises ValueError for a day that does not exist.
    since_epoch = datetime(year, month, day, hour, minute, second, tzinfo=UTC) - _EPOCH
    # Python's datetime has microseconds only, so the fraction is added separately.
    nanos = int((found[7] or "")[:9].ljust(9, "0"))
    offset = _offset(found[8], found[9], found[10]) if found[8] else timedelta()
    return Timestamp(_seconds(since_epoch - offset) * _SECOND + nanos)


def duration(value: object) -> Duration:
    """Return the duration of a text such as `1h30m`, `-1.5s`, `0`. Raises ValueError."""
    if isinstance(value, Duration):
        return value
    if value in ("0", "+0", "-0"):
        return Duration(0)
    found = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("a duration is written as 1h30m, 90s or 1.5s")
    nanos = sum(_nanos(number, unit) for number, unit in re.findall(_PIECE, found[2]))
    return Duration(-nanos if found[1] == "-" else nanos)


def part_functions() -> dict[str, Callable[..., int]]:
    """Return `getFullYear` and its like as functions of a value and, optionally, a time zone."""
    return {name: partial(_part, name) for name in _PARTS}


def _part(name: str, value: object, *zone: object) -> int:
    match value, zone:
        case Duration(), ():
            return value.part(name)
        case Timestamp(), ():
            return value.part(name)
        case Timestamp(), (str(named),):
            return value.part(name, named)
    raise ValueError(f"{name}() requires a timestamp, optionally with a time zone, or for parts up to hours a duration")


def _nanos(number: str, unit: str) -> int:
    """Return nanoseconds; a fraction of one is cut off."""
    # Integers are used, because a float of some hundred days is no longer exact to the nanosecond.
    whole, _, fraction = number.partition(".")
    if len(whole) > _MAX_DIGITS:
        raise ValueError("the duration is out of range")
    scaled = int(fraction[:_MAX_DIGITS].ljust(_MAX_DIGITS, "0")) * _UNITS[unit]
    return int(whole or 0) * _UNITS[unit] + scaled // _SCALE


def _fraction(nanos: int) -> str:
    return f".{nanos:09}".rstrip("0") if nanos else ""


def _seconds(span: timedelta) -> int:
    return span.days * 86400 + span.seconds


def _offset(sign: str, hours: str, minutes: str) -> timedelta:
    """Return the offset of a time zone such as `+02:00` from UTC. Raises ValueError."""
    if int(hours) > 23 or int(minutes) > 59:
        raise ValueError(f"there is no time zone '{sign}{hours}:{minutes}'")
    span = timedelta(hours=int(hours), minutes=int(minutes))
    return -span if sign == "-" else span


@lru_cache(maxsize=100)
def _zone(name: str) -> tzinfo:
    """Return a time zone by its name in the zone data or its offset. Raises ValueError."""
    if found := _OFFSET.fullmatch(name):
        return timezone(_offset(found[1], found[2], found[3]))
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise ValueError(
            f"there is no time zone '{name}': use a name such as Europe/Berlin, or an offset such as +02:00"
        ) from None


def _equal(left: object, right: object) -> bool:
    """Compare two values; unlike in Python, a truth value never equals a number."""
    return isinstance(left, bool) == isinstance(right, bool) and bool(left == right)


def _multiply(left: object, right: object) -> float:
    """Multiply two numbers; unlike in Python, texts and lists are not repeated."""
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        raise ValueError("'*' requires two numbers")
    return left * right


def _divide(left: object, right: object) -> object:
    """Divide; the quotient of whole numbers is truncated towards zero, as in CEL."""
    if not isinstance(left, int) or not isinstance(right, int):
        return operator.truediv(left, right)
    # Python's `//` rounds down instead: -7 // 2 is -4, and CEL wants -3.
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


def _remainder(left: float, right: float) -> int:
    """Return the remainder, which has the sign of the dividend, as in CEL. Raises ValueError where CEL overflows."""
    if not isinstance(left, int) or not isinstance(right, int):
        return int(math.fmod(left, right))
    # The quotient would be one more than the largest integer; CEL counts that as an error of `%` as well.
    if left == _SMALLEST_INT and right == -1:
        raise ValueError("the remainder is out of range")
    # Python's `%` takes the sign of the divisor, and a float is exact only to 2**53.
    remainder = abs(left) % abs(right)
    return -remainder if left < 0 else remainder


OPERATORS: Mapping[str, Callable[..., object]] = {
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
    "%": _remainder,
    "[]": lambda left, right: left[right],
}


@lru_cache(maxsize=1000)
def _pattern(text: str) -> Pattern:
    """Return a compiled pattern. It is cached, because a pattern that once took too long stays switched off."""
    return Pattern(text)


def _int(value: str | float | Timestamp) -> int:
    return value.seconds if isinstance(value, Timestamp) else int(value)


def _string(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _bool(value: object) -> bool:
    return value is True or value == "true"


_ONE, _TWO = (1,), (2,)
FUNCTIONS: Mapping[str, tuple[Sequence[int], Callable[..., object]]] = {
    # Python's own functions raise for arguments that do not fit; `Expression.evaluate` turns that into ValueError.
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
"""Function or method -> possible numbers of its arguments (the receiver counts as one), and the function itself."""
