"""Word error rate, and the normalising that makes two ways of writing the same words equal.

The rules are fixed: a change here makes every figure published before incomparable.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

_UNITS = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_UNITS)} | {word: 20 + 10 * n for n, word in enumerate(_TENS)}
_VALUES["oh"] = 0
_SCALES = {"hundred": 100, "thousand": 1000, "million": 1_000_000}
_ORDINALS = {
    "first": "1 st", "second": "2 nd", "third": "3 rd", "fourth": "4 th", "fifth": "5 th", "sixth": "6 th",
    "seventh": "7 th", "eighth": "8 th", "ninth": "9 th", "tenth": "10 th", "eleventh": "11 th", "twelfth": "12 th",
    "thirteenth": "13 th", "fourteenth": "14 th", "fifteenth": "15 th", "sixteenth": "16 th", "seventeenth": "17 th",
    "eighteenth": "18 th", "nineteenth": "19 th", "twentieth": "20 th", "thirtieth": "30 th",
    "fortieth": "40 th", "fiftieth": "50 th", "sixtieth": "60 th", "seventieth": "70 th", "eightieth": "80 th",
    "ninetieth": "90 th", "hundredth": "100 th", "thousandth": "1000 th",
}  # fmt: skip
_ORDINAL_UNITS = {
    "first": 1, "second": 2, "third": 3, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8, "ninth": 9,
}  # fmt: skip
_SUFFIXES = {1: "st", 2: "nd", 3: "rd"}
_FILLERS = {"uh", "um", "hm", "hmm", "mm", "mhm", "er", "erm", "ah"}
_CONTRACTIONS = (
    (r"\bwon't\b", "will not"), (r"\bcan't\b|\bcannot\b", "can not"), (r"\blet's\b", "let us"), (r"n't\b", " not"),
    (r"'re\b", " are"), (r"'ve\b", " have"), (r"'ll\b", " will"), (r"'m\b", " am"), (r"'d\b", " would"),
    (r"\b(it|that|what|he|she|there|here|where|who|how)'s\b", r"\1 is"), (r"'s\b", "s"),
)  # fmt: skip
_SAME = {
    "mister": "mr", "missus": "mrs", "doctor": "dr", "okay": "ok", "saint": "st", "street": "st", "avenue": "ave",
    "road": "rd", "goodbye": "good bye", "bye-bye": "bye bye", "colour": "color", "centre": "center",
    "cheque": "check", "favourite": "favorite", "voicemail": "voice mail", "email": "e mail", "mailbox": "mail box",
}  # fmt: skip


def normalise(text: str) -> list[str]:
    """The words of `text`: lower case, no punctuation, numbers as single digits, contractions written out."""
    text = unicodedata.normalize("NFKC", text).lower().replace("’", "'")
    text = re.sub(r"\[[^\]]*\]|\([^)]*\)", " ", text)
    text = re.sub(r"\$\s?(\d[\d,]*(?:\.\d+)?)", r"\1 dollars", text)
    text = re.sub(r"(\d),(?=\d{3}\b)", r"\1", text)
    text = text.replace("%", " percent ").replace("&", " and ")
    text = re.sub(r"\b([ap])\.?\s?m\b\.?", r"\1m", text)
    for pattern, written_out in _CONTRACTIONS:
        text = re.sub(pattern, written_out, text)
    text = re.sub(r"(?<=\d)(?=[a-z])", " ", text)
    words = [_SAME.get(word, word) for word in re.sub(r"[^a-z0-9 ]", " ", text).split()]
    words = [word for word in _numbers(words) if word not in _FILLERS]
    return " ".join(_apart(word) for word in words).split()


def errors(reference: Sequence[str], heard: Sequence[str]) -> int:
    """Words to be changed, added or taken out (Levenshtein)."""
    row = list(range(len(heard) + 1))
    for number, word in enumerate(reference, 1):
        before, row[0] = row[0], number
        for place, other in enumerate(heard, 1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (word != other))
    return row[-1]


def _apart(word: str) -> str:
    """Digits one by one: nobody can hear how they were grouped."""
    return " ".join(word) if word.isdigit() else word


def _numbers(words: Sequence[str]) -> list[str]:
    """Number words as digits: `twenty four` is 24, `five five` is 5 5."""
    found: list[str] = []
    value: int | None = None
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word == "and" and value and value % 100 == 0 and following in _VALUES:
            # "One hundred and five" is "one hundred five".
            continue
        if value is not None and word in _ORDINAL_UNITS and value >= 20 and value % 10 == 0:
            unit = _ORDINAL_UNITS[word]
            found.append(f"{value + unit} {_SUFFIXES.get(unit, 'th')}")
            value = None
        elif word in _SCALES and (value is not None or word == "hundred"):
            value = _scaled(1 if value is None else value, _SCALES[word])
        elif word in _VALUES:
            joined = _join(value, _VALUES[word])
            if joined is None:
                found.append(str(value))
            value = _VALUES[word] if joined is None else joined
        else:
            found += [str(value)] if value is not None else []
            value = None
            found.append(_ORDINALS.get(word, word))
    return " ".join([*found, *([str(value)] if value is not None else [])]).split()


def _scaled(value: int, scale: int) -> int:
    below = value % 1000 if scale == 100 else value
    return value - below + below * scale


def _join(value: int | None, more: int) -> int | None:
    """The number with `more` said after it; None: another number begins."""
    if value is None:
        return more
    fits = (value % 100 == 0 and value > 0) or (value % 10 == 0 and value % 100 >= 20 and 0 < more < 10)
    return value + more if fits else None
