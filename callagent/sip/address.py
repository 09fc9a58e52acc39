"""Addresses as From, To, Contact, Route and their kin write them (RFC 3261 §20.10)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from callagent.sip.grammar import QUOTED_STRING, is_token, quote, remember, split_list, unquote
from callagent.sip.parameters import Parameters
from callagent.sip.uri import Uri

_NAME_ADDRESS = re.compile(
    rf"({QUOTED_STRING}|[^\x00-\x08\x0a-\x1f\"<>,;@\\]*+)\s*<([^<>]*+)>\s*((?:;.*+)?)", re.DOTALL
)
_BARE_ADDRESS = re.compile(r"([^\s<>\";,?]++)\s*((?:;.*+)?)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Address:
    uri: Uri
    display_name: str = ""
    parameters: Parameters = field(default_factory=Parameters)

    @classmethod
    def parse(cls, value: str) -> Address:
        return _parse(value)

    @classmethod
    def _read(cls, value: str) -> Address:
        value = value.strip()
        match = _NAME_ADDRESS.fullmatch(value)
        if match is not None:
            name = unquote(match[1].strip())
            return cls(Uri.parse(match[2]), name, Parameters.parse(match[3]))
        # Without angle brackets every parameter belongs to the header field, and the URI holds none (§20.10).
        match = _BARE_ADDRESS.fullmatch(value)
        if match is None:
            raise ValueError("Address is not valid")
        return cls(Uri.parse(match[1]), "", Parameters.parse(match[2]))

    @classmethod
    def parse_list(cls, value: str) -> list[Address]:
        return [cls.parse(item) for item in split_list(value)]

    def __str__(self) -> str:
        if not self.display_name:
            return f"<{self.uri}>{self.parameters}"
        plain = all(is_token(word) for word in self.display_name.split(" "))
        return f"{self.display_name if plain else quote(self.display_name)} <{self.uri}>{self.parameters}"

    @property
    def tag(self) -> str | None:
        return self.parameters.get("tag")

    def with_tag(self, tag: str) -> Address:
        return Address(self.uri, self.display_name, self.parameters.replace("tag", tag))


_parse = remember(Address._read)
