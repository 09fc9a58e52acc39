"""What a request says: the step's lines, the results so far, and the arguments that the caller's words hold for a tool.

The engine writes a step's prompt in a fixed form, so that its lines can be found by patterns. Arguments are taken from
the caller's words by what the tool's schema asks for; nothing is made up.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from callagent.models.protocol import Message, Tool
from callagent.models.rules.entities import (
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

_SAY = re.compile(r"^\W*Say:\s*(.+?)\s*$", re.MULTILINE)
_OTHERWISE = re.compile(r"^\W*Otherwise say:\s*(.+?)\s*$", re.MULTILINE)
_QUOTED = re.compile(
    r"\b(?:say|ask|tell (?:the )?(?:user|caller|customer))\b[^\n\"“.]{0,40}[\"“]([^\"”]+)[\"”]", re.IGNORECASE
)
_TODAY = re.compile(r"\b(?:today is|today's date is|current date(?: is)?:?|date:)\s+([^\n.]+)", re.IGNORECASE)
_SILENT = re.compile(
    r"\b(?:user|caller|customer)\b.{0,20}\b(?:silent|silence|said nothing|not (?:said|speaking))\b", re.I
)
_TOPIC = re.compile(
    r"^faq_id: (?P<name>.*)\nfaq_example_questions: (?P<examples>.*)\nfaq_description: (?P<content>(?s:.*?))"
    r"^faq_instructions:(?P<instructions>(?s:.*?))(?=^faq_id:|\Z)",
    re.MULTILINE,
)
_MAX_CHARACTERS = 1000
"""Of the caller's words; who says more in one go is not understood better."""
_CUT_MARK = "…"
"""The engine's end of words that the caller interrupted."""
_NEEDS = re.compile(r"^- (?P<tool>\w+): .*\(needs (?P<entities>[\w, -]+)\)$", re.MULTILINE)
_NOT_COLLECTED = re.compile(r"^- (?P<name>\w+) \((?P<type>\w+), not collected", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Topic:
    """A retrieved topic."""

    name: str
    examples: str
    content: str
    instructions: str
    """What to do about it; it may name functions."""


@dataclass(frozen=True, slots=True)
class Result:
    """A function called since the caller's last words, and what it answered."""

    name: str
    arguments: Mapping[str, Any]
    content: str


@dataclass(frozen=True, slots=True)
class Situation:
    prompt: str
    """The step's prompt; outside flows the project's rules."""
    in_step: bool
    said: str
    """The caller's last words; empty: silence."""
    turn_begun: bool
    """False: the agent is to speak of its own accord, the caller's last words were answered."""
    last_agent: str
    """The agent's last words."""
    results: tuple[Result, ...]
    notes: str
    """System messages since the caller's last words: what happened meanwhile."""
    topics: tuple[Topic, ...]
    today: date | None

    @classmethod
    def read(cls, messages: Sequence[Message]) -> Situation:
        system = [str(message.get("content") or "") for message in messages if message["role"] == "system"]
        in_step = len(messages) > 1 and messages[-1]["role"] == "system"
        dialogue = [message for message in messages if message["role"] != "system"]
        start = max((n for n, message in enumerate(dialogue) if message["role"] == "user"), default=-1)
        since = dialogue[start + 1 :]
        results = tuple(_results(since))
        spoken = [str(m["content"]) for m in dialogue if m["role"] == "assistant" and m.get("content")]
        said = str(dialogue[start].get("content") or "") if start >= 0 else ""
        return cls(
            prompt=system[-1] if system else "",
            in_step=in_step,
            said="" if _SILENT.search(said) else said[:_MAX_CHARACTERS],
            turn_begun=start >= 0 and not (since and since[-1]["role"] == "assistant"),
            last_agent=spoken[-1] if spoken else "",
            results=results,
            notes="\n".join(_notes(messages[:-1] if in_step else messages)),
            topics=tuple(
                Topic(**{k: v.strip() for k, v in m.groupdict().items()}) for m in _TOPIC.finditer(_head(system))
            ),
            today=_today(system),
        )

    @property
    def say(self) -> str:
        """What the step says on entering; empty: it gives no words."""
        lines = _SAY.findall(self.prompt)
        if not lines and self.in_step:
            lines = _QUOTED.findall(self.prompt)[:1]
        return " ".join(lines)

    @property
    def otherwise(self) -> str:
        """What the step says when the caller was not understood."""
        return " ".join(_OTHERWISE.findall(self.prompt))

    @property
    def last_words(self) -> str:
        """What the agent said last, where the caller let it finish, else what it was to say."""
        return self.say or self.last_agent if self.last_agent.endswith(_CUT_MARK) else self.last_agent or self.say

    def needs(self, tool: str) -> frozenset[str]:
        """The entities that the step's condition `tool` waits for."""
        for match in _NEEDS.finditer(self.prompt):
            if match["tool"] == tool:
                return frozenset(name.strip() for name in match["entities"].split(","))
        return frozenset()

    @property
    def next_entity(self) -> tuple[str, str]:
        """Name and type of what the step has to collect next; empty: nothing."""
        match = _NOT_COLLECTED.search(self.prompt)
        return (match["name"], match["type"]) if match else ("", "")

    def called(self, tool: Tool) -> bool:
        """Whether the tool was called since the caller's last words."""
        return any(result.name == tool["function"]["name"] for result in self.results)


def said_in(content: str) -> str:
    """What a function's result tells the caller: the lines that begin with `Say:`."""
    return " ".join(_SAY.findall(content))


def _head(system: Sequence[str]) -> str:
    return system[0] if system else ""


def _notes(messages: Sequence[Message]) -> Iterator[str]:
    """System messages behind the caller's last words; the first message is the project's own."""
    start = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=0)
    return (str(message["content"]) for message in messages[start + 1 :] if message["role"] == "system")


def _results(messages: Sequence[Message]) -> Iterator[Result]:
    calls = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls") or ()}
    for message in messages:
        if message["role"] == "tool" and (function := calls.get(message.get("tool_call_id"))):
            yield Result(function["name"], _arguments(function["arguments"]), str(message.get("content") or ""))


def _arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text or "{}")
    except ValueError:
        return {}
    return arguments if isinstance(arguments, dict) else {}


def _today(system: Sequence[str]) -> date | None:
    """The last date that a prompt gives as today's."""
    named = [match[1] for text in system for match in _TODAY.finditer(text)]
    return next((day for text in reversed(named) if (day := _written_date(text))), None)


def _written_date(text: str) -> date | None:
    """Only complete dates: a weekday alone says nothing without today."""
    return find_date(text, date(1900, 1, 1)) if re.search(r"\d{4}", text) else None


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
