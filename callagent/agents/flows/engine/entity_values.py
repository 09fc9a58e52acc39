"""Validation of the values that the model extracted: each is checked against its entity's type; spoken forms pass."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from functools import lru_cache

from callagent.agents.flows.format import Entity
from callagent.agents.kernel import Pattern
from callagent.json_values import JsonObject, JsonValue, list_at, number_at, text_at


@dataclass(frozen=True, slots=True)
class EntityResult:
    """The outcome for one entity: `value` is its text, `native` the value for `conv.state`."""

    name: str
    valid: bool
    value: str
    type: str
    error: str | None = None
    native: JsonValue = None


_ONES = {
    "zero": 0, "oh": 0, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8,
    "nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "thirteen": 13, "fourteen": 14, "fifteen": 15, "sixteen": 16,
    "seventeen": 17, "eighteen": 18, "nineteen": 19,
}  # fmt: skip
_TENS = {"twenty": 20, "thirty": 30, "forty": 40, "fifty": 50, "sixty": 60, "seventy": 70, "eighty": 80, "ninety": 90}
_Check = Callable[[str, JsonObject, date], JsonValue]
_REPEATS = {"double": 2, "triple": 3}
_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_CALLING_CODES = {
    "US": "1", "CA": "1", "GB": "44", "DE": "49", "FR": "33", "ES": "34", "IT": "39", "IE": "353", "AU": "61",
}  # fmt: skip
_POSTAL_EXPRESSIONS = {
    "zip code": r"\d{5}(-?\d{4})?",
    "zip_code": r"\d{5}(-?\d{4})?",
    "postal code": r"[A-Za-z0-9][A-Za-z0-9 -]{1,9}",
    "postal_code": r"[A-Za-z0-9][A-Za-z0-9 -]{1,9}",
}


def validate(entity: Entity, value: JsonValue, today: date) -> EntityResult:
    """Validate one value. The model is shown the `error` of an invalid one."""
    text = _as_text(value)
    if not text:
        return EntityResult(entity.name, False, "", entity.type, "The value is empty.")
    # Free text, names and addresses accept any text: only a project function can verify them.
    check: _Check = _CHECKS.get(entity.type, _any_text)
    try:
        native = check(text, entity.config, today)
    except ValueError as error:
        return EntityResult(entity.name, False, text, entity.type, str(error))
    return EntityResult(entity.name, True, str(native), entity.type, None, native)


def _as_text(value: JsonValue) -> str:
    if value is None:
        return ""
    # Models write 4 as 4.0, and digits as numbers.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value).strip()


def spoken_digits(text: str) -> str | None:
    """Read `five five double oh` as `5500`; None where the text says anything else."""
    digits = ""
    times = 1
    for word in re.findall(r"[a-z]+|\d+", text.lower()):
        if word in _REPEATS:
            times = _REPEATS[word]
            continue
        # "ten" and higher numbers are not digits.
        if not word.isdigit() and _ONES.get(word, 10) > 9:
            return None
        digits += (word if word.isdigit() else str(_ONES[word])) * times
        times = 1
    return digits or None


def spoken_number(text: str) -> int | None:
    """Read `twenty five` as 25, `three hundred and two` as 302; None where the text says anything else."""
    total, current, seen = 0, 0, False
    for word in re.findall(r"[a-z]+", text.lower()):
        if word in ("and", "a"):
            continue
        if word in _ONES or word in _TENS:
            current += _ONES.get(word, 0) + _TENS.get(word, 0)
        elif word == "hundred":
            current = max(current, 1) * 100
        elif word == "thousand":
            total, current = total + max(current, 1) * 1000, 0
        else:
            return None
        seen = True
    return total + current if seen else None


def _numeric(text: str, config: JsonObject, today: date) -> int | float:
    # A comma between groups of three digits is a separator, any other is not.
    plain = re.sub(r"(?<=\d),(?=\d{3})", "", text).strip("$€£ ")
    number: int | float
    if re.fullmatch(r"[+-]?\d+", plain):
        number = int(plain)
    elif re.fullmatch(r"[+-]?\d*\.\d+", plain):
        number = float(plain)
    else:
        # Three words and more are tried as digits first: as a number "five five two" would be added up.
        digits = spoken_digits(text) if len(text.split()) > 2 else None
        spoken = int(digits) if digits else spoken_number(text)
        if spoken is None:
            raise ValueError(f"'{text}' is not a number.")
        number = spoken
    if isinstance(number, float) and not config.get("has_decimal"):
        if not number.is_integer():
            raise ValueError("It should be a whole number.")
        number = int(number)
    low, high = (number_at(config, "min", -math.inf), number_at(config, "max", math.inf))
    if config.get("has_range") and not low <= number <= high:
        raise ValueError(f"It should be between {config.get('min')} and {config.get('max')}.")
    return number


@lru_cache(maxsize=256)
def _expression(text: str) -> Pattern:
    """Return the compiled expression, the same for all calls, because a `Pattern` remembers that it is too slow."""
    return Pattern(text)


def _alphanumeric(text: str, config: JsonObject, today: date) -> str:
    kind = str(config.get("validation_type") or "").lower()
    expression = _expression(text_at(config, "regular_expression") or _POSTAL_EXPRESSIONS.get(kind) or r".+")
    # Tried as written, without separators, in capitals, and as spoken digits; the first that matches is saved.
    candidates = [text, re.sub(r"[\s.-]+", "", text), re.sub(r"[\s.-]+", "", text).upper(), spoken_digits(text) or ""]
    for candidate in candidates:
        if candidate and expression.fullmatch(candidate):
            return candidate
    raise ValueError(f"'{text}' does not have the expected form.")


def _enum(text: str, config: JsonObject, today: date) -> str:
    options = [str(option) for option in list_at(config, "options")]
    found = next((option for option in options if option.lower() == text.lower()), None)
    if found is None:
        raise ValueError(f"It should be one of: {', '.join(options)}.")
    return found


def _date(text: str, config: JsonObject, today: date) -> str:
    match = re.fullmatch(r"(\d{4})[-/](\d{1,2})[-/](\d{1,2})(?:T.*)?", text)
    if match:
        return _calendar_day(*(int(part) for part in match.groups())).isoformat()
    relative, spoken = bool(config.get("relative_date")), text.lower()
    day = _relative_day(spoken, today) if relative else None
    if day is None:
        day = _named_day(spoken, today)
    # The weekday comes last: in "Monday, March 5th" the named day counts.
    if day is None and relative:
        day = _next_weekday(spoken, today)
    if day is None:
        raise ValueError(f"'{text}' is not a date. Give it as YYYY-MM-DD.")
    return day.isoformat()


def _calendar_day(year: int, month: int, day: int) -> date:
    try:
        return date(year, month, day)
    except ValueError as error:
        raise ValueError("There is no such day.") from error


def _relative_day(text: str, today: date) -> date | None:
    """Read words that count from today, such as `tomorrow` or `in two weeks`."""
    offsets = (("day after tomorrow", 2), ("tomorrow", 1), ("today", 0), ("tonight", 0), ("yesterday", -1))
    for word, offset in offsets:
        if word in text:
            return today + timedelta(days=offset)
    match = re.search(r"in (\w+) (day|week)s?", text)
    if match:
        count = int(match.group(1)) if match.group(1).isdigit() else _ONES.get(match.group(1))
        if count is not None:
            return today + timedelta(days=count * (7 if match.group(2) == "week" else 1))
    return None


def _next_weekday(text: str, today: date) -> date | None:
    for number, weekday in enumerate(_WEEKDAYS):
        if weekday in text:
            # The first such day after today. "Next Tuesday" said on a Monday means the coming one, too.
            return today + timedelta(days=(number - today.weekday() - 1) % 7 + 1)
    return None


def _named_day(text: str, today: date) -> date | None:
    """Read `March 5th 1990` or `5 March`; without a year it is the next such day."""
    month = next(
        (number for number, name in enumerate(_MONTHS, 1) if re.search(rf"\b{name[:3]}(?:{name[3:]})?\b", text)), None
    )
    numbers = [int(n) for n in re.findall(r"\d+", text)]
    day = next((n for n in numbers if 1 <= n <= 31), None)
    if month is None or day is None:
        return None
    year = next((n for n in numbers if n > 31), None)
    if year is not None:
        return _calendar_day(year, month, day)
    found = _calendar_day(today.year, month, day)
    # Callers leave out the year of a day to come. In December, "5 January" is in the next year.
    return found if found >= today else _calendar_day(today.year + 1, month, day)


def _phone(text: str, config: JsonObject, today: date) -> str:
    digits = re.sub(r"\D", "", text) if re.search(r"\d", text) else ""
    digits = digits if len(digits) >= 7 else (spoken_digits(text) or digits)
    if text.startswith("+") or digits.startswith("00"):
        digits = digits.removeprefix("00")
        # E.164: at most 15 digits with the country code.
        if 8 <= len(digits) <= 15:
            return f"+{digits}"
    countries = [str(code).upper() for code in list_at(config, "country_codes")]
    if not 7 <= len(digits) <= 15:
        raise ValueError(f"'{text}' is not a complete phone number.")
    # North American numbers have ten digits: seven are a local number without its area code.
    if countries and set(countries) <= {"US", "CA"} and len(digits.removeprefix("1")) != 10:
        raise ValueError("The number should have ten digits, starting with the area code.")
    prefix = _CALLING_CODES.get(countries[0]) if countries and _share_calling_code(countries) else None
    if prefix is None:
        return digits
    # The trunk prefix 0 is dropped before a country code is put in front.
    national = digits[len(prefix) :] if digits.startswith(prefix) and len(digits) > 10 else digits.lstrip("0")
    return f"+{prefix}{national}"


def _share_calling_code(countries: list[str]) -> bool:
    return len({_CALLING_CODES.get(code) for code in countries}) == 1


def _time(text: str, config: JsonObject, today: date) -> str:
    minutes = _minutes(text)
    if minutes is None:
        raise ValueError(f"'{text}' is not a time. Give it as HH:MM.")
    low, high = (_minutes(str(config[key])) if config.get(key) else None for key in ("start_time", "end_time"))
    if (low is not None and minutes < low) or (high is not None and minutes > high):
        raise ValueError(f"The time should be between {config.get('start_time')} and {config.get('end_time')}.")
    return f"{minutes // 60:02d}:{minutes % 60:02d}"


def _minutes(text: str) -> int | None:
    plain = text.lower().replace(".", "").strip()
    if plain in ("noon", "midday", "midnight"):
        return 0 if plain == "midnight" else 720
    match = re.fullmatch(r"(\d{1,2})(?::?(\d{2}))?(?::\d{2})?\s*(am|pm|a m|p m|o'?clock)?", plain)
    if match is None:
        words = re.fullmatch(r"(\w+)(?: (\w+(?:[ -]\w+)?))??\s*(am|pm|a m|p m|o'?clock)?", plain)
        hour = _ONES.get(words.group(1)) if words else None
        if words is None or hour is None:
            return None
        minute = {"thirty": 30, "fifteen": 15, "forty five": 45}.get(words.group(2) or "", 0)
        return _clock_minutes(hour, minute, words.group(3))
    return _clock_minutes(int(match.group(1)), int(match.group(2) or 0), match.group(3))


def _clock_minutes(hour: int, minute: int, half: str | None) -> int | None:
    """Return minutes after midnight; `half` is `am`, `pm` or anything else for 24 hours. None: no such time."""
    half = (half or "").replace(" ", "")
    # 12 am is midnight and 12 pm is noon.
    if half in ("am", "pm") and 1 <= hour <= 12:
        hour = hour % 12 + (12 if half == "pm" else 0)
    return hour * 60 + minute if 0 <= hour < 24 and 0 <= minute < 60 else None


def _any_text(text: str, config: JsonObject, today: date) -> str:
    return text


_CHECKS: Mapping[str, _Check] = {
    "numeric": _numeric,
    "alphanumeric": _alphanumeric,
    "enum": _enum,
    "date": _date,
    "phone_number": _phone,
    "time": _time,
}
