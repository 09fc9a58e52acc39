"""References in prompt text: `{{fn:name}}`, `$variable`, conditional tags. They are resolved anew for every request."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.flows.format import Entity, Variants, same_language, translate
from callagent.agents.kernel import tool_name

REFERENCE = re.compile(r"\{\{\s*(\w+):([^}]*)\}\}")
_VARIABLE = re.compile(r"\$([A-Za-z_]\w*)")
_VARIANT = re.compile(r"\$\{variant_(\w+)\}")
_TAG = re.compile(r"<(channel|language):([^<>]+)>|</(channel|language)(?::[^<>]*)?>")
_SPELLINGS = {"sms": "twilio_sms", "va": "attr"}
TOOL_PREFIXES = ("fn", "ft", "ho", "twilio_sms")
_TOOL_NAMES = {"ho": "transfer_to", "twilio_sms": "send_sms"}


@dataclass(frozen=True, slots=True)
class ToolReference:
    kind: str
    """`fn`, `ft`, `ho` or `twilio_sms`."""
    name: str
    """As the project calls it."""

    @property
    def tool(self) -> str:
        """The name under which the model may call it."""
        prefix = _TOOL_NAMES.get(self.kind)
        return tool_name(prefix, self.name) if prefix else self.name


@dataclass(frozen=True, slots=True)
class Scope:
    """The values that references resolve to: a view of the call at one instant."""

    state: Mapping[str, Any] = field(default_factory=dict)
    variants: Variants = field(default_factory=Variants)
    variant: str | None = None
    entities: Mapping[str, Entity] = field(default_factory=dict)
    collected: Mapping[str, str] = field(default_factory=dict)
    """Entity -> valid value."""
    translations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    language: str | None = None
    channel: str = "voice"


@dataclass(frozen=True, slots=True)
class Resolved:
    text: str
    tools: tuple[ToolReference, ...]
    """In order of appearance, each once."""


def resolve(text: str, scope: Scope) -> Resolved:
    """Substitute all references of a text; values may hold references themselves, one level deep."""
    if "<" in text:
        text = keep_conditional(text, scope)
    # Most texts hold none: looking is cheaper than substituting nothing, thirty times a request.
    if "$" in text or "{{" in text:
        once = _substitute(text, scope)
        text = once if once == text else _substitute(once, scope)
    if "{{" not in text:
        return Resolved(text, ())
    tools: dict[ToolReference, None] = {}

    def name(match: re.Match[str]) -> str:
        prefix = _SPELLINGS.get(match.group(1), match.group(1))
        if prefix not in TOOL_PREFIXES:
            return match.group(0)
        reference = ToolReference(prefix, match.group(2).strip())
        tools[reference] = None
        return reference.tool

    return Resolved(REFERENCE.sub(name, text), tuple(tools))


def resolve_text(text: str, scope: Scope) -> str:
    return resolve(text, scope).text


def resolve_header(text: str, scope: Scope) -> str | None:
    """Resolve the value of a SIP header; None where a variable or attribute in it has no value.

    The caller leaves such a header out: its receiver could not tell the name of a variable from a value.
    """
    named = [(_SPELLINGS.get(prefix, prefix), name) for prefix, name, _ in find_references(text)]
    variables = _VARIABLE.findall(text) + [name for prefix, name in named if prefix == "vrbl"]
    attributes = _VARIANT.findall(text) + [name for prefix, name in named if prefix == "attr"]
    values = [scope.state.get(name) for name in variables]
    values += [scope.variants.value(scope.variant, name) for name in attributes]
    if any(value is None or value == "" for value in values):
        return None
    return resolve_text(text, scope)


def find_references(text: str) -> list[tuple[str, str, int]]:
    """Return every reference as (prefix, name, line offset from 0), alternative spellings translated."""
    return [
        (_SPELLINGS.get(m.group(1), m.group(1)), m.group(2).strip(), text.count("\n", 0, m.start()))
        for m in REFERENCE.finditer(text)
    ]


def keep_conditional(text: str, scope: Scope) -> str:
    """Keep the `<channel:…>` and `<language:…>` parts that apply. Tags nest; one left open ends with the text."""
    parts: list[str] = []
    open_tags: list[bool] = []
    position = 0
    for match in _TAG.finditer(text):
        if all(open_tags):
            parts.append(text[position : match.start()])
        position = match.end()
        if match.group(1):
            open_tags.append(_applies(match.group(1), match.group(2), scope))
        elif open_tags:
            open_tags.pop()
    if all(open_tags):
        parts.append(text[position:])
    return "".join(parts)


def _applies(kind: str, argument: str, scope: Scope) -> bool:
    wanted = [each.strip().lower() for each in argument.split("|")]
    if kind == "channel":
        return scope.channel in wanted
    return any(same_language(each, scope.language) for each in wanted)


def _substitute(text: str, scope: Scope) -> str:
    text = REFERENCE.sub(lambda match: _value(match, scope), text)
    text = _VARIANT.sub(lambda match: _attribute(match.group(1), scope, match.group(0)), text)
    # An unknown name stays as it is: `$5.00` and prices in general must survive.
    return _VARIABLE.sub(lambda m: str(scope.state[m.group(1)]) if m.group(1) in scope.state else m.group(0), text)


def _value(match: re.Match[str], scope: Scope) -> str:
    prefix, name = _SPELLINGS.get(match.group(1), match.group(1)), match.group(2).strip()
    if prefix == "vrbl":
        return str(scope.state[name]) if name in scope.state else match.group(0)
    if prefix == "attr":
        return _attribute(name, scope, match.group(0))
    if prefix == "tn":
        found = translate(scope.translations, name, scope.language)
        return match.group(0) if found is None else found
    if prefix == "entity":
        return scope.collected.get(name, name)
    return match.group(0)


def _attribute(name: str, scope: Scope, unresolved: str) -> str:
    value = scope.variants.value(scope.variant, name)
    return unresolved if value is None else str(value)
