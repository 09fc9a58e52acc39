"""A conversation's state and events as project code holds them."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.kernel.runtime import project_or_note

VALUE_LIMIT = 256 * 1024
"""Bytes of JSON that one key may have."""
PICKLE_LIMIT = 4 * 1024 * 1024
"""Bytes of one key for a replacement; a larger one is known by its JSON form only."""


class LiveState(dict[str, Any]):
    """A dict that knows which keys were written, also when the value stayed the same."""

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
    state: LiveState = field(default_factory=LiveState)
    events: list[Any] = field(default_factory=list)
    """As the format shows events to its code."""
    _views: dict[str, Any] = field(default_factory=dict)
    _pickles: dict[str, bytes] = field(default_factory=dict)

    def take_state(self, news: Mapping[str, Any]) -> None:
        """What the core changed. A value that shows as it did before stays the object that code put there."""
        for key, value in (news.get("set") or {}).items():
            if key not in self.state or self._views.get(key) != value:
                dict.__setitem__(self.state, key, value)
                self._views[key] = _view(value)
        for key in news.get("removed") or ():
            self.state.pop(key, None)
            self._views.pop(key, None)

    def look(self) -> tuple[dict[str, Any], list[str]]:
        """What code changed since the last look, nested changes included: values by key, and keys that are gone."""
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
        """The pickles that are new since the last one; None: the key is gone."""
        kept: dict[str, bytes] = {}
        for key, value in self.state.items():
            try:
                pickled = pickle.dumps(value, protocol=5)
            except Exception:  # the value's own code runs; its JSON form survives
                continue
            if len(pickled) <= PICKLE_LIMIT:
                kept[key] = pickled
        changes: dict[str, bytes | None] = {key: data for key, data in kept.items() if self._pickles.get(key) != data}
        changes |= dict.fromkeys(self._pickles.keys() - kept.keys())
        self._pickles = kept
        return changes

    def restore(self, checkpoint: Mapping[str, bytes]) -> None:
        for key, pickled in checkpoint.items():
            try:
                value = pickle.loads(pickled)
            except Exception:  # a class of the project that cannot be built again; the core tells its JSON form
                continue
            dict.__setitem__(self.state, key, value)
            self._views[key] = _view(value)
            self._pickles[key] = pickled


def _view(value: Any) -> Any:
    """Data of its own: nested changes show in comparison."""
    return project_or_note(value, VALUE_LIMIT)
