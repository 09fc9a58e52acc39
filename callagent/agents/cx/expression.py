"""Conditions in the Common Expression Language, as much of it as transfer rules use.

Literals, lists, `.` and `[]`, `! - * / % + < <= > >= == != in && || ?:`, `has()`, `size()`, `int() double() string()
bool()`, and of texts `contains startsWith endsWith matches lowerAscii upperAscii`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+\.\d+|\d+)|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]]))"
)
_CONSTANTS: Mapping[str, Any] = {"true": True, "false": False, "null": None}
_DEEPEST = 50
_LEVELS: Sequence[tuple[str, ...]] = (("==", "!=", "<", "<=", ">", ">=", "in"), ("+", "-"), ("*", "/", "%"))
_TEXT_METHODS = ("contains", "startsWith", "endsWith", "matches", "lowerAscii", "upperAscii")


class Expression:
    """One condition. Raises ValueError when it cannot be read."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0
        self._names: Mapping[str, Any] = {}
        self._depth = 0
        self._skipping = 0

    def value(self, names: Mapping[str, Any]) -> Any:
        """Raises ValueError when a name is unknown or values do not fit."""
        self._names, self._place, self._skipping = names, 0, 0
        try:
            result = self._ternary()
        except (TypeError, KeyError, IndexError, ZeroDivisionError, re.error) as error:
            raise ValueError(f"cannot be worked out: {error}") from None
        if self._place != len(self._tokens):
            raise ValueError(f"'{self._tokens[self._place][1]}' is not expected")
        return result

    def _ternary(self) -> Any:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ValueError("nested too deeply")
        condition = self._either()
        if self._accept("?"):
            first = self._branch(condition is True)
            self._expect(":")
            second = self._branch(condition is not True)
            condition = first if condition is True else second
        self._depth -= 1
        return condition

    def _branch(self, taken: bool) -> Any:
        self._skipping += not taken
        value = self._ternary()
        self._skipping -= not taken
        return value

    def _either(self) -> Any:
        value = self._both()
        while self._accept("||"):
            self._skipping += value is True
            other = self._both()
            self._skipping -= value is True
            value = value is True or other is True
        return value

    def _both(self) -> Any:
        value = self._level(0)
        while self._accept("&&"):
            self._skipping += value is not True
            other = self._level(0)
            self._skipping -= value is not True
            value = value is True and other is True
        return value

    def _level(self, level: int) -> Any:
        if level == len(_LEVELS):
            return self._unary()
        value = self._level(level + 1)
        while (sign := self._accept(*_LEVELS[level])) is not None:
            other = self._level(level + 1)
            value = None if self._skipping else _apply(sign, value, other)
        return value

    def _unary(self) -> Any:
        if self._accept("!"):
            value = self._unary()
            return None if self._skipping else value is not True
        if self._accept("-"):
            value = self._unary()
            return None if self._skipping else -value
        return self._member()

    def _member(self) -> Any:
        value = self._primary()
        while True:
            if self._accept("."):
                name = self._next("name")
                value = self._call(name, value) if self._accept("(") else self._field(value, name)
            elif self._accept("["):
                key = self._ternary()
                self._expect("]")
                value = None if self._skipping else value[key]
            else:
                return value

    def _field(self, value: Any, name: str) -> Any:
        if self._skipping:
            return None
        if not isinstance(value, Mapping) or name not in value:
            raise ValueError(f"there is no '{name}'")
        return value[name]

    def _primary(self) -> Any:
        kind, text = self._take()
        match kind:
            case "number":
                return float(text) if "." in text else int(text)
            case "text":
                return re.sub(r"\\(.)", r"\1", text[1:-1])
            case "name" if text in _CONSTANTS:
                return _CONSTANTS[text]
            case "name" if text == "has" and self._accept("("):
                return self._has()
            case "name" if self._accept("("):
                return self._call(text, None)
            case "name":
                return self._field(self._names, text)
        if text == "(":
            value = self._ternary()
            self._expect(")")
            return value
        if text == "[":
            return self._arguments("]")
        raise ValueError(f"'{text}' is not expected")

    def _has(self) -> bool:
        """Whether a path leads to something."""
        value: Any = self._names
        while True:
            name = self._next("name")
            value = value.get(name) if isinstance(value, Mapping) else None
            if not self._accept("."):
                self._expect(")")
                return value is not None

    def _call(self, name: str, owner: Any) -> Any:
        arguments = self._arguments(")")
        if self._skipping:
            return None
        subject = [*([owner] if owner is not None else []), *arguments]
        if name in _TEXT_METHODS and subject and isinstance(subject[0], str):
            return _text_method(name, subject[0], [str(each) for each in subject[1:]])
        if len(subject) != 1:
            raise ValueError(f"{name}() takes one argument")
        match name:
            case "size":
                return len(subject[0])
            case "int":
                return int(subject[0])
            case "double":
                return float(subject[0])
            case "string":
                return str(subject[0])
            case "bool":
                return subject[0] is True or subject[0] == "true"
        raise ValueError(f"there is no {name}()")

    def _arguments(self, end: str) -> list[Any]:
        found: list[Any] = []
        while not self._accept(end):
            if found:
                self._expect(",")
            found.append(self._ternary())
        return found

    # Tokens -------------------------------------------------------------------------------------------------------

    def _accept(self, *texts: str) -> str | None:
        if self._place < len(self._tokens):
            kind, text = self._tokens[self._place]
            if kind != "text" and text in texts:
                self._place += 1
                return text
        return None

    def _expect(self, text: str) -> None:
        if self._accept(text) is None:
            raise ValueError(f"'{text}' is missing")

    def _take(self) -> tuple[str, str]:
        if self._place == len(self._tokens):
            raise ValueError("it ends too early")
        self._place += 1
        return self._tokens[self._place - 1]

    def _next(self, kind: str) -> str:
        found, text = self._take()
        if found != kind:
            raise ValueError(f"'{text}' is not expected")
        return text


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    place, text = 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot be read at '{text[place : place + 10]}'")
        place = match.end()
        kind = str(match.lastgroup)
        found.append((kind, match[kind]))
    return found


def _apply(sign: str, left: Any, right: Any) -> Any:
    match sign:
        case "==":
            return left == right
        case "!=":
            return left != right
        case "<":
            return left < right
        case "<=":
            return left <= right
        case ">":
            return left > right
        case ">=":
            return left >= right
        case "in":
            return left in right
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            return left // right if isinstance(left, int) and isinstance(right, int) else left / right
    return left % right


def _text_method(name: str, text: str, arguments: list[str]) -> Any:
    match name, arguments:
        case "contains", [part]:
            return part in text
        case "startsWith", [part]:
            return text.startswith(part)
        case "endsWith", [part]:
            return text.endswith(part)
        case "matches", [pattern]:
            return re.search(pattern, text) is not None
        case "lowerAscii", []:
            return text.lower()
        case "upperAscii", []:
            return text.upper()
    raise ValueError(f"{name}() is given the wrong arguments")
