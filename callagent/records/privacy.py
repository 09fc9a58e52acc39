"""Private data in records: redacted before a record is written, and hidden from readers without the right `personal`.

Redaction finds card numbers, e-mail addresses and telephone numbers, written or spoken, by their form, and the values
of entities that the settings name. How a field is redacted and hidden is declared on the field, in `call_record.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, object_at, objects_at, text_at
from callagent.log import scrub
from callagent.records.call_record import PRIVACY, SHOWN_TEXTS, Privacy

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
# A digit, or a word that stands for one or repeats the next one.
_DIGIT = rf"(?:\d|(?:{'|'.join(_DIGIT_WORDS)})\b|(?:double|triple)\b)"
_NUMBER = re.compile(rf"(?<![\w.])(?:\+|plus\b|\()?\s*{_DIGIT}(?:[\s().,/-]{{0,3}}{_DIGIT})*", re.I)
_PIECE = re.compile(r"\d|[a-z]+", re.I)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}\S*)?|\d{1,2}/\d{1,2}/\d{4}")
# Every repetition is bounded, so that the time grows with the length of the text and not with its square.
_NAME = r"[\w.+'-]{1,64}"
# SIP URIs are skipped: before their @ stands the name of a line or a number, not of a mailbox.
_EMAIL = re.compile(rf"sips?:[^\s@<>]{{1,128}}@|(?P<email>{_NAME}@[\w-]{{1,64}}(?:\.[\w-]{{1,64}}){{1,8}})", re.I)
# A recogniser writes addresses as they are spoken: "ann dot lee at example dot com". The list of top-level domains
# keeps sentences such as "look at the dot" from being taken for an address.
_SPOKEN_EMAIL = re.compile(
    r"\b[\w+'-]{1,64}(?:\s{1,3}(?:dot|underscore|dash|minus|hyphen)\s{1,3}[\w+'-]{1,64}){0,5}\s{1,3}at\s{1,3}"
    r"[\w-]{1,64}(?:\s{1,3}dot\s{1,3}[\w-]{1,64}){0,3}(?:\s{1,3}dot\s{1,3}|\.)"
    r"(?:com|org|net|edu|gov|io|info|biz|uk|co|de|fr|us|eu|ca|au|ie|at|ch|nl|es|it|example|test)\b",
    re.I,
)
_MIN_PHONE_DIGITS, _MAX_PHONE_DIGITS = 7, 15
_LONG_RUN: Final = 9
"""Number of digits without a separator that are taken for a telephone number."""
_CARD_DIGITS: Final = range(12, 20)
_SIP_URI = re.compile(r"(?:sips?|tel):[^\s<>\"]{1,300}", re.I)
_SDP_LINE = re.compile(r"[a-z]=")
# Headers that say who calls whom over which hops (RFC 3261 §20 and its extensions, with their compact forms). Their
# digits and addresses belong to the protocol, and a trace without them is useless.
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
    """Replaces data of `kinds` (see `KINDS`), and values of `entities`, in texts; the rest of a text stays."""

    def __init__(self, kinds: Collection[str], entities: Collection[str] = ()) -> None:
        self._kinds = frozenset(kinds)
        self._entities = frozenset(entities)
        self._names: Mapping[str, str] = {}
        self._values: re.Pattern[str] | None = None

    def record(self, record: JsonObject) -> MutableJsonObject:
        """Return a redacted copy of a record."""
        redaction = self.with_entities(object_at(record, "entities"))
        redacted = {name: redaction._field(name, value) for name, value in record.items()}
        redacted["digits"] = redaction._hide_keys(objects_at(record, "digits"))
        return redacted

    def with_entities(self, entities: JsonObject) -> Redaction:
        """Return a redaction that also replaces the values of a call's entities; itself if none is to be replaced."""
        values = {name: str(entities[name]).strip() for name in self._entities & entities.keys()}
        # A value of one character is left out: it stands in most texts.
        names = {value.lower(): name for name, value in values.items() if len(value) > 1}
        if not names:
            return self
        # A regular expression takes the first alternative that fits: "York" must not come before "New York".
        longest_first = sorted(names, key=len, reverse=True)
        redaction = Redaction(self._kinds)
        redaction._names = names
        redaction._values = re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, longest_first))})(?!\w)", re.I)
        return redaction

    def value(self, value: object) -> JsonValue:
        """Return JSON data with every text and integer in it redacted, and the names of its members, too."""
        match value:
            case str():
                return self.text(value)
            case bool() | float() | None:
                return value
            case int():
                return self._redact_integer(value)
            case Mapping():
                return {self.text(str(name)): self.value(one) for name, one in value.items()}
            case list() | tuple():
                return [self.value(one) for one in value]
            case _:
                return self.text(str(value))

    def text(self, text: str) -> str:
        """Return a text whose private parts are replaced by their kind in brackets, such as `[email]`."""
        text = scrub(self._without_entities(text))
        if "email" in self._kinds:
            text = _SPOKEN_EMAIL.sub("[email]", _EMAIL.sub(lambda m: "[email]" if m["email"] else m.group(), text))
        if "card" in self._kinds or "phone" in self._kinds:
            text = _change_outside(_DATE, text, lambda part: _NUMBER.sub(self._replace_number, part), str)
        return text

    def _without_entities(self, text: str) -> str:
        if self._values is None:
            return text
        return self._values.sub(lambda match: f"[{self._names.get(match.group().lower(), 'entity')}]", text)

    def _structure(self, value: JsonValue) -> JsonValue:
        """Redact a part of the record whose names are callagent's: only its values change."""
        if isinstance(value, Mapping):
            return {name: self._field(name, one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._structure(one) for one in value]
        # Seconds and counters are floats; a card number that a function returned is an integer.
        return self.value(value) if isinstance(value, (str, int)) else value

    def _field(self, name: str, value: JsonValue) -> JsonValue:
        match PRIVACY.get(name):
            case Privacy.CONTENT:
                return self.value(value)
            case Privacy.SIGNALLING:
                return [self._trace_entry(one) for one in _list(value) if isinstance(one, Mapping)]
            case Privacy.STRUCTURE:
                return value
            case _:
                return self._structure(value)

    def _trace_entry(self, message: JsonObject) -> JsonObject:
        """Redact a message of the signalling trace: its routing stays readable, other headers are redacted."""
        line, text = text_at(message, "line"), text_at(message, "text")
        return {**message, "line": self._without_entities(line), "text": self._sip_message(text)}

    def _sip_message(self, text: str) -> str:
        start_line, *lines = scrub(text).splitlines(keepends=True) or [""]
        parts, routing = [self._without_entities(start_line)], True
        for line in lines:
            # A line that begins with a space continues the header before it (RFC 3261 §7.3.1).
            if not line[0].isspace():
                name = line.partition(":")[0].strip().lower()
                routing = name in _ROUTING_HEADERS or _SDP_LINE.match(line) is not None
            parts.append(
                self._without_entities(line)
                if routing
                else _change_outside(_SIP_URI, line, self.text, self._without_entities)
            )
        return "".join(parts)

    def _replace_number(self, match: re.Match[str]) -> str:
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

    def _redact_integer(self, value: int) -> int | str:
        text = str(value)
        # Ten or thirteen digits that begin with 1 are seconds or milliseconds since 1970: no telephone number of North
        # America begins with 1.
        if len(text) < _LONG_RUN or (len(text) in (10, 13) and text[0] == "1"):
            return value
        redacted = self.text(text)
        return value if redacted == text else redacted

    def _hide_keys(self, digits: Sequence[JsonObject]) -> Sequence[JsonObject]:
        """Hide all pressed keys if some of them together are a card or telephone number."""
        pressed = "".join(str(one["digit"]) for one in digits)
        if not any(self._is_private(run) for run in re.findall(r"\d+", pressed)):
            return digits
        return [{**one, "digit": "•"} for one in digits]

    def _is_private(self, keys: str) -> bool:
        return ("card" in self._kinds and _holds_card(keys)) or ("phone" in self._kinds and len(keys) >= _LONG_RUN)


def _list(value: JsonValue) -> Sequence[JsonValue]:
    return value if isinstance(value, list) else ()


def has_card_check_digit(digits: str) -> bool:
    """Return whether the check digit of a card number fits (Luhn's algorithm, ISO/IEC 7812-1)."""
    total = 0
    for place, digit in enumerate(reversed(digits)):
        doubled = int(digit) * (1 + place % 2)
        total += doubled - 9 * (doubled > 9)
    return total % 10 == 0


def _holds_card(digits: str) -> bool:
    """Return whether the digits are a card number or contain one."""
    for start in range(len(digits) - _CARD_DIGITS.start + 1):
        # A run that is no longer than a card number is one as a whole or contains a usual one; a longer run may
        # contain one of any length.
        for length in (16, 15, 14, 19, 13) if len(digits) not in _CARD_DIGITS else (len(digits), 16, 15):
            part = digits[start : start + length]
            if len(part) == length and part[0] in "23456" and has_card_check_digit(part):
                return True
    return False


def _digits(spoken: str) -> str:
    """Return the digits of a spoken or written number: `double oh seven` is `007`."""
    digits, times = "", 1
    for piece in _PIECE.findall(spoken.lower()):
        if piece in ("double", "triple"):
            times = 2 if piece == "double" else 3
        elif digit := _DIGIT_WORDS.get(piece) or (piece if piece.isdigit() else ""):
            digits += digit * times
            times = 1
    return digits


def _change_outside(
    kept: re.Pattern[str], text: str, change: Callable[[str], str], change_kept: Callable[[str], str]
) -> str:
    """Apply `change` to the text between the matches of `kept`, such as dates, and `change_kept` to the matches."""
    parts, at = [], 0
    for match in kept.finditer(text):
        parts += [change(text[at : match.start()]), change_kept(match.group())]
        at = match.end()
    return "".join([*parts, change(text[at:])])


_HIDDEN: Final = "[hidden]"
# Texts that the dashboard's summary of a live call has besides the record's fields: the names of the call's states.
_LIVE_TEXTS: Final = frozenset({"floor", "state"})
# Fields with the name of a target, or a number if an operator or project dialled one.
_DESTINATIONS: Final = frozenset({"handoff_destination", "target"})
_DIALLED: Final = re.compile(r"\+?[\d\s().-]{5,}")


def hide_personal_data(data: object) -> object:
    """Return JSON data without anything that tells who called or what was said.

    A text is shown only if its field declares it. Numbers and truth values are shown, except in fields that projects
    and callers fill: there a number may be anything.
    """
    if isinstance(data, str):
        return _HIDDEN if data else data
    if isinstance(data, list):
        return [hide_personal_data(one) for one in data]
    if not isinstance(data, Mapping):
        return data
    outbound = data.get("direction") == "outbound"
    return {name: _hide_in_field(name, value, outbound=outbound) for name, value in data.items()}


def _hide_in_field(name: str, value: object, *, outbound: bool) -> object:
    # The names of a project's metrics and their numbers are business figures, which the overview shows as well.
    if PRIVACY.get(name) is Privacy.CONTENT and name != "metrics" and not (name == "state" and isinstance(value, str)):
        return _without_data(value)
    if not isinstance(value, str):
        return hide_personal_data(value)
    if name == "to_number":
        # The called number is our own, unless we called.
        return mask(value) if outbound else value
    if name == "from_number" or (name in _DESTINATIONS and _DIALLED.fullmatch(value)):
        return mask(value)
    is_shown = name in SHOWN_TEXTS or name in _LIVE_TEXTS or name in _DESTINATIONS
    return value if is_shown else hide_personal_data(value)


def _without_data(value: object) -> object:
    """Return an empty value of the same type, because programs that read records expect this type."""
    if isinstance(value, str):
        return _HIDDEN if value else value
    return type(value)() if value else value


def mask(number: str) -> str:
    """Return the last two digits of a number, just enough to tell two callers apart."""
    return "•••" + number[-2:] if number else number
