"""English numbers, dates, times and amounts in words."""

from __future__ import annotations

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
LARGEST = 10**15


def cardinal(number: int) -> str:
    """`1250` is "one thousand two hundred fifty". Raises `ValueError` from 10¹⁵ on."""
    if number < 0:
        return f"minus {cardinal(-number)}"
    if number >= LARGEST:
        raise ValueError(f"{number} is too large")
    for scale, name in _SCALES:
        if number >= scale:
            more = f" {cardinal(number % scale)}" if number % scale else ""
            return f"{cardinal(number // scale)} {name}{more}"
    if number < 20:
        return _SMALL[number]
    return _TENS[number // 10] + (f"-{_SMALL[number % 10]}" if number % 10 else "")


def ordinal(number: int) -> str:
    """`21` is "twenty-first"."""
    words = cardinal(number)
    at = max(words.rfind(" "), words.rfind("-")) + 1
    last = words[at:]
    if last in _ORDINALS:
        return words[:at] + _ORDINALS[last]
    return words[:at] + (f"{last[:-1]}ieth" if last.endswith("y") else f"{last}th")


def year(number: int) -> str:
    """`1999` is "nineteen ninety-nine"."""
    high, low = divmod(number, 100)
    if not 1100 <= number < 2100 or 2000 <= number < 2010:
        return cardinal(number)
    if not low:
        return f"{cardinal(high)} hundred"
    return f"{cardinal(high)} {cardinal(low) if low >= 10 else f'oh {_SMALL[low]}'}"


def digits(text: str) -> str:
    """Every letter and digit on its own: `4B` is "four B"."""
    return " ".join(_SMALL[int(one)] if one in "0123456789" else one for one in text if one.isalnum())


def decimal(text: str) -> str:
    """`-3.14` is "minus three point one four"."""
    whole, _, part = text.partition(".")
    words = f"minus {cardinal(abs(int(whole)))}" if whole.startswith("-") else cardinal(int(whole))
    return f"{words} point {digits(part)}" if part else words


def date(day: int, month: int, in_year: int | None = None) -> str:
    """`14, 3, 2026` is "March fourteenth, twenty twenty-six"."""
    words = f"{MONTHS[month - 1]} {ordinal(day)}"
    return words if in_year is None else f"{words}, {year(in_year)}"


def time_of_day(hour: int, minute: int) -> str:
    """`19, 5` is "seven oh five PM"."""
    half = "AM" if hour < 12 else "PM"
    return f"{clock(hour % 12 or 12, minute)} {half}"


def clock(hour: int, minute: int) -> str:
    """`7, 30` is "seven thirty"."""
    past = "" if not minute else f" oh {_SMALL[minute]}" if minute < 10 else f" {cardinal(minute)}"
    return cardinal(hour) + past


def money(symbol: str, amount: str) -> str:
    """`$, 1.50` is "one dollar and fifty cents"."""
    one, many, small_one, small_many = CURRENCIES[symbol]
    whole, _, part = amount.partition(".")
    if part and len(part) != 2:
        return f"{decimal(amount)} {many}"
    units, parts = int(whole), int(part or 0)
    small = f"{cardinal(parts)} {small_one if parts == 1 else small_many}"
    if not units and parts:
        return small
    large = f"{cardinal(units)} {one if units == 1 else many}"
    return f"{large} and {small}" if parts else large
