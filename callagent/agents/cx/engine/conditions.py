"""`{% if … %}`, `{% elif … %}`, `{% else %}`, `{% endif %}` in instructions: the parts that hold for this call.

Conditions are those of transfer rules; `and`, `or`, `not`, `True`, `False` and `None` may be written as in Python.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from callagent.agents.cx.cel import Expression
from callagent.log import get_logger

log = get_logger(__name__)
_TAG = re.compile(r"\{%-?\s*(if|elif|else|endif)\b\s*(.*?)\s*-?%\}", re.DOTALL)
_WORDS = {"and": "&&", "or": "||", "not": "!", "True": "true", "False": "false", "None": "null"}
_WORD = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\b(?:and|or|not|True|False|None)\b")


@dataclass(slots=True)
class _Level:
    """One `if` that is open."""

    shown: bool
    """The part that is being read is for this call."""
    decided: bool
    """A part has been found; those that follow are not for this call."""
    outside: bool


def choose(text: str, variables: Mapping[str, Any]) -> str:
    """The text without the parts whose conditions do not hold. What is not closed is left as it is."""
    if any(True for _ in problems(text)):
        return text
    kept: list[str] = []
    levels: list[_Level] = []
    place = 0
    for tag in _TAG.finditer(text):
        if all(level.shown for level in levels):
            kept.append(text[place : tag.start()])
        place = _end(text, tag)
        _step(levels, tag[1], tag[2], variables)
    return "".join(kept) + text[place:]


def problems(text: str) -> Iterator[tuple[int, str]]:
    """Line and reason of what cannot be worked out."""
    open_lines: list[int] = []
    for tag in _TAG.finditer(text):
        line = text.count("\n", 0, tag.start()) + 1
        match tag[1]:
            case "if":
                open_lines.append(line)
            case "endif" if open_lines:
                open_lines.pop()
            case _ if not open_lines:
                yield line, f"'{{% {tag[1]} %}}' without an if"
        if tag[1] in ("if", "elif"):
            try:
                _expression(tag[2])
            except ValueError as error:
                yield line, f"'{tag[2]}': {error}"
    for line in open_lines:
        yield line, "'{% if %}' without an endif"


def other_tags(text: str) -> list[int]:
    """Lines of what is no condition: loops, settings. The model sees them as they are."""
    left = _TAG.sub(lambda found: "\n" * found[0].count("\n"), text)
    return [left.count("\n", 0, found.start()) + 1 for found in re.finditer(r"\{%", left)]


def _end(text: str, tag: re.Match[str]) -> int:
    """Behind the tag; a tag with a line of its own takes the line along."""
    before = text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()]
    after = re.compile(r"[ \t]*\n").match(text, tag.end())
    return after.end() if after and not before.strip() else tag.end()


def _step(levels: list[_Level], tag: str, condition: str, variables: Mapping[str, Any]) -> None:
    match tag:
        case "if":
            outside = all(level.shown for level in levels)
            holds = outside and _holds(condition, variables)
            levels.append(_Level(holds, holds, outside))
        case "elif" | "else":
            level = levels[-1]
            level.shown = level.outside and not level.decided and (tag == "else" or _holds(condition, variables))
            level.decided = level.decided or level.shown
        case _:
            levels.pop()


def _holds(condition: str, variables: Mapping[str, Any]) -> bool:
    names = {**variables, "variables": variables, "state": variables, "context": {"variables": variables}}
    try:
        return _is_true(_expression(condition).value(names))
    except ValueError as error:
        log.info("instruction_condition_failed", condition=condition, error=str(error))
        return False


@lru_cache(maxsize=1000)
def _expression(condition: str) -> Expression:
    """With Python's words outside of texts as the expression language writes them. Raises ValueError."""
    return Expression(_WORD.sub(lambda found: _WORDS.get(found[0], found[0]), condition), _is_true)


def _is_true(value: Any) -> bool:
    """Variables of some apps are texts."""
    return value.strip().lower() not in ("", "false") if isinstance(value, str) else bool(value)
