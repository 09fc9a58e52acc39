"""Changes of `conv.state` between functions: as pickles for a replacement worker and as JSON for the record."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.flows.runtime.state import State
from callagent.agents.kernel.runtime import error_message, project_or_note

KEY_LIMIT = 4 * 1024 * 1024
TOTAL_LIMIT = 12 * 1024 * 1024
"""Bytes of pickles; above it a key is not kept for a replacement. The frame limit of a worker is higher."""
VIEW_LIMIT = 64 * 1024
VIEW_TOTAL = 512 * 1024
"""Bytes of JSON, per key and in all."""


@dataclass(slots=True)
class StateChange:
    """The changes of the state since the last `StateKeeper.look`."""

    added: dict[str, Any] = field(default_factory=dict)
    updated: dict[str, Any] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    checkpoint: dict[str, bytes | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def summary(self) -> dict[str, Any]:
        return {"added": self.added, "updated": self.updated, "removed": self.removed}


class StateKeeper:
    """Compares the live state with the last one kept, key by key; nested changes are found by their pickles."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._pickles: dict[str, bytes] = {}
        self._views: dict[str, Any] = {}
        self._told: set[str] = set()

    @property
    def view(self) -> dict[str, Any]:
        return dict(self._views)

    def restore(self, checkpoint: Mapping[str, bytes]) -> list[str]:
        """Fill the state from a checkpoint; return the problems of keys that could not be restored."""
        problems = []
        for name, pickled in checkpoint.items():
            try:
                key, value = pickle.loads(pickled)
            except Exception as error:  # a class of the project that is gone or cannot be built again
                problems.append(f"state key {name!r} is lost: {type(error).__name__}: {error_message(error)}")
                continue
            self._state[key] = value
            self._pickles[name] = pickled
        self._views = self._project()
        return problems

    def look(self) -> StateChange:
        """Return the changes since the last look."""
        change = StateChange()
        self._compare_views(change)
        self._compare_pickles(change)
        return change

    def _compare_views(self, change: StateChange) -> None:
        before, now = self._views, self._project()
        change.added = {name: view for name, view in now.items() if name not in before}
        change.updated = {name: view for name, view in now.items() if name in before and before[name] != view}
        change.removed = [name for name in before if name not in now]
        self._views = now

    def _compare_pickles(self, change: StateChange) -> None:
        kept: dict[str, bytes] = {}
        total = 0
        for key, value in list(self._state.items()):
            name = _name(key)
            try:
                pickled = pickle.dumps((key, value), protocol=5)
            except Exception as error:  # the value's own code runs; the other keys must survive it
                self._tell(change, name, f"{type(error).__name__}: {error_message(error)}")
                continue
            if len(pickled) > KEY_LIMIT or total + len(pickled) > TOTAL_LIMIT:
                self._tell(change, name, f"{len(pickled)} bytes are too many")
                continue
            total += len(pickled)
            kept[name] = pickled
            if self._pickles.get(name) != pickled:
                change.checkpoint[name] = pickled
        for name in self._pickles.keys() - kept.keys():
            change.checkpoint[name] = None
        self._pickles = kept

    def _tell(self, change: StateChange, name: str, why: str) -> None:
        """Report a problem once for each key, because the value is likely to stay for the rest of the call."""
        if name not in self._told:
            self._told.add(name)
            change.problems.append(f"state key {name!r} cannot be kept: {why}")

    def _project(self) -> dict[str, Any]:
        views = {}
        left = VIEW_TOTAL
        for key, value in list(self._state.items()):
            view = project_or_note(value, min(VIEW_LIMIT, left)) if left > 0 else "<not shown>"
            left -= len(repr(view))
            views[_name(key)] = view
        return views


def _name(key: Any) -> str:
    """Return the text that stands for a key; the pickle holds the key itself."""
    return key.encode("utf-8", "replace").decode() if isinstance(key, str) else repr(key)
