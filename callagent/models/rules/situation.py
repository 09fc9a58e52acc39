"""Reading of a request: the step's lines, the results so far, and a tool's arguments in the caller's words.

The engine writes a step's prompt in a fixed form, so that its lines can be found by patterns. The tool's schema says
which arguments to look for in the caller's words; none is made up.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date

from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at
from callagent.models.protocol import Message, Tool, arguments_of
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

# Lines of a prompt that the engine writes, or the project's author by the convention in the package's docstring.
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
"""Characters of an utterance that are read; more would take time and not be understood better."""
_CUT_MARK = "…"
"""The engine ends the agent's words with this mark if the caller interrupted them."""
_NEEDS = re.compile(r"^- (?P<tool>\w+): .*\(needs (?P<entities>[\w, -]+)\)$", re.MULTILINE)
_NOT_COLLECTED = re.compile(r"^- (?P<name>\w+) \((?P<type>\w+), not collected", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic that the engine retrieved for the caller's words and wrote into the prompt."""

    name: str
    examples: str
    content: str
    instructions: str
    """What the agent is to do about the topic; functions may be named."""


@dataclass(frozen=True, slots=True)
class Result:
    """A function call since the caller's last words, with its result."""

    name: str
    arguments: JsonObject
    content: str


@dataclass(frozen=True, slots=True)
class Situation:
    """The state of a conversation, as a request shows it."""

    prompt: str
    """The step's prompt; outside of flows, the project's rules."""
    in_step: bool
    """Whether the prompt is a step's."""
    utterance: str
    """The caller's last words; empty: silence."""
    turn_begun: bool
    """Whether the caller's last words are still to be answered; if not, the agent speaks of its own accord."""
    last_agent: str
    """The agent's last words."""
    results: tuple[Result, ...]
    notes: str
    """System messages since the caller's last words, which tell of events."""
    topics: tuple[Topic, ...]
    today: date | None
    """The date that the prompt names as today's; None: it names none."""

    @classmethod
    def read(cls, messages: Sequence[Message]) -> Situation:
        """Read the situation from a request's messages."""
        system = [str(message.get("content") or "") for message in messages if message["role"] == "system"]
        # The engine puts a step's prompt last, behind the conversation; the project's rules stand first.
        in_step = len(messages) > 1 and messages[-1]["role"] == "system"
        dialogue = [message for message in messages if message["role"] != "system"]
        start = max((n for n, message in enumerate(dialogue) if message["role"] == "user"), default=-1)
        since = dialogue[start + 1 :]
        results = tuple(_function_results(since))
        spoken = [str(m["content"]) for m in dialogue if m["role"] == "assistant" and m.get("content")]
        utterance = str(dialogue[start].get("content") or "") if start >= 0 else ""
        return cls(
            prompt=system[-1] if system else "",
            in_step=in_step,
            utterance="" if _SILENT.search(utterance) else utterance[:_MAX_CHARACTERS],
            # Once the agent has spoken, the caller's words are answered.
            turn_begun=start >= 0 and not (since and since[-1]["role"] == "assistant"),
            last_agent=spoken[-1] if spoken else "",
            results=results,
            notes="\n".join(_notes(messages[:-1] if in_step else messages)),
            topics=tuple(
                Topic(**{k: v.strip() for k, v in m.groupdict().items()}) for m in _TOPIC.finditer(_first(system))
            ),
            today=_today(system),
        )

    @property
    def say(self) -> str:
        """The words that the step says on entering; empty: none."""
        lines = _SAY.findall(self.prompt)
        # Prompts that were not written for the rules have the words in quotation marks: `Ask the caller: "…"`.
        if not lines and self.in_step:
            lines = _QUOTED.findall(self.prompt)[:1]
        return " ".join(lines)

    @property
    def otherwise(self) -> str:
        """The words that the step says if the caller was not understood."""
        return " ".join(_OTHERWISE.findall(self.prompt))

    @property
    def last_words(self) -> str:
        """The agent's last words; if the caller interrupted them, the words that it was to say."""
        return self.say or self.last_agent if self.last_agent.endswith(_CUT_MARK) else self.last_agent or self.say

    def needed_entities(self, tool: str) -> frozenset[str]:
        """Return the entities that the step's condition `tool` needs; empty if it is not a condition."""
        for match in _NEEDS.finditer(self.prompt):
            if match["tool"] == tool:
                return frozenset(name.strip() for name in match["entities"].split(","))
        return frozenset()

    @property
    def next_entity(self) -> tuple[str, str]:
        """Name and type of the entity that the step has to collect next; both empty: none."""
        match = _NOT_COLLECTED.search(self.prompt)
        return (match["name"], match["type"]) if match else ("", "")

    def has_called(self, tool: Tool) -> bool:
        """Return whether the tool was called since the caller's last words."""
        return any(result.name == tool["function"]["name"] for result in self.results)


def lines_to_say(content: str) -> str:
    """Return the words of a function's result for the caller, which are its lines with `Say:`."""
    return " ".join(_SAY.findall(content))


def _first(system: Sequence[str]) -> str:
    return system[0] if system else ""


def _notes(messages: Sequence[Message]) -> Iterator[str]:
    """Yield the system messages after the caller's last words; the first message of all is the project's."""
    start = max((n for n, message in enumerate(messages) if message["role"] == "user"), default=0)
    return (str(message["content"]) for message in messages[start + 1 :] if message["role"] == "system")


def _function_results(messages: Sequence[Message]) -> Iterator[Result]:
    calls = {call["id"]: call["function"] for message in messages for call in message.get("tool_calls") or ()}
    for message in messages:
        if message["role"] == "tool" and (function := calls.get(message.get("tool_call_id", ""))):
            yield Result(function["name"], arguments_of(function), str(message.get("content") or ""))


def _today(system: Sequence[str]) -> date | None:
    """Return the date that the last of the prompts which name one gives as today's."""
    named = [match[1] for text in system for match in _TODAY.finditer(text)]
    return next((day for text in reversed(named) if (day := _written_date(text))), None)


def _written_date(text: str) -> date | None:
    # Only complete dates count, because a weekday alone means nothing until today's date is known.
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
class CallerUtterance:
    """One utterance of the caller with its context."""

    text: str
    today: date
    """The date from which `tomorrow` and weekdays count."""
    question: str = ""
    """The agent's words before, which a single word may answer (`Smith` after `What is your name?`)."""


@dataclass(frozen=True, slots=True)
class FilledArguments:
    """The arguments of a tool that the caller gave."""

    arguments: MutableJsonObject
    complete: bool
    """Whether all required arguments were given."""
    specific: bool
    """Whether the caller said something that can only be an argument: digits, a day, an option."""


def fill_arguments(tool: Tool, caller: CallerUtterance) -> FilledArguments:
    """Return the arguments of `tool` that are in the caller's words."""
    schema = tool["function"].get("parameters") or {}
    arguments: MutableJsonObject = {}
    specific = False
    for name in object_at(schema, "properties"):
        value, is_specific = extract_value(name, object_at(schema, "properties", name), caller)
        if value is not None:
            arguments[name] = value
            specific = specific or is_specific
    return FilledArguments(arguments, set(list_at(schema, "required")) <= arguments.keys(), specific)


def extract_value(name: str, schema: JsonObject, caller: CallerUtterance) -> tuple[JsonValue, bool]:
    """Return a property's value (None: it is not in the words), and whether the words can mean nothing else."""
    # The type is often only `string`; name and description say which kind of text is meant.
    hint = f"{name.replace('_', ' ')} {schema.get('description', '')}".lower()
    if options := _options(schema):
        return _named_option(options, caller.text), True
    match schema.get("type"):
        case "integer":
            number = _free_number(caller.text)
            return (int(number) if number is not None else None), True
        case "number":
            money = find_money(caller.text) if _MONEY.search(hint) else None
            return money or _free_number(caller.text), True
        case "boolean":
            answer = find_answer(caller.text)
            return (None if answer is None else answer is Answer.YES), False
        case _:
            return _extract_text(hint, caller)


def _extract_text(hint: str, caller: CallerUtterance) -> tuple[str | None, bool]:
    # The order matters: an e-mail address may contain digits, and phone numbers, dates and times consist of them.
    utterance = caller.text
    if _AGENT_WORDS.search(hint):
        # The agent's own words are not in the caller's; an empty text lets a function run that requires them.
        return "", False
    if _EMAIL.search(hint):
        return find_email(utterance) or None, True
    if _PHONE.search(hint):
        digits = find_digits(utterance)
        return (digits if len(digits) >= _MIN_PHONE_DIGITS else None), True
    if "yyyy-mm-dd" in hint or (_DATE.search(hint) and not _DIGITS.search(hint)):
        day = find_date(utterance, caller.today)
        return (day.isoformat() if day else None), True
    if "hh:mm" in hint or (_TIME.search(hint) and not _DIGITS.search(hint)):
        moment = find_time(utterance)
        return (f"{moment:%H:%M}" if moment else None), True
    if _DIGITS.search(hint):
        return _digits(utterance), True
    if _NAME.search(hint):
        asked = "name" in caller.question.lower()
        name = find_name(utterance, asked=asked) or (find_spelling(utterance).capitalize() if asked else "")
        return name or None, True
    if _ADDRESS.search(hint):
        return (utterance if _ADDRESS.search(caller.question.lower()) else None), False
    return (utterance if utterance and _OWN_WORDS.search(hint) else None), False


def _digits(utterance: str) -> str | None:
    """Return the digits of an utterance unless they are a date or time; None: there are none."""
    digits = find_digits(utterance)
    if len(digits) <= _MAX_CLOCK_DIGITS and (find_time(utterance) or find_date(utterance, date(2000, 1, 1))):
        return None
    return digits or None


def _free_number(utterance: str) -> int | float | None:
    number = find_number(utterance)
    if number is not None and (find_time(utterance) or find_date(utterance, date(2000, 1, 1))):
        # "a table for four at seven" has two numbers; the first one counts unless it is the hour.
        moment = find_time(utterance)
        return None if moment is None or number in {moment.hour, moment.hour - 12} else number
    return number


def _options(schema: JsonObject) -> list[str]:
    """Return the values that a property may have, from its `enum` or its description; empty: any."""
    if enumerated := list_at(schema, "enum"):
        return [str(option) for option in enumerated]
    listed = _OPTIONS.search(str(schema.get("description", ""))) if schema.get("type", "string") == "string" else None
    return [option.strip(" '") for option in re.split(r",| or ", listed[1]) if option.strip(" '")] if listed else []


def _named_option(options: list[str], utterance: str) -> str | None:
    """Return the longest option that the utterance names. A time names its part of the day, such as `evening`."""
    lowered = f" {re.sub(r'[^a-z0-9]+', ' ', utterance.lower())} "
    plain = {option: re.sub(r"[^a-z0-9]+", " ", option.lower()).strip() for option in options}
    named = [option for option, words in plain.items() if words and f" {words} " in lowered]
    if named:
        return max(named, key=len)
    if not _PARTS_OF_DAY & set(plain.values()):
        return None
    moment = find_time(utterance)
    part = find_part_of_day(utterance) or (part_of_day(moment) if moment else "")
    return next((option for option, words in plain.items() if words == part), None)
