"""The parts of `conv` that last from function to function, and the checkpoints by which its state outlives a worker.

`State`, `Entities`, `Variant`, `Memory` and `KnowledgeBase` are what project code sees. `StateKeeper` finds the changes
of `conv.state` after each function: as pickles for a replacement worker, and as JSON for the record.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from callagent.agents.kernel import error_message, to_json_or_note
from callagent.json_values import JsonObject, MutableJsonObject, number_at


class State(dict[Any, Any]):
    """`conv.state`: a missing attribute is None, a missing item a `KeyError`."""

    def __getattr__(self, name: str) -> Any:
        # Pickle and copy look for such methods, and would call a None in their place.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: object) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self.pop(name, None)


class Variant(State):
    """The active variant's attributes; falsy when the project has none."""


class Entities(State):
    """`conv.entities`: collected values by entity name; a missing one is None."""


class ReadOnlyDict(dict[Any, Any]):
    """`conv.real_time_config`: a dict that cannot be changed."""

    def _refuse(self, *_arguments: object, **_more: object) -> NoReturn:
        raise TypeError("this mapping is read-only")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse


RealtimeConfig = ReadOnlyDict


class LineMemory:
    """`conv.memory.line_memory`: statistics of the caller's earlier calls; falsy when there were none."""

    def __init__(self, fields: JsonObject | None = None) -> None:
        self._fields = dict(fields or {})
        self.available = bool(self._fields)
        self.returning = bool(self._fields.get("returning"))
        self.contact_count = int(number_at(self._fields, "contact_count"))
        self.last_seen = self._fields.get("last_seen")
        self.preferred_language = self._fields.get("preferred_language")
        self.handoff_count = int(number_at(self._fields, "handoff_count"))
        self.top_handoff_reason = self._fields.get("top_handoff_reason")

    def fields(self) -> dict[str, Any]:
        return dict(self._fields)

    def __bool__(self) -> bool:
        return self.available


class Memory(Mapping[str, Any]):
    """`conv.memory`: values that earlier calls of the same caller have stored; read-only."""

    def __init__(self, fields: JsonObject | None = None, line: JsonObject | None = None) -> None:
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
    """`conv.verified_context`: data that another system vouches for; always empty on this server."""


class KnowledgeBase:
    """`conv.knowledge_base`: topics that are left out of retrieval, for all later turns too."""

    def __init__(self) -> None:
        self.disabled_topics: list[str] = []

    def disable_topics(self, topics: Iterable[str]) -> None:
        self.disabled_topics.extend(topic for topic in topics if topic not in self.disabled_topics)

    def enable_topics(self, topics: Iterable[str]) -> None:
        enabled = set(topics)
        self.disabled_topics = [topic for topic in self.disabled_topics if topic not in enabled]

    def enable_all_topics(self) -> None:
        self.disabled_topics = []


KEY_LIMIT = 4 * 1024 * 1024
TOTAL_LIMIT = 12 * 1024 * 1024
"""Bytes of pickles, per key and in all. A key above a limit is missing in the checkpoint for a replacement worker.

A worker's connection carries larger messages than this.
"""
VIEW_LIMIT = 64 * 1024
VIEW_TOTAL = 512 * 1024
"""Bytes of the state as JSON (its view), per key and in all."""


@dataclass(slots=True)
class StateChange:
    """The changes of the state since the last `StateKeeper.take_changes`."""

    added: MutableJsonObject = field(default_factory=dict)
    updated: MutableJsonObject = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    checkpoint: dict[str, bytes | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def summary(self) -> MutableJsonObject:
        return {"added": self.added, "updated": self.updated, "removed": self.removed}


class StateKeeper:
    """Finds the changes of the state, key by key; nested changes are found by comparing pickles."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pickles: dict[str, bytes] = {}
        self._views: MutableJsonObject = {}
        self._reported: set[str] = set()

    @property
    def view(self) -> MutableJsonObject:
        return dict(self._views)

    def restore(self, checkpoint: Mapping[str, bytes]) -> list[str]:
        """Fill the state from a checkpoint; return the problems of keys that could not be restored."""
        problems = []
        for name, pickled in checkpoint.items():
            try:
                # Each key has a pickle of its own, so that an unreadable one loses its key only. The pickles come from
                # an earlier worker of the same call: nobody else can write them.
                key, value = pickle.loads(pickled)
            except Exception as error:  # a class of the project that is gone or cannot be built again
                problems.append(f"state key {name!r} is lost: {type(error).__name__}: {error_message(error)}")
                continue
            self._state[key] = value
            self._pickles[name] = pickled
        self._views = self._make_views()
        return problems

    def take_changes(self) -> StateChange:
        """Return the changes of the state since the last call of this method."""
        change = StateChange()
        self._compare_views(change)
        self._compare_pickles(change)
        return change

    def _compare_views(self, change: StateChange) -> None:
        before, now = self._views, self._make_views()
        change.added = {name: view for name, view in now.items() if name not in before}
        # Compared by views, because pickles of equal values may differ, and the record shows views.
        change.updated = {name: view for name, view in now.items() if name in before and before[name] != view}
        change.removed = [name for name in before if name not in now]
        self._views = now

    def _compare_pickles(self, change: StateChange) -> None:
        # Compared by pickles: a nested change, such as an append to a list, leaves the key's object the same.
        pickles: dict[str, bytes] = {}
        total = 0
        for key, value in list(self._state.items()):
            name = _key_text(key)
            try:
                pickled = pickle.dumps((key, value), protocol=5)
            except Exception as error:  # the value's own code runs; the other keys must survive it
                self._report_once(change, name, f"{type(error).__name__}: {error_message(error)}")
                continue
            # This worker goes on with the value; only a replacement worker would be without it.
            if len(pickled) > KEY_LIMIT or total + len(pickled) > TOTAL_LIMIT:
                self._report_once(change, name, f"its {len(pickled)} bytes exceed a limit")
                continue
            total += len(pickled)
            pickles[name] = pickled
            if self._pickles.get(name) != pickled:
                change.checkpoint[name] = pickled
        for name in self._pickles.keys() - pickles.keys():
            # None deletes the key from the checkpoint.
            change.checkpoint[name] = None
        self._pickles = pickles

    def _report_once(self, change: StateChange, name: str, why: str) -> None:
        """Report a problem once for each key, because the value is likely to stay for the rest of the call."""
        if name not in self._reported:
            self._reported.add(name)
            change.problems.append(f"state key {name!r} cannot be kept for a replacement worker: {why}")

    def _make_views(self) -> MutableJsonObject:
        views = {}
        left = VIEW_TOTAL
        for key, value in list(self._state.items()):
            view = to_json_or_note(value, min(VIEW_LIMIT, left)) if left > 0 else "<not shown>"
            # Limited for all keys together, because the views are sent to the core after each function.
            left -= len(repr(view))
            views[_key_text(key)] = view
        return views


def _key_text(key: object) -> str:
    """Return the text that stands for a key; the pickle holds the key itself."""
    return key.encode("utf-8", "replace").decode() if isinstance(key, str) else repr(key)
