"""Instructions: conditional parts, variables, and references to tools and agents.

`{% if … %}`, `{% elif … %}`, `{% else %}`, `{% endif %}` choose parts of an instruction by the call's variables. Their
conditions are written as in transfer rules; `and`, `or`, `not`, `True`, `False` and `None` may be written as in Python.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from callagent.agents.cx.cel import Expression
from callagent.agents.cx.format import CxApp, tool_name
from callagent.log import get_logger

_REFERENCE = re.compile(r"\{@\s*(TOOL|AGENT|WIDGET)\s*:\s*([^{}]+?)\s*\}", re.IGNORECASE)
# Two braces are a static variable, one brace a dynamic one; `{"a": 1}` and other JSON match neither.
_STATIC = re.compile(r"\{\{\s*([A-Za-z_][\w-]*)\s*\}\}")
_DYNAMIC = re.compile(r"(?<!\{)\{\s*([A-Za-z_][\w-]*)\s*\}(?!\})")

PERSONAS = {
    "CONCISE": "Keep every answer short and to the point.",
    "CHATTY": "Explain your answers, with context and details.",
}
"""Persona of the channel -> sentence that it adds to the instruction."""


def render_instruction(app: CxApp, agent: str, variables: Mapping[str, object]) -> str:
    """Return the global instruction and the agent's, as the model reads them.

    `{{name}}` becomes the variable's value. `{name}` stays: the history tells the model its value whenever it changes.
    """
    texts = [select_parts(text, variables).strip() for text in (app.global_instruction, app.agents[agent].instruction)]
    texts.append(PERSONAS.get(app.persona, ""))

    # Unknown names stay as they are written; `check` reports unknown agents and tools.
    def variable_value(found: re.Match[str]) -> str:
        return _as_text(variables[found[1]]) if found[1] in variables else found[0]

    def referenced_name(found: re.Match[str]) -> str:
        kind, name = found[1].upper(), found[2]
        if kind == "AGENT":
            return app.agent_named(name) or name
        tool = app.tool_named(name) if kind == "TOOL" else None
        return tool_name(app.tools[tool]) if tool else name

    # References are replaced first: values come from outside of the app, and a reference in one must not be replaced.
    whole = "\n\n".join(text for text in texts if text)
    return _STATIC.sub(variable_value, _REFERENCE.sub(referenced_name, whole))


def dynamic_names(app: CxApp, agent: str) -> list[str]:
    """Return the variables that the instructions refer to as `{name}`, each once."""
    text = f"{app.global_instruction}\n{app.agents[agent].instruction}"
    return list(dict.fromkeys(found[1] for found in _DYNAMIC.finditer(text)))


def state_update_text(name: str, value: object) -> str:
    """Return the text that tells the model a variable's value."""
    return f"<state_update>{name}: {_as_text(value)}</state_update>"


def _as_text(value: object) -> str:
    """Return a variable's value as text: texts as they are, other values as JSON, nothing for None."""
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


log = get_logger(__name__)
_TAG = re.compile(r"\{%-?\s*(if|elif|else|endif)\b\s*(.*?)\s*-?%\}", re.DOTALL)
_CEL_WORDS = {"and": "&&", "or": "||", "not": "!", "True": "true", "False": "false", "None": "null"}
# String literals are matched as a whole first, so that the words in them are not translated.
_PYTHON_WORD = re.compile(r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'|\b(?:and|or|not|True|False|None)\b")


@dataclass(slots=True)
class _OpenIf:
    """An `if` whose `endif` has not been read yet."""

    selected: bool
    """Whether the part being read is kept."""
    decided: bool
    """Whether a part of this `if` has been kept already, so that its other parts are dropped."""
    outer_selected: bool
    """Whether the part around the `if` is kept."""


def select_parts(text: str, variables: Mapping[str, object]) -> str:
    """Return a text without the parts whose conditions do not hold.

    A text with an invalid condition or a tag without its counterpart is returned unchanged: `check` reports it.
    """
    if any(True for _ in condition_problems(text)):
        return text
    kept: list[str] = []
    open_ifs: list[_OpenIf] = []
    place = 0
    for tag in _TAG.finditer(text):
        # The text before this tag belongs to the part that the tags so far have opened.
        if all(each.selected for each in open_ifs):
            kept.append(text[place : tag.start()])
        place = _tag_end(text, tag)
        _apply_tag(open_ifs, tag[1], tag[2], variables)
    return "".join(kept) + text[place:]


def condition_problems(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each invalid condition and of each tag without its counterpart, and what is wrong there."""
    open_lines: list[int] = []
    for tag in _TAG.finditer(text):
        line = text.count("\n", 0, tag.start()) + 1
        match tag[1]:
            case "if":
                open_lines.append(line)
            case "endif" if open_lines:
                open_lines.pop()
            case _ if not open_lines:
                yield line, f"'{{% {tag[1]} %}}' without an '{{% if … %}}' before it"
        if tag[1] in ("if", "elif"):
            try:
                _expression(tag[2])
            except ValueError as error:
                yield line, f"'{tag[2]}': {error}"
    for line in open_lines:
        yield line, "'{% if %}' without an '{% endif %}'"


def other_tag_lines(text: str) -> list[int]:
    """Return the lines of other tags, such as loops, which the model sees as they are written."""
    remaining = _TAG.sub(lambda found: "\n" * found[0].count("\n"), text)
    return [remaining.count("\n", 0, found.start()) + 1 for found in re.finditer(r"\{%", remaining)]


def _tag_end(text: str, tag: re.Match[str]) -> int:
    """Return the position after a tag, and after its line where the tag stands alone on it."""
    before = text[text.rfind("\n", 0, tag.start()) + 1 : tag.start()]
    after = re.compile(r"[ \t]*\n").match(text, tag.end())
    return after.end() if after and not before.strip() else tag.end()


def _apply_tag(open_ifs: list[_OpenIf], tag: str, condition: str, variables: Mapping[str, object]) -> None:
    """Update the stack of open `if`s for one tag."""
    match tag:
        case "if":
            # Conditions in a dropped part are not evaluated, because they may need variables that are not set.
            outer = all(each.selected for each in open_ifs)
            holds = outer and _holds(condition, variables)
            open_ifs.append(_OpenIf(holds, holds, outer))
        case "elif" | "else":
            current = open_ifs[-1]
            candidate = current.outer_selected and not current.decided
            current.selected = candidate and (tag == "else" or _holds(condition, variables))
            current.decided = current.decided or current.selected
        case _:
            open_ifs.pop()


def _holds(condition: str, variables: Mapping[str, object]) -> bool:
    """Return whether a condition holds; if it cannot be evaluated, log the reason and return False."""
    # Published apps name variables in each of these ways.
    names = {**variables, "variables": variables, "state": variables, "context": {"variables": variables}}
    try:
        return _is_true(_expression(condition).evaluate(names))
    except ValueError as error:
        log.info("instruction_condition_failed", condition=condition, error=str(error))
        return False


# Instructions are rendered for every request to the model, and their conditions are parsed once.
@lru_cache(maxsize=1000)
def _expression(condition: str) -> Expression:
    """Parse a condition; Python's words outside of string literals are translated to CEL's. Raises ValueError."""
    return Expression(_PYTHON_WORD.sub(lambda found: _CEL_WORDS.get(found[0], found[0]), condition), _is_true)


def _is_true(value: object) -> bool:
    """Return whether a value counts as true, as in Python; the text `false` does not."""
    return value.strip().lower() not in ("", "false") if isinstance(value, str) else bool(value)
