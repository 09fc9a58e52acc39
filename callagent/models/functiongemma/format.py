"""The text format of FunctionGemma and Gemma 4: control tokens, values, and a grammar of the calls.

A value looks like `{city:<escape>Paris<escape>}`. The grammar is GBNF, llama.cpp's notation for constrained decoding:
with it the model can only write calls of the functions that a step offers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Literal, TypeVar

from callagent.json_values import JsonObject, JsonValue, list_at, object_at, objects_at, text_at
from callagent.models.functiongemma.schema import normalise
from callagent.models.protocol import Tool

T = TypeVar("T")

TRIGGER = "You are a model that can do function calling with the following functions"
"""FunctionGemma calls functions only if this sentence comes before their declarations."""


@dataclass(frozen=True)
class TokenSet:
    """The control tokens of one model family."""

    bos: str
    eos: str
    start_turn: str
    end_turn: str
    start_declaration: str
    end_declaration: str
    start_call: str
    end_call: str
    start_response: str
    end_response: str
    escape: str
    """The delimiter on both sides of every string."""
    developer: str
    """The role of the turn that holds instructions and declarations."""
    trigger: str
    """A sentence that must come before the declarations; empty: none."""

    @cached_property
    def control(self) -> tuple[str, ...]:
        """The tokens that models must not read in other people's words, and callers must not hear."""
        return astuple(self)[:11]

    @property
    def stops(self) -> tuple[str, ...]:
        """The tokens that end an answer; `end_call` does not, because a parallel call may follow."""
        return self.end_turn, self.eos, self.start_response


FUNCTIONGEMMA = TokenSet(
    bos="<bos>",
    eos="<eos>",
    start_turn="<start_of_turn>",
    end_turn="<end_of_turn>",
    start_declaration="<start_function_declaration>",
    end_declaration="<end_function_declaration>",
    start_call="<start_function_call>",
    end_call="<end_function_call>",
    start_response="<start_function_response>",
    end_response="<end_function_response>",
    escape="<escape>",
    developer="developer",
    trigger=TRIGGER,
)
GEMMA4 = TokenSet(
    bos="<bos>",
    eos="<eos>",
    start_turn="<|turn>",
    end_turn="<turn|>",
    start_declaration="<|tool>",
    end_declaration="<tool|>",
    start_call="<|tool_call>",
    end_call="<tool_call|>",
    start_response="<|tool_response>",
    end_response="<tool_response|>",
    escape='<|"|>',
    developer="system",
    trigger="",
)
TOKEN_SETS = (FUNCTIONGEMMA, GEMMA4)

_ALL_TOKENS = sorted({token for tokens in TOKEN_SETS for token in tokens.control})
_CONTROL = re.compile("|".join(map(re.escape, _ALL_TOKENS)))


def neutralise(text: str) -> str:
    """Return the text without control tokens: their angle brackets are dropped.

    This is for all texts of others: otherwise a caller who dictates a token, or a function's result with one, could end
    the turn and write words in the model's name.
    """
    if "<" not in text:
        return text
    # Only texts with a bracket, which are few, are searched for the tokens of both families.
    text = _CONTROL.sub(lambda token: token[0][1:-1], text)
    # Without the brackets a new token may have formed; spaces in their place cannot be part of one.
    return _CONTROL.sub(lambda token: token[0].replace("<", " ").replace(">", " "), text)


MAX_DEPTH = 100
"""Levels of nested objects and arrays; deeper data is refused."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_.\-]*")


def format_value(value: object, *, tokens: TokenSet = FUNCTIONGEMMA, sort: bool = False) -> str:
    """Return JSON data in the models' format; `sort` sorts the keys of objects, as the chat template does.

    Control tokens in strings are neutralised. Raises `ValueError` for data that is not JSON, has infinite numbers or is
    deeper than `MAX_DEPTH`.
    """
    return "".join(_write(value, tokens, sort, 0))


def format_string(text: str, tokens: TokenSet) -> str:
    """Return a string between its delimiters, with control tokens neutralised."""
    return f"{tokens.escape}{neutralise(text)}{tokens.escape}"


def format_key(key: str, tokens: TokenSet) -> str:
    """Return the key of an object: an identifier unchanged, any other key as a string."""
    return key if _IDENTIFIER.fullmatch(key) else format_string(key, tokens)


def is_identifier(text: object) -> bool:
    """Return whether `text` is a name that the models can write without delimiters."""
    return isinstance(text, str) and _IDENTIFIER.fullmatch(text) is not None


def dictsort(mapping: Mapping[str, T]) -> list[tuple[str, T]]:
    """Return the items sorted by key, letter case ignored, as Jinja's filter of this name does."""
    return sorted(mapping.items(), key=lambda item: item[0].lower())


def _write(value: object, tokens: TokenSet, sort: bool, depth: int) -> Iterable[str]:
    if depth > MAX_DEPTH:
        raise ValueError(f"the value is deeper than {MAX_DEPTH} levels")
    # The order of the cases matters: a string is a Sequence, and a Boolean value is an int.
    match value:
        case str():
            yield format_string(value, tokens)
        case None:
            yield "null"
        case bool():
            yield "true" if value else "false"
        case int() | float():
            yield _format_number(value)
        case Mapping():
            yield from _write_object(value, tokens, sort, depth)
        case Sequence() if not isinstance(value, bytes | bytearray):
            yield "["
            for number, item in enumerate(value):
                yield "," if number else ""
                yield from _write(item, tokens, sort, depth + 1)
            yield "]"
        case _:
            raise ValueError(f"{type(value).__name__} is no JSON data")


def _write_object(value: Mapping[str, object], tokens: TokenSet, sort: bool, depth: int) -> Iterable[str]:
    if not all(isinstance(key, str) for key in value):
        raise ValueError("the keys of an object must be strings")
    yield "{"
    for number, (key, item) in enumerate(dictsort(value) if sort else value.items()):
        yield "," if number else ""
        yield f"{format_key(key, tokens)}:"
        yield from _write(item, tokens, sort, depth + 1)
    yield "}"


def _format_number(value: float) -> str:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no JSON number")
    return repr(value)


def function_of(tool: object) -> JsonObject:
    """Return the function of a tool in OpenAI's shape; `tool` may also be the function itself. Raises `ValueError`.

    Its `name` is a string that the models can write; its `parameters`, if it has any, are an object.
    """
    inner = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if not isinstance(inner, Mapping):
        raise ValueError("a tool must be a JSON object")
    name = inner.get("name")
    if not isinstance(name, str) or not name:
        raise ValueError("a tool must have a name")
    if not is_identifier(name):
        raise ValueError(f"the tool's name {name!r} is not valid: letters, digits, '_', '.' and '-'")
    if not isinstance(inner.get("parameters") or {}, Mapping):
        raise ValueError(f"the parameters of the tool '{name}' must be a JSON object")
    return inner


Mode = Literal["calls", "text", "both"]

_MAX_SCHEMA_DEPTH = 20
"""Levels of a schema; deeper ones allow any value."""
_MAX_UNREPEATED = 5
"""Optional arguments of one object up to which none can be repeated; for more, only their number is limited."""


def grammar(tools: Sequence[Tool], *, mode: Mode = "calls", tokens: TokenSet = FUNCTIONGEMMA) -> str:
    """Return the grammar of one or more calls, after which the token for the response follows.

    In the mode `text` it allows words only, in `both` words that calls may follow.

    Required arguments come first, in declared order; then optional ones, in any order. Raises `ValueError` for the mode
    `calls` without tools and for an invalid tool.
    """
    return _Grammar(tokens).write(tools, mode)


class _Grammar:
    """A grammar as rules by name, each written when it is first needed.

    The methods return the GBNF expression for a part of a schema, and write the rules to which it refers.
    """

    def __init__(self, tokens: TokenSet) -> None:
        self._tokens = tokens
        self._rules: dict[str, str] = {}

    def write(self, tools: Sequence[Tool], mode: Mode) -> str:
        """Return the whole grammar."""
        if not tools and mode == "calls":
            raise ValueError("there are no tools to call")
        # Some parsers of GBNF take the first rule for the root, whatever its name is.
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
            arguments = self._object(normalise(function.get("parameters")), name, 0, closed=True)
            self._rules[name] = f"{_literal('call:' + text_at(function, 'name'))} {arguments}"
        start, end, response = map(_literal, (tokens.start_call, tokens.end_call, tokens.start_response))
        return f"({start} ({' | '.join(names)}) {end})+ {response}"

    def _object(self, schema: JsonObject, name: str, depth: int, *, closed: bool = False) -> str:
        """Return an object's expression; `closed`: an object without declared properties must be empty."""
        properties = object_at(schema, "properties")
        if not properties:
            return '"{}"' if closed else self._map(schema, name, depth)
        required = [str(key) for key in list_at(schema, "required") if key in properties]
        pairs = {
            key: self._pair(key, object_at(properties, key), f"{name}-{_letters(i)}", depth)
            for i, key in enumerate(properties)
        }
        first = ' "," '.join(pairs[key] for key in required)
        optional = [rule for key, rule in pairs.items() if key not in required]
        if not optional:
            return f'"{{" {first} "}}"'
        # After required arguments each optional one has a comma before it; otherwise the first one has none.
        if first:
            return f'"{{" {first} {self._optional_rest(optional, name)} "}}"'
        return f'"{{" ({self._one_of(optional, name)})? "}}"'

    def _optional_rest(self, pairs: Sequence[str], name: str) -> str:
        """Allow each optional pair once, in any order, because a small model might repeat one without end."""
        if not pairs:
            return ""
        # There is one rule for each set of remaining pairs; it is entered empty before it is written.
        rule = f"{name}-or-{'-'.join(pair.removeprefix(f'{name}-') for pair in pairs)}"
        if rule not in self._rules:
            self._rules[rule] = ""
            self._rules[rule] = f'("," ({self._one_of(pairs, name)}))?'
        return rule

    def _one_of(self, pairs: Sequence[str], name: str) -> str:
        if len(pairs) > _MAX_UNREPEATED:
            # The number of rules would double with each further pair, so only the number of pairs is limited.
            self._rules[f"{name}-any"] = " | ".join(pairs)
            several = f"{name}-any"
            for _ in pairs[1:]:
                several = f'{name}-any ("," {several})?'
            return several
        rest = [(pair, [each for each in pairs if each != pair]) for pair in pairs]
        return " | ".join(f"{pair} {self._optional_rest(others, name)}".rstrip() for pair, others in rest)

    def _pair(self, key: str, schema: JsonObject, name: str, depth: int) -> str:
        value = self._value(schema, name, depth + 1)
        self._rules[name] = f"{_literal(format_key(key, self._tokens) + ':')} {value}"
        return name

    def _map(self, schema: JsonObject, name: str, depth: int) -> str:
        values = object_at(schema, "additionalProperties")
        if not values:
            return self._common_rule("object")
        self._rules[f"{name}-pair"] = (
            f'{self._common_rule("key")} ":" {self._value(values, f"{name}-value", depth + 1)}'
        )
        return f'"{{" ({name}-pair ("," {name}-pair)*)? "}}"'

    def _value(self, schema: JsonObject, name: str, depth: int) -> str:
        if depth > _MAX_SCHEMA_DEPTH:
            return self._common_rule("value")
        choices = self._choices(schema, name, depth)
        if schema.get("nullable") is True and '"null"' not in choices:
            choices.append('"null"')
        return choices[0] if len(choices) == 1 else f"({' | '.join(choices)})"

    def _choices(self, schema: JsonObject, name: str, depth: int) -> list[str]:
        if enum := list_at(schema, "enum"):
            return [_literal(format_value(each, tokens=self._tokens)) for each in enum]
        if several := objects_at(schema, "anyOf") or objects_at(schema, "oneOf"):
            return [self._value(each, f"{name}-{_letters(number)}", depth + 1) for number, each in enumerate(several)]
        kinds = schema.get("type")
        if not isinstance(kinds, list):
            return [self._type(kinds, schema, name, depth)]
        return [self._type(kind, schema, f"{name}-{_letters(number)}", depth) for number, kind in enumerate(kinds)]

    def _type(self, kind: JsonValue, schema: JsonObject, name: str, depth: int) -> str:
        match str(kind).lower():
            case "null":
                return '"null"'
            case "string" | "integer" | "number" | "boolean" as simple:
                return self._common_rule(simple)
            case "array":
                if not (items := object_at(schema, "items")):
                    return self._common_rule("array")
                self._rules[f"{name}-item"] = self._value(items, f"{name}-items", depth + 1)
                return f'"[" ({name}-item ("," {name}-item)*)? "]"'
            case "object":
                return self._object(schema, name, depth)
        return self._common_rule("value")

    def _common_rule(self, rule: str) -> str:
        """Write a rule that is the same in every grammar, and those that it needs; return its name."""
        if rule not in self._rules:
            if rule == "string":
                self._string()
            else:
                self._rules[rule] = _COMMON[rule]
            for needed in _NEEDED_RULES.get(rule, ()):
                self._common_rule(needed)
        return rule

    def _string(self) -> None:
        escape = self._tokens.escape
        self._rules["string"] = f"{_literal(escape)} in-string-a"
        self._write_matcher(
            "in-string", ends=(escape,), never=[each for each in self._tokens.control if each != escape]
        )

    def _text(self) -> str:
        self._write_matcher("text", ends=(), never=self._tokens.control)
        return "text-a"

    def _write_matcher(self, name: str, *, ends: Sequence[str], never: Iterable[str]) -> None:
        """Write rules for a text without any of `never` that ends with one of `ends` or, if there are none, anywhere.

        GBNF has no negation, so the rules are a state machine with one state for each prefix of a token. `<` is the
        first character of every token and in none again, so a failed match can only restart at the next `<`.
        """
        # State 0 is the empty prefix. A character extends the prefix, restarts it ("<"), or leads to state 0 if it fits
        # no token. The last character of a forbidden token has no rule, so it cannot be written; that of an end has a
        # rule without a following state.
        trie = _Trie([*ends, *never])
        for state, following in enumerate(trie.states):
            others = "".join(sorted(_escape_in_class(char) for char in {*following, "<"}))
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
    """The prefixes of words as states; state 0 is the empty prefix."""

    def __init__(self, words: Sequence[str]) -> None:
        self.states: list[dict[str, int]] = [{}]
        self.complete: list[str] = [""]
        """For each state the word that it completes; empty: none."""
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
_NEEDED_RULES = {
    "value": ("string", "number", "boolean", "object", "array"),
    "object": ("pair",),
    "pair": ("key", "value"),
    "array": ("value",),
}


def _letters(number: int) -> str:
    """Return a number in letters for a rule's name, because not every parser of GBNF accepts digits there."""
    return str(number).translate(_DIGITS)


def _literal(text: str) -> str:
    """Return `text` as a GBNF terminal."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape_in_class(char: str) -> str:
    # In a character class these four characters have a special meaning.
    return _escape(char) if char in "\\]^-" else char


def _escape(char: str | re.Match[str]) -> str:
    """Return a character as its code point, the only escape that all parsers of GBNF know."""
    return f"\\x{ord(char if isinstance(char, str) else char[0]):02X}"
