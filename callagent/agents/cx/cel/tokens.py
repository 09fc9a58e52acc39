"""The words of a condition: names, signs, and literals with their values."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_TOKEN = re.compile(
    r"\s*(?:(?P<hex>0[xX][0-9a-fA-F]+)u?|(?P<float>\d*\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)|(?P<int>\d+)[uU]?"
    r"|(?P<raw>[rR](?:\"[^\"]*\"|'[^']*'))|(?P<text>\"\"\".*?\"\"\"|'''.*?'''|\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]{}]))",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}


@dataclass(frozen=True, slots=True)
class Token:
    kind: str
    """`name`, `sign` or `value`."""
    text: str
    value: Any = None


def tokens(text: str) -> list[Token]:
    """Raises ValueError where the text is no expression."""
    found: list[Token] = []
    place, text = 0, text.rstrip()
    while place < len(text):
        match = _TOKEN.match(text, place)
        if match is None:
            raise ValueError(f"cannot be read at '{text[place : place + 10]}'")
        place = match.end()
        kind = str(match.lastgroup)
        found.append(_token(kind, match[kind]))
    return found


def _token(kind: str, text: str) -> Token:
    match kind:
        case "hex":
            return Token("value", text, int(text, 16))
        case "float":
            return Token("value", text, float(text))
        case "int":
            return Token("value", text, int(text))
        case "raw":
            return Token("value", text, text[2:-1])
        case "text":
            width = 3 if text[:3] in ('"""', "'''") else 1
            return Token("value", text, _ESCAPE.sub(_unescaped, text[width:-width]))
    return Token(kind, text)


def _unescaped(found: re.Match[str]) -> str:
    escaped = found[1]
    if len(escaped) > 1:
        return chr(int(escaped[1:], 16))
    return _ESCAPED.get(escaped, escaped)
