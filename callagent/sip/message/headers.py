"""The header fields of a SIP message, with compact names expanded (RFC 3261 §7.3, §20), and Reason (RFC 3326)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from callagent.sip.message.addressing import Via
from callagent.sip.message.grammar import Parameters, is_token, parse_integer, remember, split_list

MAX_HEADERS = 100
MAX_HEADER_LENGTH = 8 * 1024

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


def _name(name: str) -> tuple[str, str]:
    if not is_token(name):
        raise ValueError("Header is not valid")
    full = _COMPACT.get(name.lower(), name)
    return full, full.lower()


_names = remember(_name)
"""Returns the full name of a field, and that name in lower case."""
# Names as most peers write them need neither a check nor the cache.
_USUAL_NAMES = {name: (name, name.lower()) for name in (*_COMPACT.values(), *_UNABRIDGED)}


def full_name(name: str) -> str:
    """Return the name of a field, with a compact form expanded (§7.3.3). Raises `ValueError` unless it is a token."""
    return _names(name)[0]


def _count(value: str) -> int:
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
        self._read: dict[str, Any] = {}
        """Parsed values that `read` keeps; empty after a change."""
        for name, value in items:
            self.add(name, value)

    def add(self, name: str, value: str) -> None:
        """Append one field. Raises `ValueError` for what would break the message, such as a line feed."""
        if "\r" in value or "\n" in value:
            raise ValueError("Header is not valid")
        self._items.append((_names(name)[0], value.strip()))
        self._changed()

    def add_lines(self, lines: Iterable[str]) -> None:
        """Append unfolded lines as received. Raises `ValueError` at the first invalid one; those before it stay."""
        self._changed()
        items, index = self._items, self._by_name()
        for line in lines:
            name, colon, value = line.partition(":")
            if not colon or "\r" in value or "\n" in value:
                raise ValueError("Header is not valid")
            full, lowered = _USUAL_NAMES.get(name) or _names(name.rstrip(" \t"))
            value = value.strip()
            items.append((full, value))
            index.setdefault(lowered, []).append(value)

    def take_over(self, name: str, values: Iterable[str]) -> None:
        """Append values from another message, which are known to be valid; `name` is a full name."""
        self._items += [(name, value) for value in values]
        self._changed()

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
        self._changed()

    def get(self, name: str) -> str | None:
        """Return the first value of a field, or None."""
        values = self.values(name)
        return values[0] if values else None

    def values(self, name: str) -> Sequence[str]:
        """Return the values of all fields of that name, in order."""
        return self._by_name().get(name.lower(), ())

    def _by_name(self) -> dict[str, list[str]]:
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
        known = self._read.get(name)
        if known is None:
            known = self._read[name] = parse(self)
        return cast(Read, known)

    def replace_top_via(self, vias: Sequence[Via]) -> None:
        """Replace the topmost Via by the first of `vias`, which are all of the message. Values that were read stay."""
        first, *fields = self.values("Via")
        # The topmost field may hold several values; they are written as fields of their own.
        with_it = [str(each) for each in vias[1 : len(vias) - sum(map(_count, fields))]] if "," in first else []
        values = [str(vias[0]), *with_it]
        at = next(number for number, item in enumerate(self._items) if item[0].lower() == "via")
        self._items[at : at + 1] = [("Via", value) for value in values]
        if self._index is not None:
            self._index["via"] = [*values, *fields]
        self._read["vias"] = vias

    def _changed(self) -> None:
        self._index = None
        self._read.clear()

    def tokens(self, name: str) -> list[str]:
        """Return the comma-separated elements of all fields of that name. Raises `ValueError`."""
        return [item for value in self.values(name) for item in split_list(value) if item]

    def flags(self, name: str) -> frozenset[str]:
        """Return the elements in lower case; none if the field is not valid."""
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
    """One value of the Reason header field: why a peer ended a call."""

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
