"""What the store could not take, in bounded memory: entries in their order, the newest state of each call once."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any, Final

from callagent.records.store import now_text
from callagent.records.types import CallRecord

MAX_BYTES: Final = 16 << 20
"""Of the entries as the spool writes them."""
MAX_ENTRIES: Final = 20_000


class EntryKind(Enum):
    SNAPSHOT = "snapshot"
    """A call's record before its end: a later one, or the final one, says all of it."""
    ENDED = "ended"
    """A call's final record."""
    METRIC = "metric"
    END_ATTEMPT = "end_attempt"


@dataclass(slots=True, eq=False)
class Entry:
    """One thing that a call leaves behind."""

    kind: EntryKind
    call_id: str
    number: int = 0
    """The metric's place in its call, or the attempt's number."""
    name: str = ""
    value: Any = None
    record: CallRecord | None = None
    at: str = field(default_factory=now_text)
    owner: str = ""
    """The process that holds the call, where the entry is from the spool."""
    size: int = 0
    """Bytes, about, until it is encoded."""
    spooled: bool = False
    """Whether the spool has it too."""
    place: int = -1
    """In the backlog's order; it waits where the backlog has it at this place."""

    def to_json(self) -> dict[str, Any]:
        """For the spool. `id` is the same however often the entry is written."""
        shared = {"id": f"{self.call_id}/{self.kind.value}/{self.number}", "kind": self.kind.value, "at": self.at}
        if self.record is not None:
            return {**shared, "call": self.call_id, "record": self.record.to_json()}
        return {**shared, "call": self.call_id, "number": self.number, "name": self.name, "value": self.value}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Entry:
        """Raises `KeyError`, `TypeError` or `ValueError` for what `to_json` did not give."""
        kind, call_id, at = EntryKind(data["kind"]), str(data["call"]), str(data["at"])
        if kind in (EntryKind.SNAPSHOT, EntryKind.ENDED):
            return cls(kind, call_id, record=CallRecord.from_json(data["record"]), at=at, owner=data["owner"])
        return cls(kind, call_id, int(data["number"]), str(data["name"]), data["value"], at=at)


class Backlog:
    """Entries that wait for the store.

    Beyond its bounds the oldest are dropped: first those that the spool has, then snapshots, then any.
    """

    def __init__(self, max_bytes: int = MAX_BYTES, max_entries: int = MAX_ENTRIES) -> None:
        self._max_bytes = max_bytes
        self._max_entries = max_entries
        self._entries: dict[int, Entry] = {}
        self._places: dict[str, int] = {}
        """Call -> where its record waits."""
        self._snapshots: dict[int, None] = {}
        """Places of snapshots, the oldest first."""
        self._next = 0
        self._bytes = 0
        self.lost = 0
        """Entries that neither place could hold, or that no store will ever take; not snapshots."""
        self.evicted = False
        """Whether some entries are in the spool only."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, entry: Entry) -> None:
        """Let `entry` wait. A call's record takes the place of an older one: its metrics come after its row."""
        older = self._places.get(entry.call_id) if entry.record is not None else None
        if older is not None:
            self._bytes -= self._entries[older].size
            self._snapshots.pop(older, None)
            entry.place = older
        else:
            entry.place, self._next = self._next, self._next + 1
        if entry.record is not None:
            self._places[entry.call_id] = entry.place
        if entry.kind is EntryKind.SNAPSHOT:
            self._snapshots[entry.place] = None
        self._entries[entry.place] = entry
        self._bytes += entry.size
        self._make_room()

    def encoded(self, entry: Entry, size: int, *, spooled: bool) -> None:
        """`entry` takes so many bytes, and the spool has it or has not."""
        if self._entries.get(entry.place) is entry:
            self._bytes += size - entry.size
        entry.size, entry.spooled = size, spooled
        self._make_room()

    def discard(self, entry: Entry) -> None:
        """`entry` is in the store, or is not to be. A newer record of its call stays."""
        if self._entries.get(entry.place) is entry:
            self._remove(entry.place)

    def first(self, count: int) -> list[Entry]:
        return list(islice(self._entries.values(), count))

    def _make_room(self) -> None:
        while self._entries and (self._bytes > self._max_bytes or len(self._entries) > self._max_entries):
            place = self._victim()
            if self._entries[place].spooled:
                self.evicted = True
            elif self._entries[place].kind is not EntryKind.SNAPSHOT:
                self.lost += 1
            self._remove(place)

    def _victim(self) -> int:
        first = next(iter(self._entries))
        if self._entries[first].spooled:
            return first
        return next(iter(self._snapshots), first)

    def _remove(self, place: int) -> None:
        entry = self._entries.pop(place)
        self._snapshots.pop(place, None)
        self._bytes -= entry.size
        if self._places.get(entry.call_id) == place:
            del self._places[entry.call_id]
