"""Patterns of the RFC 3261 §25 grammar, scanners for lists and quoted strings, and parameters.

Every pattern and scanner is linear in the length of its input: most quantifiers are possessive (`++`, `*+`), so that no
message makes them backtrack.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

TOKEN = r"[A-Za-z0-9\-.!%*_+`'~]+"
QUOTED_STRING = r'"(?:[^"\\]|\\.)*+"'
HOSTNAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]*"
IPV6_REFERENCE = r"\[[0-9A-Fa-f:.]{2,45}\]"
HOST = rf"(?:{HOSTNAME}|{IPV6_REFERENCE})"
PORT = r"[0-9]{1,5}"

_MAX_REMEMBERED_LENGTH = 256
"""Characters of a text whose parsed value is cached; longer texts would fill the memory."""
_MAX_REMEMBERED_VALUES = 512
_BRACKETS = re.compile(r"[\"<>]")
_TOKEN = re.compile(TOKEN)
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)
_PIECES = {
    separator: re.compile(rf'{QUOTED_STRING}|<[^<>]*+>|[^"<>{separator}]++|{separator}', re.DOTALL)
    for separator in ",;"
}


Parsed = TypeVar("Parsed")


def remember(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Cache the values of short texts, which must be immutable: one message asks for the same several times."""
    known = lru_cache(maxsize=_MAX_REMEMBERED_VALUES)(parse)
    return lambda value: known(value) if len(value) <= _MAX_REMEMBERED_LENGTH else parse(value)


def is_token(value: str) -> bool:
    return _TOKEN.fullmatch(value) is not None


def parse_integer(value: str, maximum: int) -> int:
    """Return a number of at most ten ASCII digits and not above `maximum`. Raises `ValueError`."""
    # The length is checked before the conversion, whose time grows with the square of the length.
    if not value.isascii() or not value.isdigit() or len(value.lstrip("0")) > 10 or len(value) > 20:
        raise ValueError("Number is not valid")
    number = int(value)
    if number > maximum:
        raise ValueError("Number is out of range")
    return number


def parse_port(value: str) -> int:
    port = parse_integer(value, 65535)
    if port == 0:
        raise ValueError("Port is not valid")
    return port


def check_host(host: str) -> str:
    """Return the host unchanged. Raises `ValueError` if brackets hold anything but an IPv6 address."""
    if host.startswith("["):
        # RFC 3261 had a grammar error that allows three colons before an embedded IPv4 address (RFC 5118 §4.10).
        ipaddress.IPv6Address(host[1:-1].replace(":::", "::"))
    return host


def split_list(value: str, separator: str = ",") -> list[str]:
    """Split at separators (comma or semicolon) that are outside of quoted strings and angle brackets."""
    if separator not in value:
        return [value.strip()]
    if not _BRACKETS.search(value):
        return [item.strip() for item in value.split(separator)]
    pieces = _PIECES[separator]
    items: list[str] = []
    current: list[str] = []
    position = 0
    while position < len(value):
        match = pieces.match(value, position)
        if match is None:
            raise ValueError("List is not valid")
        position = match.end()
        if match.group() == separator:
            items.append("".join(current).strip())
            current = []
        else:
            current.append(match.group())
    items.append("".join(current).strip())
    return items


def quote(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def unquote(value: str) -> str:
    """Return the text of a quoted string; any other text unchanged."""
    if len(value) >= 2 and value[0] == value[-1] == '"':
        inner = value[1:-1]
        return _QUOTED_PAIR.sub(r"\1", inner) if "\\" in inner else inner
    return value


def unescape(value: str) -> str:
    """Replace %HH by the character it stands for (RFC 3261 §19.1.2)."""
    if "%" not in value:
        return value
    raw = value.encode("utf-8", "surrogateescape")
    parts = re.split(rb"%([0-9A-Fa-f]{2})", raw)
    decoded = b"".join(bytes.fromhex(part.decode()) if index % 2 else part for index, part in enumerate(parts))
    return decoded.decode("utf-8", "replace")


def escape(value: str, allowed: str) -> str:
    """Replace by %HH what is neither a letter, a digit nor in `allowed`."""
    return "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or chr(byte) in allowed else f"%{byte:02X}"
        for byte in value.encode("utf-8", "surrogateescape")
    )


_PARAMETER = re.compile(rf"({TOKEN})(?:\s*=\s*({QUOTED_STRING}|[^\s\"<>;,=]+))?", re.DOTALL)

_PLAIN = re.compile(rf"(?:;{TOKEN}(?:=[^\s\"<>;,=]++)?)++")
"""Parameters without quotes and spaces, as nearly all are; they are split without the scanner."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a header field or a URI, such as `;name=value;flag`; names have no case."""

    items: tuple[tuple[str, str | None], ...] = ()
    """Names and values as written; None is the value of a flag. A quoted value keeps its quotes."""

    @classmethod
    def parse(cls, value: str) -> Parameters:
        """Parse `;name=value…`; an empty text has no parameters. Raises `ValueError`."""
        return cls._read(value) if value else _NONE

    @classmethod
    def _read(cls, value: str) -> Parameters:
        if not value.strip():
            return cls()
        if _PLAIN.fullmatch(value) is not None:
            items = tuple([_split(item) for item in value[1:].split(";")])
        else:
            first, *rest = split_list(value.strip(), ";")
            if first:
                raise ValueError("Parameters are not valid")
            items = tuple(_parse_one(item) for item in rest)
        if len(items) > 1 and len({name.lower() for name, _ in items}) != len(items):
            raise ValueError("Parameter occurs twice")
        return cls(items)

    def __str__(self) -> str:
        return "".join([f";{name}" if value is None else f";{name}={value}" for name, value in self.items])

    def __contains__(self, name: str) -> bool:
        for own, _ in self.items:  # noqa: SIM110 - called several times per message; a generator takes three times as long.
            if own.lower() == name:
                return True
        return False

    def get(self, name: str) -> str | None:
        """Return the value without quotes; None if absent or a flag. `name` is in lower case."""
        for own, value in self.items:
            if own.lower() == name:
                return None if value is None else unquote(value)
        return None

    def replace(self, name: str, value: str | None) -> Parameters:
        """Return these parameters with `name` set, at its old position if it had one."""
        if name in self:
            return Parameters(tuple([(own, value if own.lower() == name else old) for own, old in self.items]))
        return Parameters((*self.items, (name, value)))


def _split(item: str) -> tuple[str, str | None]:
    name, equals, value = item.partition("=")
    return name, value if equals else None


def _parse_one(item: str) -> tuple[str, str | None]:
    match = _PARAMETER.fullmatch(item)
    if match is None:
        raise ValueError("Parameter is not valid")
    return match[1], match[2]


_NONE = Parameters()
