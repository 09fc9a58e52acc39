"""A grammar (GBNF, as llama.cpp takes it) of the calls that a step's functions allow, for constrained decoding."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from callagent.models.functiongemma.declarations import function_of
from callagent.models.functiongemma.format import FUNCTIONGEMMA, TokenSet, format_key, format_value
from callagent.models.functiongemma.schema import tidy
from callagent.models.protocol import Tool

Mode = Literal["calls", "text", "both"]

_MAX_DEPTH = 20
"""Levels of a schema; below, any value is allowed."""


_MAX_ORDERED = 5
"""Optional arguments of one object that are allowed once each."""


def grammar(tools: Sequence[Tool], *, mode: Mode = "calls", tokens: TokenSet = FUNCTIONGEMMA) -> str:
    """One or more calls that end in the token for the response; `text` has none, `both` allows words before them.

    Required arguments come first, in declared order; then optional ones, in any order. Raises `ValueError` where
    calls are wanted of no tools and for what is no tool.
    """
    return _Grammar(tokens).write(tools, mode)


class _Grammar:
    """Rules by name, each written when it is first needed."""

    def __init__(self, tokens: TokenSet) -> None:
        self._tokens = tokens
        self._rules: dict[str, str] = {}

    def write(self, tools: Sequence[Tool], mode: Mode) -> str:
        if not tools and mode == "calls":
            raise ValueError("there are no tools to call")
        # Some readers take the first rule for the root.
        self._rules["root"] = ""
        if mode == "text" or not tools:
            self._rules["root"] = self._text()
        else:
            calls = self._calls(tools)
            self._rules["root"] = calls if mode == "calls" else f"{self._text()} ({calls})?"
        return "".join(f"{name} ::= {rule}\n" for name, rule in self._rules.items())

    def _calls(self, tools: Sequence[Tool]) -> str:
        tokens = self._tokens
        names = []
        for number, function in enumerate(map(function_of, tools)):
            names.append(name := f"call-{_letters(number)}")
            arguments = self._object(tidy(function.get("parameters")), name, 0, closed=True)
            self._rules[name] = f"{_literal('call:' + function['name'])} {arguments}"
        start, end, response = map(_literal, (tokens.start_call, tokens.end_call, tokens.start_response))
        return f"({start} ({' | '.join(names)}) {end})+ {response}"

    def _object(self, schema: Mapping[str, Any], name: str, depth: int, *, closed: bool = False) -> str:
        """`closed`: without declared properties it is empty; else anything is allowed in it."""
        properties = schema.get("properties") or {}
        if not properties:
            return '"{}"' if closed else self._map(schema, name, depth)
        required = [key for key in schema.get("required") or () if key in properties]
        pairs = {
            key: self._pair(key, properties[key], f"{name}-{_letters(i)}", depth) for i, key in enumerate(properties)
        }
        first = ' "," '.join(pairs[key] for key in required)
        optional = [rule for key, rule in pairs.items() if key not in required]
        if not optional:
            return f'"{{" {first} "}}"'
        if first:
            return f'"{{" {first} {self._further(optional, name)} "}}"'
        return f'"{{" ({self._one_of(optional, name)})? "}}"'

    def _further(self, pairs: Sequence[str], name: str) -> str:
        """Of the optional pairs any, in any order: a small model would otherwise repeat one without end."""
        if not pairs:
            return ""
        rule = f"{name}-or-{'-'.join(pair.removeprefix(f'{name}-') for pair in pairs)}"
        if rule not in self._rules:
            self._rules[rule] = ""
            self._rules[rule] = f'("," ({self._one_of(pairs, name)}))?'
        return rule

    def _one_of(self, pairs: Sequence[str], name: str) -> str:
        if len(pairs) > _MAX_ORDERED:
            # Sets of pairs double with each one more; here only their number is bounded.
            self._rules[f"{name}-any"] = " | ".join(pairs)
            several = f"{name}-any"
            for _ in pairs[1:]:
                several = f'{name}-any ("," {several})?'
            return several
        rest = [(pair, [each for each in pairs if each != pair]) for pair in pairs]
        return " | ".join(f"{pair} {self._further(others, name)}".rstrip() for pair, others in rest)

    def _pair(self, key: str, schema: Mapping[str, Any], name: str, depth: int) -> str:
        value = self._value(schema, name, depth + 1)
        self._rules[name] = f"{_literal(format_key(key, self._tokens) + ':')} {value}"
        return name

    def _map(self, schema: Mapping[str, Any], name: str, depth: int) -> str:
        values = schema.get("additionalProperties")
        if not values or values is True:
            return self._any("object")
        self._rules[f"{name}-pair"] = f'{self._any("key")} ":" {self._value(values, f"{name}-value", depth + 1)}'
        return f'"{{" ({name}-pair ("," {name}-pair)*)? "}}"'

    def _value(self, schema: Mapping[str, Any], name: str, depth: int) -> str:
        if depth > _MAX_DEPTH:
            return self._any("value")
        choices = self._choices(schema, name, depth)
        if schema.get("nullable") is True and '"null"' not in choices:
            choices.append('"null"')
        return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"

    def _choices(self, schema: Mapping[str, Any], name: str, depth: int) -> list[str]:
        if enum := schema.get("enum"):
            return [_literal(format_value(each, tokens=self._tokens)) for each in enum]
        if several := schema.get("anyOf") or schema.get("oneOf"):
            return [self._value(each, f"{name}-{_letters(number)}", depth + 1) for number, each in enumerate(several)]
        kinds = schema.get("type")
        if not isinstance(kinds, list):
            return [self._type(kinds, schema, name, depth)]
        return [self._type(kind, schema, f"{name}-{_letters(number)}", depth) for number, kind in enumerate(kinds)]

    def _type(self, kind: Any, schema: Mapping[str, Any], name: str, depth: int) -> str:
        match str(kind).lower():
            case "null":
                return '"null"'
            case "string" | "integer" | "number" | "boolean" as simple:
                return self._any(simple)
            case "array":
                if not schema.get("items"):
                    return self._any("array")
                self._rules[f"{name}-item"] = self._value(schema["items"], f"{name}-items", depth + 1)
                return f'"[" ({name}-item ("," {name}-item)*)? "]"'
            case "object":
                return self._object(schema, name, depth)
        return self._any("value")

    def _any(self, rule: str) -> str:
        """The name of a rule that every grammar has the same; rules that it needs are written too."""
        if rule not in self._rules:
            if rule == "string":
                self._string()
            else:
                self._rules[rule] = _COMMON[rule]
            for needed in _NEEDED.get(rule, ()):
                self._any(needed)
        return rule

    def _string(self) -> None:
        escape = self._tokens.escape
        self._rules["string"] = f"{_literal(escape)} in-string-a"
        self._matcher("in-string", ends=(escape,), never=[each for each in self._tokens.control if each != escape])

    def _text(self) -> str:
        self._matcher("text", ends=(), never=self._tokens.control)
        return "text-a"

    def _matcher(self, name: str, *, ends: Sequence[str], never: Iterable[str]) -> None:
        """Rules, one per beginning of a token, for text that holds none of `never` and ends where one of `ends` does.

        Without `ends` the text may end anywhere. Tokens have their only `<` in front, so that a failed match can only
        begin anew with the next one.
        """
        trie = _Trie([*ends, *never])
        for state, following in enumerate(trie.states):
            others = "".join(sorted(_in_class(char) for char in {*following, "<"}))
            rule = [f"[^{others}] {name}-a"]
            if "<" not in following:
                rule.append(f'"<" {name}-{_letters(trie.states[0]["<"])}')
            for char, to in following.items():
                if not trie.complete[to]:
                    rule.append(f"{_literal(char)} {name}-{_letters(to)}")
                elif trie.complete[to] in ends:
                    rule.append(_literal(char))
            if not trie.complete[state]:
                choice = " | ".join(rule)
                self._rules[f"{name}-{_letters(state)}"] = choice if ends else f"({choice})?"


class _Trie:
    """The beginnings of words, numbered from 0, the empty one."""

    def __init__(self, words: Sequence[str]) -> None:
        self.states: list[dict[str, int]] = [{}]
        self.complete: list[str] = [""]
        """The word that is read in this state, if one is."""
        for word in words:
            state = 0
            for char in word:
                state = self.states[state].setdefault(char, len(self.states))
                if state == len(self.states):
                    self.states.append({})
                    self.complete.append("")
            self.complete[state] = word


_ESCAPED = re.compile(r'["\\\x00-\x1f\x7f]')
_DIGITS = str.maketrans("0123456789", "abcdefghij")
_COMMON = {
    "value": 'string | number | boolean | object | array | "null"',
    "object": '"{" (pair ("," pair)*)? "}"',
    "pair": 'key ":" value',
    "array": '"[" (value ("," value)*)? "]"',
    "key": "[A-Za-z_] [A-Za-z0-9_.-]*",
    "integer": '"-"? ("0" | [1-9] [0-9]*)',
    "number": '"-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [+-]? [0-9]+)?',
    "boolean": '"true" | "false"',
}
_NEEDED = {
    "value": ("string", "number", "boolean", "object", "array"),
    "object": ("pair",),
    "pair": ("key", "value"),
    "array": ("value",),
}


def _letters(number: int) -> str:
    """A number as a part of a rule's name: not every reader of GBNF takes digits there."""
    return str(number).translate(_DIGITS)


def _literal(text: str) -> str:
    """A terminal."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _in_class(char: str) -> str:
    return _escape(char) if char in "\\]^-" else char


def _escape(char: str | re.Match[str]) -> str:
    """As a code point: of the other escapes not every reader of GBNF knows the same ones."""
    return f"\\x{ord(char if isinstance(char, str) else char[0]):02X}"
