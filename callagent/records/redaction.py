"""Card numbers, e-mail addresses and telephone numbers are taken out of a record before it is written."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from callagent.log import scrub
from callagent.records.types import PRIVACY, Privacy

KINDS: Final = ("card", "email", "phone")

_DIGIT_WORDS: Final = {
    "zero": "0",
    "oh": "0",
    "o": "0",
    "one": "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
}
_ONE = rf"(?:\d|(?:{'|'.join(_DIGIT_WORDS)})\b|(?:double|triple)\b)"
_NUMBER = re.compile(rf"(?<![\w.])(?:\+|plus\b|\()?\s*{_ONE}(?:[\s().,/-]{{0,3}}{_ONE})*", re.I)
_PIECE = re.compile(r"\d|[a-z]+", re.I)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}\S*)?|\d{1,2}/\d{1,2}/\d{4}")
# Every repetition is bounded: the time grows with the text and not with its square.
_NAME = r"[\w.+'-]{1,64}"
# The user part of a SIP URI is passed over: what stands before an @ there is a line or a number, no mailbox.
_EMAIL = re.compile(rf"sips?:[^\s@<>]{{1,128}}@|(?P<email>{_NAME}@[\w-]{{1,64}}(?:\.[\w-]{{1,64}}){{1,8}})", re.I)
_SPOKEN_EMAIL = re.compile(
    r"\b[\w+'-]{1,64}(?:\s{1,3}(?:dot|underscore|dash|minus|hyphen)\s{1,3}[\w+'-]{1,64}){0,5}\s{1,3}at\s{1,3}"
    r"[\w-]{1,64}(?:\s{1,3}dot\s{1,3}[\w-]{1,64}){0,3}(?:\s{1,3}dot\s{1,3}|\.)"
    r"(?:com|org|net|edu|gov|io|info|biz|uk|co|de|fr|us|eu|ca|au|ie|at|ch|nl|es|it|example|test)\b",
    re.I,
)
_MIN_PHONE_DIGITS, _MAX_PHONE_DIGITS = 7, 15
_LONG_RUN: Final = 9
_CARD_DIGITS: Final = range(12, 20)
_SIP_URI = re.compile(r"(?:sips?|tel):[^\s<>\"]{1,300}", re.I)
_SDP_LINE = re.compile(r"[a-z]=")
# Who calls whom over which hops (RFC 3261 §20 and its extensions): digits and addresses there are the protocol's.
_ROUTING_HEADERS: Final = frozenset(
    {
        *("via", "v", "from", "f", "to", "t", "contact", "m", "call-id", "i", "cseq", "route", "record-route", "path"),
        *("refer-to", "r", "referred-by", "b", "replaces", "p-asserted-identity", "p-preferred-identity", "privacy"),
        *("remote-party-id", "p-called-party-id", "diversion", "history-info", "identity", "y", "reason", "warning"),
        *("max-forwards", "content-length", "l", "content-type", "c", "session-expires", "x", "min-se", "rack", "rseq"),
        *("allow", "supported", "k", "require", "unsupported", "user-agent", "server", "date", "expires", "event", "o"),
        *("retry-after", "subscription-state", "www-authenticate", "proxy-authenticate", "timestamp", "accept"),
    }
)


class Redaction:
    """Takes out what `kinds` names, and the values of `entities` wherever they stand; the text around stays."""

    def __init__(self, kinds: Collection[str], entities: Collection[str] = ()) -> None:
        self._kinds = frozenset(kinds)
        self._entities = frozenset(entities)
        self._names: Mapping[str, str] = {}
        self._values: re.Pattern[str] | None = None

    def record(self, record: Mapping[str, Any]) -> dict[str, Any]:
        """The record without what is not to be kept."""
        known = self.knowing(record["entities"])
        redacted: dict[str, Any] = known._structure(record)
        redacted["digits"] = known._keys(record["digits"])
        return redacted

    def knowing(self, entities: Mapping[str, Any]) -> Redaction:
        """For one call, whose entities have these values."""
        told = {name: str(entities[name]).strip() for name in self._entities & entities.keys()}
        names = {value.lower(): name for name, value in told.items() if len(value) > 1}
        if not names:
            return self
        longest_first = sorted(names, key=len, reverse=True)
        redaction = Redaction(self._kinds)
        redaction._names = names
        redaction._values = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.I)
        return redaction

    def value(self, value: Any) -> Any:
        """JSON data, every text and number in it redacted."""
        match value:
            case str():
                return self.text(value)
            case bool() | None:
                return value
            case float():
                return value
            case int():
                return self._integer(value)
            case Mapping():
                return {self.text(str(name)): self.value(one) for name, one in value.items()}
            case list() | tuple():
                return [self.value(one) for one in value]
            case _:
                return self.text(str(value))

    def text(self, text: str) -> str:
        text = scrub(self._without_entities(text))
        if "email" in self._kinds:
            text = _SPOKEN_EMAIL.sub("[email]", _EMAIL.sub(lambda m: "[email]" if m["email"] else m.group(), text))
        if "card" in self._kinds or "phone" in self._kinds:
            text = _outside_dates(text, lambda part: _NUMBER.sub(self._number, part))
        return text

    def _without_entities(self, text: str) -> str:
        if self._values is None:
            return text
        return self._values.sub(lambda match: f"[{self._names.get(match.group().lower(), 'entity')}]", text)

    def _structure(self, value: Any) -> Any:
        """Of our own part of the record: names that tell structure keep their values."""
        if isinstance(value, Mapping):
            return {name: self._field(name, one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._structure(one) for one in value]
        return self.value(value) if isinstance(value, str) else self._plain(value)

    def _field(self, name: str, value: Any) -> Any:
        match PRIVACY.get(name):
            case Privacy.CONTENT:
                return self.value(value)
            case Privacy.SIGNALLING:
                return [self._traced(one) for one in value]
            case Privacy.STRUCTURE:
                return value
            case _:
                return self._structure(value)

    def _traced(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """A message of the signalling trace: its routing stays readable, other headers are redacted."""
        return {**message, "line": self._without_entities(message["line"]), "text": self._sip_message(message["text"])}

    def _sip_message(self, text: str) -> str:
        start_line, *lines = scrub(text).splitlines(keepends=True) or [""]
        parts, routing = [self._without_entities(start_line)], True
        for line in lines:
            # A line that begins with a space continues the header before it (§7.3.1).
            if not line[0].isspace():
                name = line.partition(":")[0].strip().lower()
                routing = name in _ROUTING_HEADERS or _SDP_LINE.match(line) is not None
            parts.append(self._without_entities(line) if routing else self._outside_uris(line))
        return "".join(parts)

    def _outside_uris(self, line: str) -> str:
        parts, at = [], 0
        for match in _SIP_URI.finditer(line):
            parts += [self.text(line[at : match.start()]), self._without_entities(match.group())]
            at = match.end()
        return "".join([*parts, self.text(line[at:])])

    def _plain(self, value: Any) -> Any:
        # Seconds and counters are floats; a card number that a function returned is an integer.
        return self.value(value) if isinstance(value, int) else value

    def _number(self, match: re.Match[str]) -> str:
        spoken = match.group()
        digits = _digits(spoken)
        if "card" in self._kinds and _holds_card(digits):
            return " [card number]" if spoken[0].isspace() else "[card number]"
        if "phone" in self._kinds and _MIN_PHONE_DIGITS <= len(digits) <= _MAX_PHONE_DIGITS:
            # A run of seven or eight digits is more often an order number.
            written_as_one = spoken.strip().isdigit()
            if not written_as_one or len(digits) >= _LONG_RUN:
                return " [phone number]" if spoken[0].isspace() else "[phone number]"
        return spoken

    def _integer(self, value: int) -> int | str:
        text = str(value)
        # Seconds and milliseconds since 1970; no telephone number of North America begins with 1.
        if len(text) < _LONG_RUN or (len(text) in (10, 13) and text[0] == "1"):
            return value
        redacted = self.text(text)
        return value if redacted == text else redacted

    def _keys(self, digits: list[dict[str, Any]]) -> list[dict[str, Any]]:
        pressed = "".join(str(one["digit"]) for one in digits)
        if not any(self._number_of_keys(run) for run in re.findall(r"\d+", pressed)):
            return digits
        return [{**one, "digit": "•"} for one in digits]

    def _number_of_keys(self, run: str) -> bool:
        return ("card" in self._kinds and _holds_card(run)) or ("phone" in self._kinds and len(run) >= _LONG_RUN)


def luhn(digits: str) -> bool:
    """Whether the check digit of a card number fits."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (1 + place % 2)
        total += doubled - 9 * (doubled > 9)
    return total % 10 == 0


def _holds_card(digits: str) -> bool:
    """A card number, also with other digits before or behind it."""
    for start in range(len(digits) - _CARD_DIGITS.start + 1):
        for length in (16, 15, 14, 19, 13) if len(digits) not in _CARD_DIGITS else (len(digits), 16, 15):
            part = digits[start : start + length]
            if len(part) == length and part[0] in "23456" and luhn(part):
                return True
    return False


def _digits(spoken: str) -> str:
    digits, times = "", 1
    for piece in _PIECE.findall(spoken.lower()):
        if piece in ("double", "triple"):
            times = 2 if piece == "double" else 3
        elif digit := _DIGIT_WORDS.get(piece) or (piece if piece.isdigit() else ""):
            digits += digit * times
            times = 1
    return digits


def _outside_dates(text: str, change: Callable[[str], str]) -> str:
    """`change` what stands between dates: their digits are no telephone number."""
    parts, at = [], 0
    for match in _DATE.finditer(text):
        parts += [change(text[at : match.start()]), match.group()]
        at = match.end()
    return "".join([*parts, change(text[at:])])
