"""What a request says about the conversation: the step's lines, the caller's words, the results so far."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from callagent.models.protocol import Message, Tool
from callagent.models.understanding import find_date

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
