"""Whether a text fits a GBNF grammar: a reader of the notation and a matcher by sets of stacks."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

Symbol = str | frozenset[str] | tuple[str, frozenset[tuple[str, str]]]
"""A rule's name (`@name`), or a set of character ranges with `in` or `not`."""
Sequence = tuple[Symbol, ...]
Stack = tuple["Symbol", "Stack"] | None

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|\[(?:[^\]\\]|\\.)*\]|[A-Za-z0-9-]+|[()|*+?]|\{\d+(?:,\d*)?\})')
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t"}
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|u[0-9A-Fa-f]{4}|U[0-9A-Fa-f]{8}|.)", re.DOTALL)


@dataclass
class Grammar:
    rules: dict[str, list[Sequence]] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Grammar:
        grammar = cls()
        for line in text.splitlines():
            name, _, body = line.partition(" ::= ")
            assert re.fullmatch(r"[A-Za-z0-9-]+", name), f"the rule's name {name!r} is not valid"
            assert name not in grammar.rules, f"{name} stands twice"
            grammar.rules[name] = []
            grammar.rules[name] = _Body(grammar, body).read()
        for alternatives in list(grammar.rules.values()):
            for symbol in (symbol for sequence in alternatives for symbol in sequence):
                assert not isinstance(symbol, str) or symbol[1:] in grammar.rules, f"{symbol} is not defined"
        return grammar

    def accepts(self, text: str) -> bool:
        stacks = self._expanded({("@root", None)})
        for char in text:
            stacks = self._expanded({stack[1] for stack in stacks if stack and _fits(char, stack[0])})
            if not stacks:
                return False
        return None in stacks

    def _expanded(self, stacks: set[Stack]) -> set[Stack]:
        """Every stack that begins with characters, or is empty."""
        waiting, seen, done = list(stacks), set(stacks), set()
        while waiting:
            stack = waiting.pop()
            if stack is None or not isinstance(stack[0], str):
                done.add(stack)
                continue
            for sequence in self.rules[stack[0][1:]]:
                following = stack[1]
                for symbol in reversed(sequence):
                    following = (symbol, following)
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return done


class _Body:
    """One rule's right side; groups and repetitions become rules of their own."""

    def __init__(self, grammar: Grammar, text: str) -> None:
        self._grammar = grammar
        self._tokens: list[str] = []
        at = 0
        while text[at:].strip():
            token = _TOKEN.match(text, at)
            assert token, f"not GBNF: {text[at : at + 40]!r}"
            self._tokens.append(token[1])
            at = token.end()

    def read(self) -> list[Sequence]:
        alternatives = self._alternatives()
        assert not self._tokens, self._tokens
        return alternatives

    def _alternatives(self) -> list[Sequence]:
        found: list[Sequence] = []
        while True:
            sequence: Sequence = ()
            while self._tokens and self._tokens[0] not in ("|", ")"):
                sequence += self._repeated(self._item())
            found.append(sequence)
            if not self._tokens or self._tokens[0] == ")":
                return found
            self._tokens.pop(0)

    def _item(self) -> Sequence:
        token = self._tokens.pop(0)
        if token == "(":
            inner = self._alternatives()
            assert self._tokens.pop(0) == ")"
            return (self._rule(inner),)
        if token.startswith('"'):
            return tuple(("in", frozenset({(char, char)})) for char in _unescaped(token[1:-1]))
        if token.startswith("["):
            return (_char_class(token[1:-1]),)
        assert re.fullmatch(r"[A-Za-z0-9-]+", token), token
        return (f"@{token}",)

    def _repeated(self, item: Sequence) -> Sequence:
        if not self._tokens or self._tokens[0][0] not in "*+?{":
            return item
        sign = self._tokens.pop(0)
        assert sign[0] != "{", "not used by our grammars"
        if sign == "?":
            return (self._rule([item, ()]),)
        again = self._rule([])
        self._grammar.rules[again[1:]] = [(*item, again), ()]
        return (*item, again) if sign == "+" else (again,)

    def _rule(self, alternatives: list[Sequence]) -> str:
        name = f"anonymous-{len(self._grammar.rules)}"
        self._grammar.rules[name] = alternatives
        return f"@{name}"


def _fits(char: str, symbol: Symbol) -> bool:
    kind, ranges = symbol
    return any(low <= char <= high for low, high in ranges) == (kind == "in")


def _unescaped(text: str) -> str:
    def plain(escape: re.Match[str]) -> str:
        code = escape[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else _ESCAPES.get(code, code)

    return _ESCAPE.sub(plain, text)


def _char_class(text: str) -> tuple[str, frozenset[tuple[str, str]]]:
    kind = "not" if text.startswith("^") else "in"
    chars = [_unescaped(each) for each in re.findall(r"\\(?:x..|u....|.)|[^\\]", text.removeprefix("^"), re.DOTALL)]
    ranges, raw = set(), re.findall(r"\\(?:x..|u....|.)|[^\\]", text.removeprefix("^"), re.DOTALL)
    at = 0
    while at < len(chars):
        if at + 2 < len(chars) and raw[at + 1] == "-":
            ranges.add((chars[at], chars[at + 2]))
            at += 3
        else:
            ranges.add((chars[at], chars[at]))
            at += 1
    return kind, frozenset(ranges)
