"""Text on its way to a voice: numbers and dates in words, markup (SSML), and cuts at the ends of sentences.

A voice should not have to guess what `$1.50` or `03/04` is: `speakable` writes it out, in English only. `ssml_content`
and `plain_text` prepare a text for voices that read SSML and for those that do not; `split_sentences` and
`split_to_size` cut it. All are pure functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from html import escape, unescape
from xml.etree import ElementTree

_SMALL = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SCALES = [(10**12, "trillion"), (10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred")]
_ORDINALS = {
    "one": "first", "two": "second", "three": "third", "five": "fifth", "eight": "eighth", "nine": "ninth",
    "twelve": "twelfth",
}  # fmt: skip
MONTHS = [
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
]  # fmt: skip
CURRENCIES = {
    "$": ("dollar", "dollars", "cent", "cents"),
    "€": ("euro", "euros", "cent", "cents"),
    "£": ("pound", "pounds", "penny", "pence"),
}
TOO_LARGE = 10**15
"""The least number that is left as digits: nobody would follow its words."""


def cardinal(number: int) -> str:
    """Return a number in words: `1250` is "one thousand two hundred fifty". Raises `ValueError` from 10¹⁵ on."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number >= TOO_LARGE:
        raise ValueError(f"{number} is too large")
    for scale, name in _SCALES:
        if number >= scale:
            more = f" {cardinal(number % scale)}" if number % scale else ""
            return f"{cardinal(number // scale)} {name}{more}"
    if number < 20:
        return _SMALL[number]
    return _TENS[number // 10] + (f"-{_SMALL[number % 10]}" if number % 10 else "")


def ordinal(number: int) -> str:
    """Return the ordinal of a number in words: `21` is "twenty-first"."""
    words = cardinal(number)
    at = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[at:]
    if last in _ORDINALS:
        return words[:at] + _ORDINALS[last]
    return words[:at] + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def year_words(number: int) -> str:
    """Return a year in words: `1999` is "nineteen ninety-nine"."""
    # "two thousand five", but "twenty ten". Years before 1100 and from 2100 on are not read as two pairs of digits.
    high, low = divmod(number, 100)
    if not 1100 <= number < 2100 or 2000 <= number < 2010:
        return cardinal(number)
    if not low:
        return f"{cardinal(high)} hundred"
    return f"{cardinal(high)} {cardinal(low) if low >= 10 else f'oh {_SMALL[low]}'}"


def spell_out(text: str) -> str:
    """Return letters and digits one by one, digits in words: `4B` is "four B"."""
    return " ".join(_SMALL[int(one)] if one in "0123456789" else one for one in text if one.isalnum())


def decimal_words(text: str) -> str:
    """Return a decimal number in words: `-3.14` is "minus three point one four"."""
    whole, _, part = text.partition(".")
    words = f"minus {cardinal(abs(int(whole)))}" if whole.startswith("-") else cardinal(int(whole))
    return f"{words} point {spell_out(part)}" if part else words


def date_words(day: int, month: int, in_year: int | None = None) -> str:
    """Return a date in words: `14, 3, 2026` is "March fourteenth, twenty twenty-six"."""
    words = f"{MONTHS[month - 1]} {ordinal(day)}"
    return words if in_year is None else f"{words}, {year_words(in_year)}"


def time_words(hour: int, minute: int) -> str:
    """Return a time of the 24-hour clock in words: `19, 5` is "seven oh five PM"."""
    suffix = "AM" if hour < 12 else "PM"
    return f"{clock_words(hour % 12 or 12, minute)} {suffix}"


def clock_words(hour: int, minute: int) -> str:
    """Return hour and minute in words: `7, 30` is "seven thirty"."""
    minutes = "" if not minute else f" oh {_SMALL[minute]}" if minute < 10 else f" {cardinal(minute)}"
    return cardinal(hour) + minutes


def money_words(symbol: str, amount: str) -> str:
    """Return an amount in words: `$, 1.50` is "one dollar and fifty cents"."""
    one, many, small_one, small_many = CURRENCIES[symbol]
    # Only two places are cents: "$1.5" and "$0.999" are read as decimal numbers.
    whole, _, part = amount.partition(".")
    if part and len(part) != 2:
        return f"{decimal_words(amount)} {many}"
    units, parts = int(whole), int(part or 0)
    small = f"{cardinal(parts)} {small_one if parts == 1 else small_many}"
    if not units and parts:
        return small
    large = f"{cardinal(units)} {one if units == 1 else many}"
    return f"{large} and {small}" if parts else large


MAX_NUMBER_DIGITS = 4
"""Digits in a row without separators; more are an identifier, read one by one."""
_GROUP_SEPARATOR = ", "
"""Makes the voice pause shortly between the groups of a telephone number."""
_MONTH_FIRST = ("US", "")
"""Regions in which `03/04` is in March; empty: a language without a region."""
_MONTH_NAMES = "|".join([*MONTHS, *(month[:3] for month in MONTHS)])
_UNITS = {
    "km": "kilometers", "kg": "kilograms", "cm": "centimeters", "mm": "millimeters", "lb": "pounds", "lbs": "pounds",
    "mph": "miles per hour", "km/h": "kilometers per hour", "°C": "degrees Celsius", "°F": "degrees Fahrenheit",
    "°": "degrees", "min": "minutes", "hrs": "hours", "GB": "gigabytes", "MB": "megabytes",
}  # fmt: skip

ToWords = Callable[[re.Match[str]], str]
"""Returns the words for a match of the pattern; raises `ValueError` where the match only looks like a date, time …"""
Rule = tuple[re.Pattern[str], ToWords]


def english_words(text: str, region: str = "US") -> str:
    """Return `text` with English words for numbers; `region` decides whether `03/04` is in March or in April."""
    for pattern, words in (*_FIRST_RULES, (_SLASH_DATE, lambda match: _slash_date(match, region)), *_RULES):
        text = _replace_matches(pattern, words, text)
    return re.sub(r"[ \t]{2,}", " ", text).strip()


def _replace_matches(pattern: re.Pattern[str], words: ToWords, text: str) -> str:
    """Replace matches of the pattern by words. A match that `words` rejects is left as it is (31 June, 10²⁰)."""

    def replace(match: re.Match[str]) -> str:
        try:
            return words(match)
        except ValueError:
            return match[0]

    return pattern.sub(replace, text)


def _telephone(match: re.Match[str]) -> str:
    # The number is read in the groups in which it is written; ten digits in a row are grouped as in North America.
    groups = re.findall(r"\d+", match[0])
    if len(groups) == 1 and len(groups[0]) == 10:
        number = groups[0]
        groups = [number[:3], number[3:6], number[6:]]
    if sum(map(len, groups)) < 7:
        raise ValueError("not a telephone number")
    return ("plus " if match[0].startswith("+") else "") + _GROUP_SEPARATOR.join(map(spell_out, groups))


def _iso_date(match: re.Match[str]) -> str:
    return _date(int(match[3]), int(match[2]), int(match[1]))


def _slash_date(match: re.Match[str], region: str) -> str:
    first, second, in_year = int(match[1]), int(match[2]), int(match[3]) if match[3] else None
    # `1/2` alone is a half. A date has a year, a leading zero, or a word such as "on" before it.
    if in_year is None and match[1][0] != "0" and not _BEFORE_DATE.search(match.string, 0, match.start()):
        raise ValueError("a fraction")
    day, month = (second, first) if region in _MONTH_FIRST else (first, second)
    # A month above twelve must be the day: the date is in the order of another region.
    return _date(day, month, in_year) if month <= 12 else _date(month, day, in_year)


def _fraction(match: re.Match[str]) -> str:
    if words := _FRACTIONS.get(match[0]):
        return words
    return f"{cardinal(int(match[1]))} over {cardinal(int(match[2]))}"


def _named_date(match: re.Match[str]) -> str:
    month = _month(match["month"])
    in_year = match["year"]
    return _date(int(match["day"]), month, int(in_year) if in_year else None)


def _date(day: int, month: int, in_year: int | None) -> str:
    import datetime

    # Raises `ValueError` for a day that does not exist; 2024 is a leap year, so that the 29th of February does.
    datetime.date(in_year or 2024, month, day)
    return date_words(day, month, in_year)


def _month(name: str) -> int:
    return next(number for number, month in enumerate(MONTHS, 1) if month.lower().startswith(name.lower()[:3]))


def _time(match: re.Match[str]) -> str:
    hour, minute, half = int(match[1]), int(match[2] or 0), match[3]
    if hour > 23 or minute > 59 or (half and not 1 <= hour <= 12):
        raise ValueError("not a time")
    if half:
        return f"{clock_words(hour, minute)} {half[0].upper()}M"
    return time_words(hour, minute)


def _money(match: re.Match[str]) -> str:
    amount = match[2].replace(",", "")
    if scale := match[3]:
        names = {"k": "thousand", "m": "million", "b": "billion"}
        return f"{decimal_words(amount)} {names.get(scale.lower(), scale.lower())} {CURRENCIES[match[1]][1]}"
    return money_words(match[1], amount)


def _number(match: re.Match[str]) -> str:
    # A long number without separators, or one with a leading zero, is an identifier and is read digit by digit.
    text = match[0].replace(",", "")
    whole = text.lstrip("-").partition(".")[0]
    if (
        "." not in text
        and "," not in match[0]
        and (len(whole) > MAX_NUMBER_DIGITS or (whole[0] == "0" and len(whole) > 1))
    ):
        return spell_out(text)
    return decimal_words(text)


def _address(match: re.Match[str]) -> str:
    text = re.sub(r"^https?://(?:www\.)?|/$", "", match[0])
    for sign, word in (("@", " at "), (".", " dot "), ("/", " slash "), ("-", " dash "), ("_", " underscore ")):
        text = text.replace(sign, word)
    return text


def _link(match: re.Match[str]) -> str:
    return match[1]


def _code(match: re.Match[str]) -> str:
    # "AB12" is spelt, "COVID-19" is a word with a number.
    if not re.search(r"[A-Z]", match[0]) or re.search(r"[A-Z]{4}", match[0]):
        raise ValueError("not a code")
    return spell_out(match[0])


_BEFORE_DATE = re.compile(r"\b(?:on|by|until|before|after|since|for) $", re.I)
_FRACTIONS = {
    "1/2": "one half", "1/3": "one third", "2/3": "two thirds", "1/4": "one quarter", "3/4": "three quarters",
    "24/7": "twenty-four seven",
}  # fmt: skip
# The order of all rules matters, because each rule works on the output of the ones before it. Longer and more certain
# forms come first (an address before its numbers, a telephone number before plain digits), plain numbers last:
# otherwise a shorter form would cut a longer one apart.
_SLASH_DATE = re.compile(r"(?<![\d/])(\d{1,2})/(\d{1,2})(?:/(\d{4}))?(?![\d/])")
_FIRST_RULES: tuple[Rule, ...] = (
    # Markdown, which models write for the eye: links, list marks and headings, emphasis.
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
    (re.compile(r"\b(\d{1,6})(?:st|nd|rd|th)\b"), lambda match: ordinal(int(match[1]))),
    (re.compile(r"\b(?=[A-Z0-9-]*\d)[A-Z0-9]+(?:-[A-Z0-9]+)*\b(?![.,]\d)"), _code),
    (re.compile(r"(?<=\b[Ii]n )(1[1-9]\d\d|20\d\d)\b(?![.,]\d)"), lambda match: year_words(int(match[1]))),
    (re.compile(r"(?<=\d) ?[-–] ?(?=\d)"), lambda match: " to "),
    (re.compile(r"(?<![\w.])-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?![\w])"), _number),
    (re.compile(r" & "), lambda match: " and "),
)


_LANGUAGES: dict[str, Callable[[str, str], str]] = {"en": english_words}
"""Primary language -> the function that puts words into a text, given the text and its region."""


def speakable(text: str, language: str) -> str:
    """Return `text` with numbers, dates, times, money and the like in words; unchanged in any language but English.

    Text with markup is left alone: its author has decided how it is to be read.
    """
    primary, _, region = language.partition("-")
    words = _LANGUAGES.get(primary.lower())
    return text if words is None or is_ssml(text) else words(text, region.upper())


TAGS = ("break", "emphasis", "p", "phoneme", "prosody", "s", "say-as", "sub")
"""Elements of W3C SSML 1.1 that every voice with SSML reads; other elements are removed."""
_TAG = re.compile(r"</?([a-zA-Z][\w:-]*)(?:\s[^<>]*)?/?>")
_ELEMENT = re.compile(r"<(sub|say-as)\b([^<>]*)>([^<>]*)</\1>", re.I)
_SPELT_OUT = ("digits", "telephone", "characters", "spell-out", "verbatim")
"""Values of `interpret-as` that ask for one character after the other."""
_MAX_SEARCHED_CHARACTERS = 10_000
"""Only this much of the beginning of a text is searched for a tag, to bound the time."""


def is_ssml(text: str) -> bool:
    """Return whether `text` has a tag of SSML. A lone `<` is no tag."""
    return any(match[1].lower() in (*TAGS, "speak") for match in _TAG.finditer(text[:_MAX_SEARCHED_CHARACTERS]))


def plain_text(text: str) -> str:
    """Return `text` without markup, for a voice that does not read SSML."""
    if not is_ssml(text):
        return text
    text = _ELEMENT.sub(_words_of_element, text)
    text = re.sub(r"<(?:break|/?p|/?s)\b[^<>]*>", " ", text)
    return re.sub(r"\s+", " ", unescape(_TAG.sub("", text))).strip()


def ssml_content(text: str) -> str:
    """Return the content of a `<speak>` element for `text`, without unknown tags; plain text if not well-formed."""
    if not is_ssml(text):
        return escape(text, quote=False)
    kept = _TAG.sub(lambda match: match[0] if match[1].lower() in TAGS else "", text)
    # Ampersands of a text that was written by hand, or by a model, are seldom escaped.
    kept = re.sub(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)", "&amp;", kept)
    try:
        ElementTree.fromstring(f"<speak>{kept}</speak>")
    except ElementTree.ParseError:
        # A provider would refuse the whole utterance for one tag that is not closed.
        return escape(plain_text(text), quote=False)
    return kept


def escape_attribute(value: str) -> str:
    """Return `value` escaped for use between double quotes."""
    return escape(value, quote=False).replace('"', "&quot;")


def _words_of_element(match: re.Match[str]) -> str:
    """Return what is spoken for a `<sub>` or `<say-as>`: the alias, or the characters one by one."""
    attributes = dict(re.findall(r"""([\w-]+)\s*=\s*["']([^"']*)["']""", match[2]))
    if match[1].lower() == "sub":
        return str(attributes.get("alias", match[3]))
    if attributes.get("interpret-as") in _SPELT_OUT:
        return " ".join(character for character in match[3] if character.isalnum())
    return str(match[3])


MAX_SENTENCE = 280
"""Characters of the longest sentence that is not cut: about 20 s of speech."""
_END = re.compile(r"""[.!?…]+["”’')\]]*\s+(?=\S)""")
# The full stop after a title, an abbreviation or an initial ends no sentence.
_NO_END = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|No|Nr|vs|approx|[A-Z]))\.$")
_CLAUSE = re.compile(r"[,;:—]\s+")


def split_sentences(text: str) -> list[str]:
    """Return the sentences of `text` in order; longer ones than `MAX_SENTENCE` are cut at a clause or a word."""
    found = [sentence for line in text.splitlines() for sentence in _split_line(line.strip())]
    return [part for sentence in found for part in _cut_at_clauses(sentence)]


def _split_line(line: str) -> list[str]:
    parts, start = [], 0
    for match in _END.finditer(line):
        sentence = line[start : match.end()].rstrip()
        # A sentence does not end where the text continues in lower case ("e.g. this").
        if line[match.end()].islower() or _NO_END.search(sentence):
            continue
        parts.append(sentence)
        start = match.end()
    return [part for part in [*parts, line[start:]] if part]


def _cut_at_clauses(sentence: str) -> list[str]:
    parts = []
    while len(sentence) > MAX_SENTENCE:
        clauses = [match.end() for match in _CLAUSE.finditer(sentence, 0, MAX_SENTENCE)]
        at = clauses[-1] if clauses else sentence.rfind(" ", 1, MAX_SENTENCE) + 1 or MAX_SENTENCE
        parts.append(sentence[:at].rstrip())
        sentence = sentence[at:].lstrip()
    return [*parts, sentence] if sentence else parts


def split_to_size(text: str, max_bytes: int) -> list[str]:
    """Return `text` in as few parts as fit into `max_bytes` of UTF-8 each, cut at ends of sentences where possible.

    A text that has to be cut loses its markup, because an element may span several sentences.
    """
    if _byte_count(text) <= max_bytes:
        return [text]
    found: list[str] = []
    for sentence in split_sentences(plain_text(text) if is_ssml(text) else text):
        for piece in _cut_to_size(sentence, max_bytes):
            if found and _byte_count(found[-1]) + 1 + _byte_count(piece) <= max_bytes:
                found[-1] = f"{found[-1]} {piece}"
            else:
                found.append(piece)
    return found


def _cut_to_size(sentence: str, max_bytes: int) -> list[str]:
    """Halve a sentence until each part fits: in some scripts 280 characters have more than `max_bytes` bytes."""
    if _byte_count(sentence) <= max_bytes:
        return [sentence]
    middle = len(sentence) // 2
    return [*_cut_to_size(sentence[:middle], max_bytes), *_cut_to_size(sentence[middle:], max_bytes)]


def _byte_count(text: str) -> int:
    """Return the number of bytes of a text in UTF-8."""
    return len(text.encode())
