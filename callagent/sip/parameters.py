"""Parameters of a header field or a URI: `;name=value;flag`, names without case."""

from __future__ import annotations

import re
from dataclasses import dataclass

from callagent.sip.grammar import QUOTED_STRING, TOKEN, split_list, unquote

_PARAMETER = re.compile(rf"({TOKEN})(?:\s*=\s*({QUOTED_STRING}|[^\s\"<>;,=]+))?", re.DOTALL)

_PLAIN = re.compile(rf"(?:;{TOKEN}(?:=[^\s\"<>;,=]++)?)++")
"""What nearly all are: no quotes, no spaces."""


@dataclass(frozen=True, slots=True)
class Parameters:
    items: tuple[tuple[str, str | None], ...] = ()
    """Name and value as written; None for a flag. A quoted value keeps its quotes."""

    @classmethod
    def parse(cls, value: str) -> Parameters:
        """Parse `;name=value…`; an empty text is no parameters."""
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
        for own, _ in self.items:  # noqa: SIM110 - several for each message: a generator takes three times as long.
            if own.lower() == name:
                return True
        return False

    def get(self, name: str) -> str | None:
        """The unquoted value; None when absent or a flag. `name` in lower case."""
        for own, value in self.items:
            if own.lower() == name:
                return None if value is None else unquote(value)
        return None

    def replace(self, name: str, value: str | None) -> Parameters:
        """With `name` set, in its old place where it had one."""
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
