"""Spoken days and times of day, resolved against the day of the call."""

from __future__ import annotations

import re
from datetime import date, time, timedelta

from callagent.models.understanding.numbers import TENS, UNITS, find_number

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november",
    "december",
)  # fmt: skip
_ORDINAL_WORDS = (
    "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth", "eleventh",
    "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth", "seventeenth", "eighteenth", "nineteenth",
)  # fmt: skip
_ORDINALS = {word: n for n, word in enumerate(_ORDINAL_WORDS, 1)} | {"twentieth": 20, "thirtieth": 30}

_WEEKDAY = rf"(?P<weekday>{'|'.join(_WEEKDAYS)})s?"
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
_ORDINAL = rf"(?:(?:twenty|thirty)[ -])?(?:{'|'.join(_ORDINALS)})"
_CARDINAL = rf"(?:twenty|thirty)(?:[ -](?:{'|'.join(list(UNITS)[1:10])}))?|{'|'.join(list(UNITS)[1:])}"
_DAY = rf"(?P<day>\d{{1,2}}(?:st|nd|rd|th)?|{_ORDINAL}|{_CARDINAL})"
_YEAR = (
    r"(?:,? (?P<year>\d{4}|(?:nineteen|twenty) (?:hundred|oh|[a-z]+ty|[a-z]+teen|ten|eleven|twelve)(?:[ -][a-z]+)?|"
    r"two thousand(?: and)?(?: [a-z]+){0,2}))?"
)
_PARTS = {
    "morning": time(9), "noon": time(12), "midday": time(12), "lunchtime": time(12), "afternoon": time(14),
    "evening": time(18), "tonight": time(18), "night": time(20), "midnight": time(0),
}  # fmt: skip
_HOUR_WORD = "|".join(list(UNITS)[1:13])
_MINUTE_WORD = (
    rf"(?:{'|'.join(TENS)})(?:[ -](?:{'|'.join(list(UNITS)[1:10])}))?|oh (?:{'|'.join(list(UNITS)[1:10])})|"
    rf"{'|'.join(list(UNITS)[10:])}"
)
_HALF_DAY = r"(?P<half>[ap]\.? ?m\b\.?)"
_CLOCK = re.compile(
    rf"(?P<lead>\b(?:at|around|about|by|before|after|from|say|past)\s+)?"
    rf"\b(?P<hour>\d{{1,2}}|{_HOUR_WORD})"
    rf"(?:[:.](?P<figures>\d{{2}})|\s+(?P<minute>{_MINUTE_WORD}|\d{{2}}))?"
    rf"(?P<oclock>\s*o'?\s?clock)?(?:\s*{_HALF_DAY})?(?![\w:/.-]*\d)",
    re.IGNORECASE,
)
_RELATIVE = re.compile(
    rf"\b(?P<shift>half|quarter|(?P<amount>{_MINUTE_WORD}|five|\d{{1,2}})(?: minutes)?)"
    rf"\s+(?P<side>past|to|after|before)\s+(?P<hour>\d{{1,2}}|{_HOUR_WORD})\b(?:\s*{_HALF_DAY})?",
    re.IGNORECASE,
)
_PART_FOLLOWS = re.compile(r"\s*(?:in the|this|tomorrow|at)?\s*(?:morning|afternoon|evening|night|tonight)\b")
_PART_PRECEDES = re.compile(r"\b(?:morning|afternoon|evening|night|tonight)\W*$")
# "Not Friday, Thursday": the day that is not wanted is none.
_REFUSED_DAY = re.compile(
    rf"\b(?:not|can't do|cannot do|instead of)(?: on)? (?:{'|'.join(_WEEKDAYS)}|today|tomorrow)\b"
)
# An hour without a.m. or p.m. is in the daytime: from 8 to 12 in the morning, from 1 to 7 after noon.
_FIRST_DAYTIME_HOUR = 8


def find_date(text: str, today: date) -> date | None:
    """The day that `text` names; None: none, or one that does not exist.

    A weekday is the coming one, `next` or not; a day without a year is the next one that is not past.
    """
    said = _REFUSED_DAY.sub(" ", text.lower().replace("’", "'"))
    readers = (_iso, _in_days, _relative_day, _month_and_day, _figures, _weekday, _day_of_month)
    try:
        return next((found for read in readers if (found := read(said, today))), None)
    except (ValueError, OverflowError):
        return None


def find_time(text: str) -> time | None:
    """The time of day that `text` names (`around ten`, `half past nine`, `3 p.m.`); a bare number is none."""
    said = text.lower().replace("’", "'")
    part = find_part_of_day(said)
    if match := _RELATIVE.search(said):
        return _shifted(match, part)
    matches = list(_CLOCK.finditer(said))
    for is_time in (_is_clock_time, _is_in_part_of_day):
        for match in filter(is_time, matches):
            if found := _clock(match, part):
                return found
    exact = re.search(r"\b(noon|midday|midnight)\b", said)
    return _PARTS[exact[1]] if exact else None


def find_part_of_day(text: str) -> str:
    """`morning`, `afternoon`, `evening`, `night` as said; empty: none."""
    said = re.search(r"\b(morning|afternoon|evening|tonight|night|noon|midday|lunchtime)s?\b", text.lower())
    if not said:
        return ""
    return {"tonight": "evening", "noon": "afternoon", "midday": "afternoon", "lunchtime": "afternoon"}.get(
        said[1], said[1]
    )


def part_of_day(moment: time) -> str:
    """`morning` until noon, `afternoon` until six, then `evening`."""
    if moment.hour < 12:
        return "morning"
    return "afternoon" if moment.hour < 18 else "evening"


def _iso(said: str, today: date) -> date | None:
    match = re.search(r"\b(\d{4})-(\d{2})-(\d{2})\b", said)
    return date(*map(int, match.groups())) if match else None


def _relative_day(said: str, today: date) -> date | None:
    if "day after tomorrow" in said:
        return today + timedelta(days=2)
    if re.search(r"\btomorrow\b", said):
        return today + timedelta(days=1)
    if re.search(r"\byesterday\b", said):
        return today - timedelta(days=1)
    return today if re.search(r"\b(today|tonight|this (?:morning|afternoon|evening))\b", said) else None


def _in_days(said: str, today: date) -> date | None:
    match = re.search(r"\bin (?:about )?(a|an|[a-z]+|\d+) (day|week)s?\b|\b(a|one) (week) from (?:today|now)\b", said)
    if not match:
        return today + timedelta(days=7) if re.search(r"\bnext week\W*$", said) else None
    amount, unit = match[1] or match[3], match[2] or match[4]
    count = 1 if amount in {"a", "an", "one"} else find_number(amount)
    return today + timedelta(days=int(count) * (7 if unit == "week" else 1)) if count is not None else None


def _month_and_day(said: str, today: date) -> date | None:
    match = re.search(rf"\b{_DAY}(?: day)?(?: of)? {_MONTH}\b\.?{_YEAR}", said) or re.search(
        rf"\b{_MONTH}\b\.?(?: the)? {_DAY}\b{_YEAR}", said
    )
    if not match:
        return None
    month = next(n for n, name in enumerate(_MONTHS, 1) if name.startswith(match["month"][:3]))
    day = _day_number(match["day"])
    if match["year"] and (year := _year_number(match["year"])):
        return date(year, month, day)
    this_year = date(today.year, month, day) if (month, day) != (2, 29) else _leap_day(today)
    return this_year if this_year >= today else this_year.replace(year=today.year + 1)


def _leap_day(today: date) -> date:
    year = next(y for y in range(today.year, today.year + 9) if _is_leap(y) and date(y, 2, 29) >= today)
    return date(year, 2, 29)


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _figures(said: str, today: date) -> date | None:
    """Month before day, as American callers write; day first where that alone is a date."""
    match = re.search(r"\b(\d{1,2})/(\d{1,2})(?:/(\d{4}))?\b", said)
    if not match:
        return None
    month, day = int(match[1]), int(match[2])
    month, day = (day, month) if month > 12 else (month, day)
    if match[3]:
        return date(int(match[3]), month, day)
    this_year = date(today.year, month, day)
    return this_year if this_year >= today else date(today.year + 1, month, day)


def _weekday(said: str, today: date) -> date | None:
    match = re.search(rf"\b(?P<which>this |a week (?:on |from )?)?(?:next |coming |on )?{_WEEKDAY}\b", said)
    if not match:
        return None
    ahead = (_WEEKDAYS.index(match["weekday"]) - today.weekday()) % 7
    if ahead == 0 and match["which"] != "this ":
        ahead = 7
    return today + timedelta(days=ahead + (7 if (match["which"] or "").startswith("a week") else 0))


def _day_of_month(said: str, today: date) -> date | None:
    """`the twenty seventh`: in this month or the next that has it."""
    match = re.search(
        rf"\bthe (?P<day>\d{{1,2}}(?:st|nd|rd|th)|{_ORDINAL})\b(?! (?:one|time|floor|street|avenue))", said
    )
    if not match:
        return None
    day = _day_number(match["day"])
    if not 1 <= day <= 31:
        return None
    candidate = today
    while candidate.day != day:
        candidate += timedelta(days=1)
    return candidate


def _day_number(word: str) -> int:
    if figures := re.match(r"\d+", word):
        return int(figures[0])
    tens, _, last = word.replace("-", " ").rpartition(" ")
    return TENS.get(tens, 0) + (_ORDINALS.get(last) or UNITS.get(last) or TENS.get(last) or 0)


def _year_number(words: str) -> int | None:
    if words.isdigit():
        return int(words)
    first, _, rest = words.replace("-", " ").partition(" ")
    if first == "two":
        number = find_number(words)
        return int(number) if number is not None else None
    tail = find_number(rest.removeprefix("hundred").removeprefix("oh").strip()) if rest != "hundred" else 0
    return (19 if first == "nineteen" else 20) * 100 + int(tail) if tail is not None and tail < 100 else None


def _is_clock_time(match: re.Match[str]) -> bool:
    return any(match[name] for name in ("lead", "figures", "minute", "oclock", "half"))


def _is_in_part_of_day(match: re.Match[str]) -> bool:
    """`ten in the morning`, `morning, ten`: not every number in a sentence about an evening is an hour."""
    before, after = match.string[: match.start()], match.string[match.end() :]
    return bool(_PART_FOLLOWS.match(after) or _PART_PRECEDES.search(before))


def _clock(match: re.Match[str], part: str) -> time | None:
    hour = _small_number(match["hour"])
    minute = int(match["figures"]) if match["figures"] else _small_number(match["minute"] or "0")
    if hour is None or minute is None or hour > 23 or minute > 59:
        return None
    return time(_daytime(hour, match["half"] or "", part), minute)


def _shifted(match: re.Match[str], part: str) -> time | None:
    hour = _small_number(match["hour"])
    minutes = {"half": 30, "quarter": 15}.get(match["shift"]) or _small_number(match["amount"] or "")
    if hour is None or not minutes or hour > 23 or minutes > 59:
        return None
    total = _daytime(hour, match["half"] or "", part) * 60 + (
        minutes if match["side"] in {"past", "after"} else -minutes
    )
    return time(total // 60 % 24, total % 60)


def _small_number(word: str) -> int | None:
    number = find_number(word.removeprefix("oh ").replace("-", " "))
    return int(number) if number is not None else None


def _daytime(hour: int, half: str, part: str) -> int:
    if hour > 12 or hour == 0:
        return hour
    if half:
        return hour % 12 + (12 if half.startswith("p") else 0)
    if part == "morning":
        return hour % 12 if hour < 12 else 12
    if part in {"afternoon", "evening"} or (part == "night" and hour >= 5):
        return hour % 12 + 12
    if part == "night":
        return hour % 12
    return hour if hour >= _FIRST_DAYTIME_HOUR else hour + 12
