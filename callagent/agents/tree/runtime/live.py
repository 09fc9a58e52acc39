"""A conversation's state and events in the worker, as the live objects that project code holds and changes."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.kernel import project_or_note

VALUE_LIMIT = 256 * 1024
"""Bytes of JSON that the value of one key may have."""
PICKLE_LIMIT = 4 * 1024 * 1024
"""Bytes of one pickled value in a checkpoint; a replacement worker gets larger values in their JSON form only."""


class LiveState(dict[str, Any]):
    """A dict that notes which keys were written, even when their values stayed the same."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        super().__init__(values or {})
        self.written: set[str] = set()

    def __setitem__(self, key: str, value: Any) -> None:
        self.written.add(key)
        super().__setitem__(key, value)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *args: Any, **named: Any) -> None:
        for key, value in dict(*args, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> LiveState:  # type: ignore[override,misc]
        self.update(other)
        return self

    def has_delta(self) -> bool:
        return bool(self.written)

    def to_dict(self) -> dict[str, Any]:
        return dict(self)


@dataclass(slots=True)
class LiveConversation:
    """A conversation's state and events in the worker.

    The state's values are objects of the project. `_views` has the JSON form of each as the core knows it; comparing
    the two finds changes inside nested objects, which no dict subclass could notice.
    """

    state: LiveState = field(default_factory=LiveState)
    events: list[Any] = field(default_factory=list)
    """The events as the format's objects."""
    _views: dict[str, Any] = field(default_factory=dict)
    _pickles: dict[str, bytes] = field(default_factory=dict)

    def take_state(self, news: Mapping[str, Any]) -> None:
        """Apply the core's changes. A value whose JSON form is unchanged stays the object that the code put there."""
        for key, value in (news.get("set") or {}).items():
            if key not in self.state or self._views.get(key) != value:
                dict.__setitem__(self.state, key, value)
                self._views[key] = _view(value)
        for key in news.get("removed") or ():
            self.state.pop(key, None)
            self._views.pop(key, None)

    def take_changes(self) -> tuple[dict[str, Any], list[str]]:
        """Return what code has changed since the last time: values by key, and removed keys."""
        views = {key: _view(value) for key, value in self.state.items()}
        changed = {
            key: view
            for key, view in views.items()
            if key in self.state.written or key not in self._views or self._views[key] != view
        }
        removed = [key for key in self._views if key not in views]
        self._views = views
        self.state.written.clear()
        return changed, removed

    def checkpoint(self) -> dict[str, bytes | None]:
        """Return the pickled values that have changed since the last checkpoint; None: the key is gone."""
        kept: dict[str, bytes] = {}
        for key, value in self.state.items():
            try:
                pickled = pickle.dumps(value, protocol=5)
            except Exception:  # pickling runs the value's own code; a replacement gets the JSON form
                continue
            if len(pickled) <= PICKLE_LIMIT:
                kept[key] = pickled
        changes: dict[str, bytes | None] = {key: data for key, data in kept.items() if self._pickles.get(key) != data}
        changes |= dict.fromkeys(self._pickles.keys() - kept.keys())
        self._pickles = kept
        return changes

    def restore(self, checkpoint: Mapping[str, bytes]) -> None:
        """Load the values that another worker's checkpoints kept."""
        for key, pickled in checkpoint.items():
            try:
                value = pickle.loads(pickled)
            except Exception:  # a class of the project that cannot be built again; the core sends the JSON form
                continue
            dict.__setitem__(self.state, key, value)
            self._views[key] = _view(value)
            self._pickles[key] = pickled


def _view(value: Any) -> Any:
    """Return the value as JSON data that shares nothing with it."""
    return project_or_note(value, VALUE_LIMIT)
