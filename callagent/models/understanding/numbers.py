"""Spoken numbers: digit strings, cardinals, sums of money."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_UNIT_WORDS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS_WORDS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
UNITS = {word: value for value, word in enumerate(_UNIT_WORDS)}
TENS = {word: value * 10 for value, word in enumerate(_TENS_WORDS, start=2)}
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_ZERO = {"oh": "0", "o": "0", "nought": "0", "nil": "0"}
_REPEATS = {"double": 2, "triple": 3, "treble": 3}
# What recognisers write for digits; taken for one only between two digits.
_HOMOPHONES = {"for": "4", "to": "2", "too": "2", "won": "1", "ate": "8"}
_TOKEN = re.compile(r"\d+(?:\.\d+)?|[a-z]+")
_CURRENCY = r"(?:dollars?|euros?|pounds?|bucks|usd|eur|gbp)"
_MAX_WORDS = 200


def words(text: str) -> list[str]:
    """Lower-case words and figures; hyphens and other marks separate."""
    joined = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.lower())
    return _TOKEN.findall(joined)[:_MAX_WORDS]


def find_digits(text: str) -> str:
    """The longest string of digits spoken or written in one go (`double five oh one` is 5501); empty: none."""
    return max(_digit_runs(words(text)), key=len, default="")


def find_number(text: str) -> int | float | None:
    """The first number: `twenty five`, `one hundred and five`, `three point five`, `3.5`."""
    tokens = words(text)
    for start in range(len(tokens)):
        if _is_numeric(tokens[start]) or _starts_scale(tokens[start:]):
            return _number_at(tokens[start:])
    return None


def find_money(text: str) -> float | None:
    """A sum in its main unit: `twenty five dollars and fifty cents` is 25.5, `$9.50` is 9.5."""
    if written := re.search(r"[$€£]\s?(\d[\d,]*(?:\.\d{1,2})?)", text):
        return float(written[1].replace(",", ""))
    lowered = text.lower()
    whole = re.search(rf"^(.*?)\b{_CURRENCY}\b", lowered)
    cents = re.search(rf"^(?:.*?\b{_CURRENCY}\b)?(.*?)\b(?:cents?|pence)\b", lowered)
    amounts = [(_last_number(match[1]), unit) for match, unit in ((whole, 1.0), (cents, 0.01)) if match]
    known = [value * unit for value, unit in amounts if value is not None]
    return round(sum(known), 2) if known else None


def _digit_runs(tokens: Sequence[str]) -> Iterator[str]:
    run, position = "", 0
    while position < len(tokens):
        digits, used = _digits_at(tokens, position, inside=bool(run))
        if used:
            run, position = run + digits, position + used
            continue
        yield run
        run, position = "", position + 1
    yield run


def _digits_at(tokens: Sequence[str], position: int, *, inside: bool) -> tuple[str, int]:
    """The digits that the tokens from `position` stand for, and how many tokens that took."""
    token, following = tokens[position], tokens[position + 1] if position + 1 < len(tokens) else ""
    if token in _REPEATS and (digit := _single_digit(following)):
        return digit * _REPEATS[token], 2
    if token in TENS and 0 < UNITS.get(following, 0) < 10:
        return str(TENS[token] + UNITS[following]), 2
    if token == "hundred" and inside:
        return "00", 1
    if inside and token in _HOMOPHONES and _plain_digits(following):
        return _HOMOPHONES[token], 1
    digits = _plain_digits(token)
    # A lone "oh" is an exclamation.
    if token in _ZERO and not inside and not _plain_digits(following):
        return "", 0
    return digits, 1 if digits else 0


def _plain_digits(token: str) -> str:
    if token.isdigit():
        return token
    value = UNITS.get(token, TENS.get(token))
    return str(value) if value is not None else _ZERO.get(token, "")


def _single_digit(token: str) -> str:
    digits = _plain_digits(token)
    return digits if len(digits) == 1 else ""


def _is_numeric(token: str) -> bool:
    return token in UNITS or token in TENS or token[0].isdigit()


def _starts_scale(tokens: Sequence[str]) -> bool:
    return len(tokens) > 1 and tokens[0] == "a" and tokens[1] in _SCALES


def _number_at(tokens: Sequence[str]) -> int | float:
    """Tokens begin with a number; where they read as single digits they are one (`four one five` is 415)."""
    if "." in tokens[0]:
        return float(tokens[0])
    value, used = _cardinal(tokens)
    rest = tokens[used:]
    if len(rest) > 1 and rest[0] == "point" and (fraction := next(_digit_runs(rest[1:]), "")):
        return float(f"{value}.{fraction}")
    run = next(_digit_runs(tokens), "")
    return int(run) if len(run) > len(str(value)) and rest and _is_numeric(rest[0]) else value


def _cardinal(tokens: Sequence[str]) -> tuple[int, int]:
    """The cardinal that the tokens begin with, and how many tokens it took."""
    total = group = used = 0
    room = 1_000_000_000
    for position, token in enumerate(tokens):
        value, size = _part(token)
        if token in _SCALES:
            total, group = _scale(total, group or 1, _SCALES[token])
            room = _SCALES[token]
        elif value is not None and value < room and size:
            group, room = group + value, size
        elif not _joins(tokens, position, room, used):
            break
        used = position + 1
    return total + group, used


def _joins(tokens: Sequence[str], position: int, room: int, used: int) -> bool:
    """`a hundred`; `one hundred and five`, but not `two and three`."""
    if tokens[position] == "a":
        return not used
    follows = position + 1 < len(tokens) and _is_numeric(tokens[position + 1])
    return tokens[position] == "and" and bool(used) and room >= 100 and follows


def _part(token: str) -> tuple[int | None, int]:
    """A word's value, and what may follow it: only less than this."""
    if token.isdigit():
        return int(token), 1
    if token in TENS:
        return TENS[token], 10
    return (UNITS[token], 1) if token in UNITS else (None, 0)


def _scale(total: int, group: int, scale: int) -> tuple[int, int]:
    return (total, group * scale) if scale == 100 else (total + group * scale, 0)


def _last_number(text: str) -> int | float | None:
    """The number that `text` ends with, in effect: the one right before a unit."""
    tokens = words(text)
    start = len(tokens)
    while start and (_is_numeric(tokens[start - 1]) or tokens[start - 1] in {*_SCALES, "and", "point", "a"}):
        start -= 1
    return find_number(" ".join(tokens[start:])) if start < len(tokens) else None
