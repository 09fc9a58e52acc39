"""From the caller's words to a tool's arguments, by what the tool's schema asks for. Nothing is made up."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from callagent.models.protocol import Tool
from callagent.models.understanding import (
    Answer,
    find_answer,
    find_date,
    find_digits,
    find_email,
    find_money,
    find_name,
    find_number,
    find_part_of_day,
    find_spelling,
    find_time,
    part_of_day,
)

_MIN_PHONE_DIGITS = 7
_MAX_CLOCK_DIGITS = 4
_PARTS_OF_DAY = {"morning", "afternoon", "evening", "night"}

_DATE = re.compile(r"\b(?:date|day|birthday)\b")
_TIME = re.compile(r"\b(?:time|hour|o'clock)\b")
_PHONE = re.compile(r"\b(?:phone|telephone|mobile|cell|callback)\b")
_EMAIL = re.compile(r"\be-?mail\b")
_NAME = re.compile(r"\b(?:(?:first|last|full|family|caller|customer|guest|patient|contact|person)(?:'s)? ?)?name\b")
_DIGITS = re.compile(
    r"\b(?:number|digits?|code|(?:member|customer|patient|account|order|booking) id|zip|postal|postcode|pin|"
    r"reference)\b"
)
_MONEY = re.compile(r"\b(?:amount|price|money|dollars|euros|sum|cost|budget)\b")
_OWN_WORDS = re.compile(
    r"\b(?:reason|summary|details?|request|message|question|issue|problem|comment|feedback|query)\b"
)
_AGENT_WORDS = re.compile(r"\b(?:utterance|what to say)\b")
_OPTIONS = re.compile(r"(?:one of|either|options?:)\s*:?\s*([\w' -]+(?:(?:,| or )[\w' -]+)+)", re.IGNORECASE)
_ADDRESS = re.compile(r"\b(?:address|street|city|town)\b")


@dataclass(frozen=True, slots=True)
class Hearing:
    """One utterance of the caller, and what it is to be understood against."""

    said: str
    today: date
    asked: str = ""
    """The agent's question, where bare words may answer it."""


@dataclass(frozen=True, slots=True)
class Filled:
    """A tool's arguments as far as the caller gave them."""

    arguments: dict[str, Any]
    complete: bool
    """All that the tool requires is there."""
    specific: bool
    """Something was said that only an argument explains: digits, a day, an option."""


def fill(tool: Tool, hearing: Hearing) -> Filled:
    """The arguments that the caller's words hold for `tool`."""
    schema = tool["function"].get("parameters") or {}
    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    arguments: dict[str, Any] = {}
    specific = False
    for name, wanted in properties.items():
        value, is_specific = extract(name, wanted, hearing)
        if value is not None:
            arguments[name] = value
            specific = specific or is_specific
    return Filled(arguments, set(schema.get("required") or ()) <= arguments.keys(), specific)


def extract(name: str, wanted: Mapping[str, Any], hearing: Hearing) -> tuple[Any, bool]:
    """A property's value and whether the words say it unmistakably; None: they do not hold it."""
    hint = f"{name.replace('_', ' ')} {wanted.get('description', '')}".lower()
    if options := _options(wanted):
        return _option(options, hearing.said), True
    match wanted.get("type"):
        case "integer":
            number = _free_number(hearing.said)
            return (int(number) if number is not None else None), True
        case "number":
            return (find_money(hearing.said) if _MONEY.search(hint) else None) or _free_number(hearing.said), True
        case "boolean":
            answer = find_answer(hearing.said)
            return (None if answer is None else answer is Answer.YES), False
        case _:
            return _text(hint, hearing)


def _text(hint: str, hearing: Hearing) -> tuple[str | None, bool]:
    said = hearing.said
    if _AGENT_WORDS.search(hint):
        return "", False
    if _EMAIL.search(hint):
        return find_email(said) or None, True
    if _PHONE.search(hint):
        digits = find_digits(said)
        return (digits if len(digits) >= _MIN_PHONE_DIGITS else None), True
    if "yyyy-mm-dd" in hint or (_DATE.search(hint) and not _DIGITS.search(hint)):
        day = find_date(said, hearing.today)
        return (day.isoformat() if day else None), True
    if "hh:mm" in hint or (_TIME.search(hint) and not _DIGITS.search(hint)):
        moment = find_time(said)
        return (f"{moment:%H:%M}" if moment else None), True
    if _DIGITS.search(hint):
        return _digits(said), True
    if _NAME.search(hint):
        asked = "name" in hearing.asked.lower()
        return find_name(said, asked=asked) or (find_spelling(said).capitalize() if asked else "") or None, True
    if _ADDRESS.search(hint):
        return (said if _ADDRESS.search(hearing.asked.lower()) else None), False
    return (said if said and _OWN_WORDS.search(hint) else None), False


def _digits(said: str) -> str | None:
    """Digits that are not a day or a time of day."""
    digits = find_digits(said)
    if len(digits) <= _MAX_CLOCK_DIGITS and (find_time(said) or find_date(said, date(2000, 1, 1))):
        return None
    return digits or None


def _free_number(said: str) -> int | float | None:
    number = find_number(said)
    if number is not None and (find_time(said) or find_date(said, date(2000, 1, 1))):
        # "a table for four at seven" holds two numbers; the first is free only when it is not the hour itself.
        moment = find_time(said)
        return None if moment is None or number in {moment.hour, moment.hour - 12} else number
    return number


def _options(wanted: Mapping[str, Any]) -> list[str]:
    if wanted.get("enum"):
        return [str(option) for option in wanted["enum"]]
    listed = _OPTIONS.search(str(wanted.get("description", ""))) if wanted.get("type", "string") == "string" else None
    return [option.strip(" '") for option in re.split(r",| or ", listed[1]) if option.strip(" '")] if listed else []


def _option(options: list[str], said: str) -> str | None:
    """The option that is named; of several the longest. A time of day names its part of the day."""
    lowered = f" {re.sub(r'[^a-z0-9]+', ' ', said.lower())} "
    plain = {option: re.sub(r"[^a-z0-9]+", " ", option.lower()).strip() for option in options}
    named = [option for option, words in plain.items() if words and f" {words} " in lowered]
    if named:
        return max(named, key=len)
    if not _PARTS_OF_DAY & set(plain.values()):
        return None
    moment = find_time(said)
    part = find_part_of_day(said) or (part_of_day(moment) if moment else "")
    return next((option for option, words in plain.items() if words == part), None)
