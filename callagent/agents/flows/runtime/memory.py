"""`conv.memory`: what earlier conversations with the same caller left; read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class LineMemory:
    """What is known of the caller's line; falsy when nothing is."""

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self._fields = dict(fields or {})
        self.available = bool(self._fields)
        self.returning = bool(self._fields.get("returning"))
        self.contact_count = int(self._fields.get("contact_count") or 0)
        self.last_seen = self._fields.get("last_seen")
        self.preferred_language = self._fields.get("preferred_language")
        self.handoff_count = int(self._fields.get("handoff_count") or 0)
        self.top_handoff_reason = self._fields.get("top_handoff_reason")

    def fields(self) -> dict[str, Any]:
        return dict(self._fields)

    def __bool__(self) -> bool:
        return self.available


class Memory(Mapping[str, Any]):
    def __init__(self, fields: Mapping[str, Any] | None = None, line: Mapping[str, Any] | None = None) -> None:
        self._fields = dict(fields or {})
        self.line_memory = LineMemory(line)

    def fields(self) -> dict[str, Any]:
        return dict(self._fields)

    def __getitem__(self, key: str) -> Any:
        return self._fields[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


class VerifiedContext(Memory):
    """What an outside system vouches for; empty here."""
