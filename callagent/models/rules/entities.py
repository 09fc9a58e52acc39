"""What a caller's English words name: numbers, sums, days, times, people, e-mail addresses, yes and no.

Pure functions. A day is resolved against the day of the call, which is an argument.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import date, time, timedelta
from enum import Enum

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
    """Return lower-case words and figures; hyphens and other marks separate."""
    joined = re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.lower())
    return _TOKEN.findall(joined)[:_MAX_WORDS]


def find_digits(text: str) -> str:
    """Return the longest string of digits spoken or written in one go (`double five oh one` is 5501); empty: none."""
    return max(_digit_runs(words(text)), key=len, default="")


def find_number(text: str) -> int | float | None:
    """Return the first number: `twenty five`, `one hundred and five`, `three point five`, `3.5`."""
    tokens = words(text)
    for start in range(len(tokens)):
        if _is_numeric(tokens[start]) or _starts_scale(tokens[start:]):
            return _number_at(tokens[start:])
    return None


def find_money(text: str) -> float | None:
    """Return a sum in its main unit: `twenty five dollars and fifty cents` is 25.5, `$9.50` is 9.5."""
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
    """Return the digits that the tokens from `position` stand for, and how many tokens that took.

    `inside`: digits stand before them, so that words which are digits only among digits (`for`, `oh`) count.
    """
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
    """Return the number that the tokens begin with; single digits in a row are one number (`four one five` is 415)."""
    if "." in tokens[0]:
        return float(tokens[0])
    value, used = _cardinal(tokens)
    rest = tokens[used:]
    if len(rest) > 1 and rest[0] == "point" and (fraction := next(_digit_runs(rest[1:]), "")):
        return float(f"{value}.{fraction}")
    # "four one five" reads as digits, "twenty five" as a cardinal: the longer reading is meant.
    run = next(_digit_runs(tokens), "")
    return int(run) if len(run) > len(str(value)) and rest and _is_numeric(rest[0]) else value


def _cardinal(tokens: Sequence[str]) -> tuple[int, int]:
    """Return the cardinal that the tokens begin with, and how many tokens it took."""
    total = group = used = 0
    # What follows must be less than this: after `twenty` a unit, after `hundred` anything below it.
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
    """Return whether `a` or `and` belongs to the number: `a hundred`, `hundred and five`, but not `two and three`."""
    if tokens[position] == "a":
        return not used
    follows = position + 1 < len(tokens) and _is_numeric(tokens[position + 1])
    return tokens[position] == "and" and bool(used) and room >= 100 and follows


def _part(token: str) -> tuple[int | None, int]:
    """Return a word's value, and the bound below which a part that follows it must be."""
    if token.isdigit():
        return int(token), 1
    if token in TENS:
        return TENS[token], 10
    return (UNITS[token], 1) if token in UNITS else (None, 0)


def _scale(total: int, group: int, scale: int) -> tuple[int, int]:
    return (total, group * scale) if scale == 100 else (total + group * scale, 0)


def _last_number(text: str) -> int | float | None:
    """Return the number that `text` ends with: the one right before a unit."""
    tokens = words(text)
    start = len(tokens)
    while start and (_is_numeric(tokens[start - 1]) or tokens[start - 1] in {*_SCALES, "and", "point", "a"}):
        start -= 1
    return find_number(" ".join(tokens[start:])) if start < len(tokens) else None


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
    """Return the day that `text` names; None: none, or one that does not exist.

    A weekday is the coming one, `next` or not; a day without a year is the next one that is not past.
    """
    utterance = _REFUSED_DAY.sub(" ", text.lower().replace("’", "'"))
    # In this order: `in two weeks on Friday` is a distance, `the first of May` no day of this month.
    readers = (_iso, _in_days, _relative_day, _month_and_day, _figures, _weekday, _day_of_month)
    try:
        return next((found for read in readers if (found := read(utterance, today))), None)
    except (ValueError, OverflowError):
        return None


def find_time(text: str) -> time | None:
    """Return the time of day that `text` names (`around ten`, `half past nine`, `3 p.m.`); a bare number is none."""
    utterance = text.lower().replace("’", "'")
    part = find_part_of_day(utterance)
    if match := _RELATIVE.search(utterance):
        return _shifted(match, part)
    # First what can only be a time of day, then numbers that stand beside a part of the day.
    matches = list(_CLOCK.finditer(utterance))
    for is_time in (_is_clock_time, _is_in_part_of_day):
        for match in filter(is_time, matches):
            if found := _clock(match, part):
                return found
    exact = re.search(r"\b(noon|midday|midnight)\b", utterance)
    return _PARTS[exact[1]] if exact else None


def find_part_of_day(text: str) -> str:
    """Return the part of day that `text` names: `morning`, `afternoon`, `evening` or `night`; empty: none."""
    utterance = re.search(r"\b(morning|afternoon|evening|tonight|night|noon|midday|lunchtime)s?\b", text.lower())
    if not utterance:
        return ""
    return {"tonight": "evening", "noon": "afternoon", "midday": "afternoon", "lunchtime": "afternoon"}.get(
        utterance[1], utterance[1]
    )


def part_of_day(moment: time) -> str:
    """Return `morning` until noon, `afternoon` until six, then `evening`."""
    if moment.hour < 12:
        return "morning"
    return "afternoon" if moment.hour < 18 else "evening"


def _iso(utterance: str, today: date) -> date | None:
    match = re.search(r"\b(\d{4})-(\d{2})-(\d{2})\b", utterance)
    return date(*map(int, match.groups())) if match else None


def _relative_day(utterance: str, today: date) -> date | None:
    if "day after tomorrow" in utterance:
        return today + timedelta(days=2)
    if re.search(r"\btomorrow\b", utterance):
        return today + timedelta(days=1)
    if re.search(r"\byesterday\b", utterance):
        return today - timedelta(days=1)
    return today if re.search(r"\b(today|tonight|this (?:morning|afternoon|evening))\b", utterance) else None


def _in_days(utterance: str, today: date) -> date | None:
    match = re.search(
        r"\bin (?:about )?(a|an|[a-z]+|\d+) (day|week)s?\b|\b(a|one) (week) from (?:today|now)\b", utterance
    )
    if not match:
        return today + timedelta(days=7) if re.search(r"\bnext week\W*$", utterance) else None
    amount, unit = match[1] or match[3], match[2] or match[4]
    count = 1 if amount in {"a", "an", "one"} else find_number(amount)
    return today + timedelta(days=int(count) * (7 if unit == "week" else 1)) if count is not None else None


def _month_and_day(utterance: str, today: date) -> date | None:
    match = re.search(rf"\b{_DAY}(?: day)?(?: of)? {_MONTH}\b\.?{_YEAR}", utterance) or re.search(
        rf"\b{_MONTH}\b\.?(?: the)? {_DAY}\b{_YEAR}", utterance
    )
    if not match:
        return None
    month = next(n for n, name in enumerate(_MONTHS, 1) if name.startswith(match["month"][:3]))
    day = _day_number(match["day"])
    if match["year"] and (year := _year_number(match["year"])):
        return date(year, month, day)
    # The 29th of February is in the next leap year, which may be up to eight years ahead (2096 to 2104).
    this_year = date(today.year, month, day) if (month, day) != (2, 29) else _leap_day(today)
    return this_year if this_year >= today else this_year.replace(year=today.year + 1)


def _leap_day(today: date) -> date:
    year = next(y for y in range(today.year, today.year + 9) if _is_leap(y) and date(y, 2, 29) >= today)
    return date(year, 2, 29)


def _is_leap(year: int) -> bool:
    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)


def _figures(utterance: str, today: date) -> date | None:
    """Read month before day, as American callers write; day first where that alone is a date."""
    match = re.search(r"\b(\d{1,2})/(\d{1,2})(?:/(\d{4}))?\b", utterance)
    if not match:
        return None
    month, day = int(match[1]), int(match[2])
    month, day = (day, month) if month > 12 else (month, day)
    if match[3]:
        return date(int(match[3]), month, day)
    this_year = date(today.year, month, day)
    return this_year if this_year >= today else date(today.year + 1, month, day)


def _weekday(utterance: str, today: date) -> date | None:
    match = re.search(rf"\b(?P<which>this |a week (?:on |from )?)?(?:next |coming |on )?{_WEEKDAY}\b", utterance)
    if not match:
        return None
    # Said on a Friday, "Friday" is the one in a week, "this Friday" is today.
    ahead = (_WEEKDAYS.index(match["weekday"]) - today.weekday()) % 7
    if ahead == 0 and match["which"] != "this ":
        ahead = 7
    return today + timedelta(days=ahead + (7 if (match["which"] or "").startswith("a week") else 0))


def _day_of_month(utterance: str, today: date) -> date | None:
    """Read `the twenty seventh`: in this month or the next that has it."""
    match = re.search(
        rf"\bthe (?P<day>\d{{1,2}}(?:st|nd|rd|th)|{_ORDINAL})\b(?! (?:one|time|floor|street|avenue))", utterance
    )
    if not match:
        return None
    day = _day_number(match["day"])
    if not 1 <= day <= 31:
        return None
    # Day by day, for not every month has a 31st; two months in a row never lack it, so this ends soon.
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
    """Return whether a part of day stands beside the number: `ten in the morning`, `morning, ten`.

    Elsewhere in the sentence does not count: not every number in a sentence about an evening is an hour.
    """
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


_NAME_INTRODUCED = re.compile(
    r"\b(?:(?:my|the|our|last|first|full|family) name(?:'s| is)|name is|i am|i'm|this is|it's|it is|call me|"
    r"(?:booking|reservation|appointment) (?:is )?(?:for|under)|under)\s+"
    r"(?P<name>[a-zà-ÿ][\w'’-]*(?:\s+[a-zà-ÿ][\w'’-]*)*)",
    re.IGNORECASE,
)
_ENDS_NAME = {
    "and", "calling", "speaking", "here", "from", "i", "my", "the", "a", "please", "thanks", "thank", "for", "at", "on",
    "with", "but", "that", "to", "it", "is", "not", "about", "so", "of",
}  # fmt: skip
_NO_NAME = {
    *_ENDS_NAME, "calling", "looking", "trying", "fine", "good", "sorry", "just", "very", "going", "interested",
    "happy", "waiting", "having", "yes", "no", "okay", "right", "correct", "wrong", "great",
}  # fmt: skip
_PARTICLES = {"van", "von", "de", "da", "der", "la", "le", "di", "bin", "al", "st", "mc"}
_SPELLING = re.compile(r"(?<!['’])\b[a-z](?:[\s.,-]+(?:double[\s-]+)?[a-z]\b){2,}", re.IGNORECASE)
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_SPOKEN_EMAIL = re.compile(r"([\w.+-]+(?:\s+(?:dot|underscore|dash)\s+[\w.+-]+)*)\s+at\s+([\w-]+(?:\s+dot\s+[\w-]+)+)")
_MAX_NAME_WORDS = 4


def find_name(text: str, *, asked: bool = False) -> str:
    """Return a person's name; empty: none. `asked`: the caller was asked for it, so bare words may be one."""
    # Words that introduce a name come first; bare words are one only where the agent has asked for it.
    introduced = _NAME_INTRODUCED.search(text)
    if introduced and (name := _name_at_start(introduced["name"].split())):
        return name
    if not asked:
        return ""
    bare = re.sub(r"[^\w'’ -]+", " ", text).split()
    return _name_at_start(bare) if 0 < len(bare) <= _MAX_NAME_WORDS else ""


def find_spelling(text: str) -> str:
    """Return letters spelt one by one (`s m i t h`), joined; empty: none."""
    spelt = _SPELLING.search(text)
    if not spelt:
        return ""
    doubled = re.sub(r"double[\s-]+([a-z])", r"\1\1", spelt[0], flags=re.IGNORECASE)
    return re.sub(r"[^A-Za-z]", "", doubled)


def find_email(text: str) -> str:
    """Return an e-mail address, written or spoken (`ann dot lee at example dot com`); empty: none."""
    if written := _EMAIL.search(text):
        return written[0]
    if not (spoken := _SPOKEN_EMAIL.search(text.lower())):
        return ""
    marks = {"dot": ".", "underscore": "_", "dash": "-"}
    local, domain = ("".join(marks.get(word, word) for word in part.split()) for part in spoken.groups())
    return f"{local}@{domain}"


def _name_at_start(candidates: list[str]) -> str:
    taken: list[str] = []
    for word in candidates[:_MAX_NAME_WORDS]:
        plain = word.lower().strip(".,'’")
        if not plain or plain in (_ENDS_NAME if taken else _NO_NAME) or any(c.isdigit() for c in plain):
            break
        taken.append(plain if plain in _PARTICLES else _capitalise(word.strip(".,")))
    return " ".join(taken)


def _capitalise(word: str) -> str:
    return word if not word.islower() else "-".join(part[:1].upper() + part[1:] for part in word.split("-"))


class Answer(Enum):
    """How a caller answers a yes-or-no question."""

    YES = "yes"
    NO = "no"


_SOFTENERS = r"(?:(?:um+|uh+|er+|well|oh|ah|hmm+|so|and|actually|i think|i guess|please)\b[ ,]*)*"
_YES = (
    r"(?:yes|yeah|yep|yup|yea|ya|sure|okay|ok|alright|all right|correct|exactly|absolutely|definitely|certainly|"
    r"of course|go ahead|please do|do it|go for it|right|fine|perfect|great|sounds (?:good|great|fine|right)|"
    r"(?:that|it)(?:'s| is| would be| will be) (?:right|correct|fine|good|great|perfect|okay|ok|it|me)|"
    r"that(?:'ll| will) (?:do|work)|that works|i (?:agree|confirm)|no problem|uh-huh|mm-hmm?|"
    r"why not|i'd (?:love|like) that|(?:i (?:do|am|would)|i'd (?:love|like) to)(?: please)?$)"
)
_NO = (
    r"(?:no|nope|nah|negative|never|not(?! (?:bad|sure|a problem)\b)|no thanks|no thank you|"
    r"(?:that|it)(?:'s| is) (?:not|wrong|incorrect)|(?:that|it) (?:isn't|(?:doesn't|does not|won't) work)|"
    r"wrong|incorrect|"
    r"i (?:don't|do not)(?: (?:want|think|agree|need|like)|$)|don't|do not|"
    r"i didn't|i'm not|i am not|"
    r"i'd rather not|i can't|i cannot|i'm (?:good|fine|all set)|rather not|never mind|nevermind|forget it|nothing|none)"
)
_STARTS_YES = re.compile(rf"{_SOFTENERS}{_YES}\b")
_STARTS_NO = re.compile(rf"{_SOFTENERS}{_NO}\b")
_NOT_A_NO = re.compile(rf"{_SOFTENERS}(?:no problem|no worries|nothing wrong)\b")
# A yes that is taken back in the same breath.
_TAKES_BACK = re.compile(r"\b(?:not (?:right|correct|quite)|isn't (?:right|correct)|wrong|incorrect|don't think so)\b")
_I_DO_NOT = re.compile(r"\bi (?:don't|do not) think so\b")
_REPEAT = re.compile(
    r"\b(?:(?:repeat|say) (?:that|it|this)|repeat (?:please|yourself)|once more|one more time|come again|pardon|"
    r"what (?:(?:\w+ )?was (?:that|it)|did you say)|"
    r"(?:didn't|did not|don't|couldn't) (?:catch|hear|get|understand) (?:that|it|you)|"
    r"say (?:that |it )?again|(?:could|can|would|will) you (?:please )?repeat|excuse me what|sorry what)\b"
    r"|^(?:sorry|excuse me|what|huh|repeat|again)$"
)


def normalise(text: str) -> str:
    """Return the text in lower case, with plain apostrophes and without other marks, hyphens apart."""
    lowered = re.sub(r"[’`´]", "'", text.lower())
    return re.sub(r"\s+", " ", re.sub(r"[^\w' -]+", " ", lowered)).strip()


def find_answer(text: str) -> Answer | None:
    """Return how an utterance answers a yes-or-no question; None: it does not."""
    utterance = normalise(text)
    # No before yes: "no, that's fine" refuses, and a refusal taken for consent does more harm than the reverse.
    if _I_DO_NOT.search(utterance):
        return Answer.NO
    if _STARTS_NO.match(utterance) and not _NOT_A_NO.match(utterance):
        return Answer.NO
    if _STARTS_YES.match(utterance):
        return Answer.NO if _TAKES_BACK.search(utterance) else Answer.YES
    return None


def is_repeat_request(text: str) -> bool:
    """Return whether the caller asks to hear the last words again."""
    return bool(_REPEAT.search(normalise(text)))
