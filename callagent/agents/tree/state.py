"""The state of a call: plain data under keys whose prefix is their scope (`user:`, `app:`, `temp:`; none: the call)."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from callagent.agents.tree.call_storage import Files, Memory
from callagent.agents.tree.events import JsonObject
from callagent.agents.tree.worker_protocol import StateChanges

APP, USER, TEMP = "app:", "user:", "temp:"
MAX_USERS = 10_000
"""Callers whose `user:` keys are kept; the one whose keys have not changed for longest is dropped first."""
MAX_USERS_WITH_FILES = 100
"""Callers whose `user:` artifacts are kept."""


class State:
    """The state that the agents of one call share, and which of its keys the worker does not know yet."""

    def __init__(self, values: JsonObject | None = None) -> None:
        self.values: dict[str, Any] = copy.deepcopy(dict(values or {}))
        self._unsent: dict[str, Any] = dict(self.values)
        self._unsent_removed: set[str] = set()

    def apply(self, delta: JsonObject, removed: Sequence[str] = ()) -> None:
        """Set and remove keys on the core's side. Values that do not change are not sent to the worker."""
        # A copy, because the owner of the delta may go on changing the values in it.
        # Most deltas repeat what the worker itself has written (`take`): equal values need not be sent back to it.
        changed = copy.deepcopy({key: value for key, value in delta.items() if not self._has(key, value)})
        gone = [key for key in removed if key in self.values]
        self._set(changed, gone)
        self._unsent.update(changed)
        self._unsent_removed = (self._unsent_removed - changed.keys()) | set(gone)
        for key in gone:
            self._unsent.pop(key, None)

    def take(self, delta: JsonObject, removed: Sequence[str] = ()) -> None:
        """Set and remove keys as the worker has done already."""
        self._set(copy.deepcopy(dict(delta)), removed)

    def unsent(self) -> StateChanges:
        """Return the changes that the worker does not know yet."""
        return {"set": dict(self._unsent), "removed": sorted(self._unsent_removed)}

    def sent(self) -> None:
        """Regard all changes as known to the worker."""
        self._unsent.clear()
        self._unsent_removed.clear()

    def unknown(self) -> None:
        """Regard all keys as unknown to the worker, because it has been replaced."""
        self._unsent = dict(self.values)

    def drop_temporary(self) -> None:
        """Remove the `temp:` keys at the end of a turn."""
        self.apply({}, [key for key in self.values if key.startswith(TEMP)])

    def _has(self, key: str, value: object) -> bool:
        return key in self.values and self.values[key] == value

    def _set(self, delta: JsonObject, removed: Sequence[str]) -> None:
        self.values.update(delta)
        for key in removed:
            self.values.pop(key, None)


class SharedState:
    """What outlives a call: `app:` keys of a project, and `user:` keys, artifacts and memories of its callers.

    It lives in this process only and is gone when the server ends. A caller without a number has nothing kept.
    """

    def __init__(self) -> None:
        self._app: dict[str, Any] = {}
        self._users: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._files: OrderedDict[str, Files] = OrderedDict()
        self.memory = Memory()

    def files(self, user: str) -> Files:
        """Return the caller's artifacts."""
        return self._files.get(user, {})

    def keep_files(self, user: str, files: Files) -> None:
        """Keep the artifacts of a caller; those of callers without a number are not kept."""
        if not user:
            return
        self._files[user] = files
        self._files.move_to_end(user)
        if len(self._files) > MAX_USERS_WITH_FILES:
            self._files.popitem(last=False)

    def initial(self, user: str) -> dict[str, Any]:
        """Return a copy of the keys that a call of this caller starts with."""
        return copy.deepcopy({**self._app, **self._users.get(user, {})})

    def take(self, user: str, delta: JsonObject, removed: Sequence[str]) -> None:
        """Take over the `app:` and `user:` keys that a call of this caller has changed."""
        for key in removed:
            self._app.pop(key, None)
            self._users.get(user, {}).pop(key, None)
        self._app.update({key: copy.deepcopy(value) for key, value in delta.items() if key.startswith(APP)})
        own = {key: copy.deepcopy(value) for key, value in delta.items() if key.startswith(USER)}
        if not own or not user:
            return
        self._users.setdefault(user, {}).update(own)
        self._users.move_to_end(user)
        if len(self._users) > MAX_USERS:
            self._users.popitem(last=False)


Change = tuple[JsonObject, Sequence[str]]
"""Keys set and keys removed."""
_NOTHING = object()


def merge_changes(before: JsonObject, changes: Sequence[Change]) -> list[Change]:
    """Merge the changes that several pieces of code made side by side, each to its own copy of the state `before`.

    Returns the same changes brought into agreement, so that applying them in any order gives the merged state.
    `changes` are in the order in which the code ended: where two changed the same value, at whatever depth of nested
    objects, the last one wins.
    """
    after: Any = before
    for changed, removed in changes:
        own = {key: value for key, value in {**before, **changed}.items() if key not in removed}
        after = _merged(before, after, own)
    return [_agreed(after, [*changed, *removed]) for changed, removed in changes]


def _agreed(after: JsonObject, keys: Sequence[str]) -> Change:
    return {key: after[key] for key in keys if key in after}, [key for key in keys if key not in after]


def _merged(before: Any, first: Any, second: Any) -> Any:
    """Return `first` with what `second` changed relative to `before`."""
    if not all(isinstance(each, Mapping) for each in (before, first, second)):
        return second
    merged = {}
    for key in {**first, **second}:
        old, one, other = (each.get(key, _NOTHING) for each in (before, first, second))
        value = one if _same(other, old) else other if _same(one, old) else _merged(old, one, other)
        if value is not _NOTHING:
            merged[key] = value
    return merged


def _same(one: object, other: object) -> bool:
    return one is other or bool(one == other)
