"""The header fields of a SIP message, and the grammar that their values share (RFC 3261 §7.3, §20, §25).

Every pattern and scanner is linear in the length of its input: most quantifiers are possessive (`++`, `*+`), so that no
message makes them backtrack.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar, cast

TOKEN = r"[A-Za-z0-9\-.!%*_+`'~]+"
QUOTED_STRING = r'"(?:[^"\\]|\\.)*+"'
HOSTNAME = r"[A-Za-z0-9][A-Za-z0-9_.\-]*"
IPV6_REFERENCE = r"\[[0-9A-Fa-f:.]{2,45}\]"
HOST = rf"(?:{HOSTNAME}|{IPV6_REFERENCE})"
PORT = r"[0-9]{1,5}"

_MAX_REMEMBERED_LENGTH = 256
"""Characters of the longest text whose parsed value is cached; longer ones would fill the memory."""
_MAX_REMEMBERED_VALUES = 512
"""Parsed values that each cache keeps."""
_BRACKETS = re.compile(r"[\"<>]")
_TOKEN = re.compile(TOKEN)
_QUOTED_PAIR = re.compile(r"\\(.)", re.DOTALL)
_PIECES = {
    separator: re.compile(rf'{QUOTED_STRING}|<[^<>]*+>|[^"<>{separator}]++|{separator}', re.DOTALL)
    for separator in ",;"
}


Parsed = TypeVar("Parsed")


def with_cache(parse: Callable[[str], Parsed]) -> Callable[[str], Parsed]:
    """Return `parse` with a cache for short texts. Its values must be immutable, because they are shared."""
    cached = lru_cache(maxsize=_MAX_REMEMBERED_VALUES)(parse)
    # Errors are not cached, so an invalid value costs its parsing each time.
    return lambda value: cached(value) if len(value) <= _MAX_REMEMBERED_LENGTH else parse(value)


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
    """Replace each octet by %HH that is neither an ASCII letter or digit nor in `allowed`."""
    return "".join(
        chr(byte) if (chr(byte).isalnum() and byte < 128) or chr(byte) in allowed else f"%{byte:02X}"
        for byte in value.encode("utf-8", "surrogateescape")
    )


_PARAMETER = re.compile(rf"({TOKEN})(?:\s*=\s*({QUOTED_STRING}|[^\s\"<>;,=]+))?", re.DOTALL)

_UNQUOTED_PARAMETERS = re.compile(rf"(?:;{TOKEN}(?:=[^\s\"<>;,=]++)?)++")
"""Parameters without quotes and spaces, as nearly all are, which `_split_pair` can split."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of a header field or a URI, such as `;name=value;flag`; names have no case."""

    items: tuple[tuple[str, str | None], ...] = ()
    """Names and values as written; None is the value of a flag. A quoted value keeps its quotes."""

    @classmethod
    def parse(cls, value: str) -> Parameters:
        """Parse `;name=value…`; an empty text has no parameters. Raises `ValueError`."""
        return cls._read(value) if value else _NO_PARAMETERS

    @classmethod
    def _read(cls, value: str) -> Parameters:
        if not value.strip():
            return cls()
        # Both branches have the same result; nearly all values take the faster one.
        if _UNQUOTED_PARAMETERS.fullmatch(value) is not None:
            items = tuple([_split_pair(item) for item in value[1:].split(";")])
        else:
            first, *rest = split_list(value.strip(), ";")
            if first:
                raise ValueError("Parameters are not valid")
            items = tuple(_parse_parameter(item) for item in rest)
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


def _split_pair(item: str) -> tuple[str, str | None]:
    name, equals, value = item.partition("=")
    return name, value if equals else None


def _parse_parameter(item: str) -> tuple[str, str | None]:
    match = _PARAMETER.fullmatch(item)
    if match is None:
        raise ValueError("Parameter is not valid")
    return match[1], match[2]


_NO_PARAMETERS = Parameters()


MAX_HEADERS = 100
MAX_HEADER_LENGTH = 8 * 1024
"""Fields of one message, and characters of one field, that are parsed."""

_COMPACT = {
    "a": "Accept-Contact", "b": "Referred-By", "c": "Content-Type", "d": "Request-Disposition",
    "e": "Content-Encoding", "f": "From", "i": "Call-ID", "j": "Reject-Contact", "k": "Supported",
    "l": "Content-Length", "m": "Contact", "n": "Identity-Info", "o": "Event", "r": "Refer-To", "s": "Subject",
    "t": "To", "u": "Allow-Events", "v": "Via", "x": "Session-Expires", "y": "Identity",
}  # fmt: skip
_UNABRIDGED = (
    *("Accept", "Allow", "Authorization", "CSeq", "Date", "Expires", "Max-Forwards", "Min-SE", "P-Asserted-Identity"),
    *("Privacy", "RAck", "RSeq", "Reason", "Record-Route", "Require", "Route", "Server", "User-Agent"),
)


def _expand_name(name: str) -> tuple[str, str]:
    if not is_token(name):
        raise ValueError("Header is not valid")
    full = _COMPACT.get(name.lower(), name)
    return full, full.lower()


_expand_cached = with_cache(_expand_name)
"""Returns the full name of a field, and that name in lower case."""
# Names in their usual spelling need neither a check nor the cache.
_USUAL_NAMES = {name: (name, name.lower()) for name in (*_COMPACT.values(), *_UNABRIDGED)}


def full_name(name: str) -> str:
    """Return the name of a field, with a compact form expanded (§7.3.3). Raises `ValueError` unless it is a token."""
    return _expand_cached(name)[0]


def _count_values(value: str) -> int:
    return len(split_list(value))


TOO_LARGE = "Headers are too many or too long"

Read = TypeVar("Read")


class Headers:
    """Header fields in order. Names have no case, compact forms are expanded, values have no line breaks."""

    __slots__ = ("_index", "_items", "_read")

    def __init__(self, items: Iterable[tuple[str, str]] = ()) -> None:
        self._items: list[tuple[str, str]] = []
        self._index: dict[str, list[str]] | None = None
        """Values by name in lower case, built when first needed; None after a change."""
        self._read: dict[str, object] = {}
        """Parsed values that `read` keeps; empty after a change."""
        for name, value in items:
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Append one field. Raises `ValueError` for a name that is no token, and for a value with a line break."""
        if "\r" in value or "\n" in value:
            raise ValueError(f"Header {name} is not valid: it contains a line break")
        self._items.append((_expand_cached(name)[0], value.strip()))
        self._clear_caches()

    def add_lines(self, lines: Iterable[str]) -> None:
        """Append unfolded lines as received. Raises `ValueError` at the first invalid one; those before it stay."""
        self._clear_caches()
        items, index = self._items, self._by_name()
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or "\r" in value or "\n" in value:
                raise ValueError("Header is not valid")
            full, lowered = _USUAL_NAMES.get(name) or _expand_cached(name.rstrip(" \t"))
            value = value.strip()
            items.append((full, value))
            index.setdefault(lowered, []).append(value)

    def add_valid(self, name: str, values: Iterable[str]) -> None:
        """Append values that were parsed in another message; `name` is a full name."""
        self._items += [(name, value) for value in values]
        self._clear_caches()

    def insert_first(self, name: str, value: str) -> None:
        """Insert one field before all others."""
        self.add(name, value)
        self._items.insert(0, self._items.pop())

    def set(self, name: str, value: str) -> None:
        """Replace all fields of that name by this one."""
        self.remove(name)
        self.add(name, value)

    def remove(self, name: str) -> None:
        lowered = name.lower()
        self._items = [item for item in self._items if item[0].lower() != lowered]
        self._clear_caches()

    def get(self, name: str) -> str | None:
        """Return the first value of a field, or None."""
        values = self.values(name)
        return values[0] if values else None

    def values(self, name: str) -> Sequence[str]:
        """Return the values of all fields of that name, in order."""
        # `_by_name` is called only to build the index, because a call costs more than the lookup.
        index = self._index
        return (self._by_name() if index is None else index).get(name.lower(), ())

    def _by_name(self) -> dict[str, list[str]]:
        # Built by the first read after a change: fields that are only written need no index.
        index = self._index
        if index is None:
            index = self._index = {}
            for own, value in self._items:
                index.setdefault(own.lower(), []).append(value)
        return index

    def check(self, required: Mapping[str, str], single: Mapping[str, str]) -> None:
        """Raise `ValueError` if a `required` field is absent or a `single` one occurs twice.

        Both map a name in lower case to its usual form.
        """
        index = self._by_name()
        for lowered, name in required.items():
            if lowered not in index:
                raise ValueError(f"{name} is missing")
        for lowered, name in single.items():
            if len(index.get(lowered, ())) > 1:
                raise ValueError(f"{name} occurs twice")

    def read(self, name: str, parse: Callable[[Headers], Read]) -> Read:
        """Return `parse(self)`, remembered under `name` until a field changes."""
        value = self._read.get(name)
        if value is None:
            value = self._read[name] = parse(self)
        return cast(Read, value)

    def replace_top_via(self, vias: Sequence[object]) -> None:
        """Replace the topmost Via by the first of `vias`, which are all of the message. Other parsed values stay."""
        first, *fields = self.values("Via")
        # The topmost field may hold several values; they are written as fields of their own.
        others = [str(each) for each in vias[1 : len(vias) - sum(map(_count_values, fields))]] if "," in first else []
        values = [str(vias[0]), *others]
        at = next(number for number, item in enumerate(self._items) if item[0].lower() == "via")
        self._items[at : at + 1] = [("Via", value) for value in values]
        if self._index is not None:
            self._index["via"] = [*values, *fields]
        self._read["vias"] = vias

    def _clear_caches(self) -> None:
        self._index = None
        self._read.clear()

    def tokens(self, name: str) -> list[str]:
        """Return the comma-separated elements of all fields of that name. Raises `ValueError`."""
        return [item for value in self.values(name) for item in split_list(value) if item]

    def flags(self, name: str) -> frozenset[str]:
        """Return the comma-separated elements in lower case; none if a field is not valid."""
        try:
            return frozenset(item.lower() for item in self.tokens(name))
        except ValueError:
            return frozenset()

    def supports(self, option_tag: str) -> bool:
        """Whether Supported or Require names the extension (RFC 3261 §19.2)."""
        return option_tag in self.flags("Supported") | self.flags("Require")

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __contains__(self, name: str) -> bool:
        return bool(self.values(name))


_MAX_REASONS = 8
_MAX_CAUSE = 999


@dataclass(frozen=True, slots=True)
class Reason:
    """One value of the Reason header field, which tells why a peer ended a call (RFC 3326)."""

    protocol: str
    """`SIP` (the cause is a status code), `Q.850`, or another."""
    cause: int | None = None
    text: str = ""

    @classmethod
    def parse(cls, value: str) -> Reason:
        """Parse one value. Raises `ValueError`."""
        protocol, separator, rest = value.partition(";")
        protocol = protocol.strip()
        if not is_token(protocol):
            raise ValueError("Reason is not valid")
        parameters = Parameters.parse(separator + rest)
        cause = parameters.get("cause")
        return cls(
            protocol, None if cause is None else parse_integer(cause.strip(), _MAX_CAUSE), parameters.get("text") or ""
        )

    def __str__(self) -> str:
        """Protocol and cause without the text, as metrics count them: `Q.850 16`."""
        return self.protocol if self.cause is None else f"{self.protocol} {self.cause}"


def parse_reasons(values: Sequence[str]) -> tuple[Reason, ...]:
    """Return the valid reasons, eight at most; a message may have one per protocol (RFC 3326 §2)."""
    reasons: list[Reason] = []
    for value in values:
        try:
            reasons += [Reason.parse(item) for item in split_list(value)[:_MAX_REASONS]]
        except ValueError:
            continue
    return tuple(reasons[:_MAX_REASONS])
