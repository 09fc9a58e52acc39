"""The rules that find numbers, dates, amounts and the like in English text."""

from __future__ import annotations

import re
from collections.abc import Callable

from callagent.speech import spoken_numbers as say

LONGEST_NUMBER = 4
"""Digits in a row without separators; more are an identifier, read one by one."""
_GROUP = ", "
"""Between the groups of a telephone number: a short pause."""
_MONTH_FIRST = ("US", "")
_MONTH_NAMES = "|".join([*say.MONTHS, *(month[:3] for month in say.MONTHS)])
_UNITS = {
    "km": "kilometers", "kg": "kilograms", "cm": "centimeters", "mm": "millimeters", "lb": "pounds", "lbs": "pounds",
    "mph": "miles per hour", "km/h": "kilometers per hour", "°C": "degrees Celsius", "°F": "degrees Fahrenheit",
    "°": "degrees", "min": "minutes", "hrs": "hours", "GB": "gigabytes", "MB": "megabytes",
}  # fmt: skip

Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], str]]


def english(text: str, region: str = "US") -> str:
    """`text` in words; `region` decides whether `03/04` is in March or in April."""
    for pattern, words in (*_FIRST_RULES, (_SLASH_DATE, lambda match: _slash_date(match, region)), *_RULES):
        text = pattern.sub(lambda match, words=words: _kept(match, words), text)  # type: ignore[misc]
    return re.sub(r"[ \t]{2,}", " ", text).strip()


def _kept(match: re.Match[str], words: Callable[[re.Match[str]], str]) -> str:
    """The words, or the text as it was where it is no such thing after all (the 31st of June, 10²⁰)."""
    try:
        return words(match)
    except ValueError:
        return match[0]


def _telephone(match: re.Match[str]) -> str:
    groups = re.findall(r"\d+", match[0])
    if len(groups) == 1 and len(groups[0]) == 10:
        number = groups[0]
        groups = [number[:3], number[3:6], number[6:]]
    if sum(map(len, groups)) < 7:
        raise ValueError("not a telephone number")
    return ("plus " if match[0].startswith("+") else "") + _GROUP.join(map(say.digits, groups))


def _iso_date(match: re.Match[str]) -> str:
    return _date(int(match[3]), int(match[2]), int(match[1]))


def _slash_date(match: re.Match[str], region: str) -> str:
    first, second, in_year = int(match[1]), int(match[2]), int(match[3]) if match[3] else None
    if in_year is None and match[1][0] != "0" and not _BEFORE_DATE.search(match.string, 0, match.start()):
        raise ValueError("a fraction")
    day, month = (second, first) if region in _MONTH_FIRST else (first, second)
    return _date(day, month, in_year) if month <= 12 else _date(month, day, in_year)


def _fraction(match: re.Match[str]) -> str:
    if words := _FRACTIONS.get(match[0]):
        return words
    return f"{say.cardinal(int(match[1]))} over {say.cardinal(int(match[2]))}"


def _named_date(match: re.Match[str]) -> str:
    month = _month(match["month"])
    in_year = match["year"]
    return _date(int(match["day"]), month, int(in_year) if in_year else None)


def _date(day: int, month: int, in_year: int | None) -> str:
    import datetime

    datetime.date(in_year or 2024, month, day)
    return say.date(day, month, in_year)


def _month(name: str) -> int:
    return next(number for number, month in enumerate(say.MONTHS, 1) if month.lower().startswith(name.lower()[:3]))


def _time(match: re.Match[str]) -> str:
    hour, minute, half = int(match[1]), int(match[2] or 0), match[3]
    if hour > 23 or minute > 59 or (half and not 1 <= hour <= 12):
        raise ValueError("not a time")
    if half:
        return f"{say.clock(hour, minute)} {half[0].upper()}M"
    return say.time_of_day(hour, minute)


def _money(match: re.Match[str]) -> str:
    amount = match[2].replace(",", "")
    if scale := match[3]:
        names = {"k": "thousand", "m": "million", "b": "billion"}
        return f"{say.decimal(amount)} {names.get(scale.lower(), scale.lower())} {say.CURRENCIES[match[1]][1]}"
    return say.money(match[1], amount)


def _number(match: re.Match[str]) -> str:
    text = match[0].replace(",", "")
    whole = text.lstrip("-").partition(".")[0]
    if (
        "." not in text
        and "," not in match[0]
        and (len(whole) > LONGEST_NUMBER or (whole[0] == "0" and len(whole) > 1))
    ):
        return say.digits(text)
    return say.decimal(text)


def _address(match: re.Match[str]) -> str:
    text = re.sub(r"^https?://(?:www\.)?|/$", "", match[0])
    for sign, word in (("@", " at "), (".", " dot "), ("/", " slash "), ("-", " dash "), ("_", " underscore ")):
        text = text.replace(sign, word)
    return text


def _link(match: re.Match[str]) -> str:
    return match[1]


def _code(match: re.Match[str]) -> str:
    if not re.search(r"[A-Z]", match[0]) or re.search(r"[A-Z]{4}", match[0]):
        raise ValueError("not a code")
    return say.digits(match[0])


_BEFORE_DATE = re.compile(r"\b(?:on|by|until|before|after|since|for) $", re.I)
_FRACTIONS = {
    "1/2": "one half", "1/3": "one third", "2/3": "two thirds", "1/4": "one quarter", "3/4": "three quarters",
    "24/7": "twenty-four seven",
}  # fmt: skip
_SLASH_DATE = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?:/(\d{4}))?(?![\d/])")
_FIRST_RULES: tuple[Rule, ...] = (
    # What models write for the eye.
    (re.compile(r"\[([^\]\n]+)\]\((?:https?:|mailto:|tel:)[^)\s]*\)"), _link),
    (re.compile(r"(?m)^\s*(?:[-*•]|#{1,6})\s+"), lambda match: ""),
    (re.compile(r"(\*\*|__|`)(\S(?:[^\n]*?\S)?)\1"), lambda match: match[2]),
    (re.compile(r"\b[\w.+-]+@[\w-]+(?:\.[\w-]+)+\b"), _address),
    (re.compile(r"\bhttps?://[^\s<>\"')]*[^\s<>\"').,;:!?]"), _address),
    (re.compile(r"(?<![\d-])(\d{4})-(\d{2})-(\d{2})(?![\d-])"), _iso_date),
    (re.compile(r"(?<=\d) ?[-–] ?(?=\d{1,2}:\d\d)"), lambda match: " to "),
    (re.compile(r"(?<![\w.,])\+\d[\d ().-]{6,20}\d(?![\w-])"), _telephone),
    (re.compile(r"(?<![\w.,$€£+-])\(?\d{3}\)?[ .-]\d{3}[ .-]\d{4}(?![\w-])"), _telephone),
    (re.compile(r"(?<![\w.,$€£+-])\d{10}(?![\w.-]*\d)"), _telephone),
)
_RULES: tuple[Rule, ...] = (
    (re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?![\d/])"), _fraction),
    (
        re.compile(rf"\b(?P<month>{_MONTH_NAMES})\.? (?P<day>\d{{1,2}})(?:st|nd|rd|th)?\b(?:,? (?P<year>\d{{4}})\b)?"),
        _named_date,
    ),
    (
        re.compile(
            rf"\b(?P<day>\d{{1,2}})(?:st|nd|rd|th)? (?:of )?(?P<month>{_MONTH_NAMES})\b(?:,? (?P<year>\d{{4}})\b)?"
        ),
        _named_date,
    ),
    (re.compile(r"(?<![\d:])(\d{1,2}):(\d{2})(?: ?([AaPp])\.?[Mm]\b\.?)?(?![\d:])"), _time),
    (re.compile(r"(?<![\d:.])(\d{1,2})()(?: ?([AaPp])\.?[Mm]\b)"), _time),
    (re.compile(r"([$€£]) ?(\d[\d,]*(?:\.\d+)?)(?: ?([kKmMbB]\b|thousand|million|billion))?"), _money),
    (re.compile(r"(?<=\d) ?%"), lambda match: " percent"),
    (re.compile(r"#(?=\d)|\bNo\. ?(?=\d)"), lambda match: "number "),
    (re.compile(r"(?<=\d) ?(km/h|km|kg|cm|mm|lbs?|mph|°[CF]|°|min|hrs|GB|MB)(?![\w°])"), lambda m: f" {_UNITS[m[1]]}"),
    (re.compile(r"\b(\d{1,6})(?:st|nd|rd|th)\b"), lambda match: say.ordinal(int(match[1]))),
    (re.compile(r"\b(?=[A-Z0-9-]*\d)[A-Z0-9]+(?:-[A-Z0-9]+)*\b(?![.,]\d)"), _code),
    (re.compile(r"(?<=\b[Ii]n )(1[1-9]\d\d|20\d\d)\b(?![.,]\d)"), lambda match: say.year(int(match[1]))),
    (re.compile(r"(?<=\d) ?[-–] ?(?=\d)"), lambda match: " to "),
    (re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])"), _number),
    (re.compile(r" & "), lambda match: " and "),
)
