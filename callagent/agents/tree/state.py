"""The state of a call: plain data under names with scopes (`user:`, `app:`, `temp:`; none: the call)."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

from callagent.agents.tree.call_storage import Files, Memory

APP, USER, TEMP = "app:", "user:", "temp:"
MAX_USERS = 10_000
"""Callers whose `user:` keys are kept; the one that was silent longest goes first."""

MAX_USERS_WITH_FILES = 100


class State:
    """What agents of one call share, and what of it the worker does not know yet."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = copy.deepcopy(dict(values or {}))
        self._unsent: dict[str, Any] = dict(self.values)
        self._unsent_removed: set[str] = set()

    def apply(self, delta: Mapping[str, Any], removed: Sequence[str] = ()) -> None:
        """Set and remove keys; what is as it was need not be told to the worker."""
        # A copy: whoever holds the delta may go on changing what is in it.
        changed = copy.deepcopy({key: value for key, value in delta.items() if not self._has(key, value)})
        gone = [key for key in removed if key in self.values]
        self._set(changed, gone)
        self._unsent.update(changed)
        self._unsent_removed = (self._unsent_removed - changed.keys()) | set(gone)
        for key in gone:
            self._unsent.pop(key, None)

    def take(self, delta: Mapping[str, Any], removed: Sequence[str] = ()) -> None:
        """As above, but it was the worker who did it."""
        self._set(copy.deepcopy(dict(delta)), removed)

    def unsent(self) -> dict[str, Any]:
        """`{"set", "removed"}` for the worker."""
        return {"set": dict(self._unsent), "removed": sorted(self._unsent_removed)}

    def sent(self) -> None:
        """The worker has answered: it knows everything."""
        self._unsent.clear()
        self._unsent_removed.clear()

    def unknown(self) -> None:
        """The worker has been replaced: it is told everything again."""
        self._unsent = dict(self.values)

    def drop_temporary(self) -> None:
        """The end of a turn."""
        self.apply({}, [key for key in self.values if key.startswith(TEMP)])

    def _has(self, key: str, value: Any) -> bool:
        return key in self.values and self.values[key] == value

    def _set(self, delta: Mapping[str, Any], removed: Sequence[str]) -> None:
        self.values.update(delta)
        for key in removed:
            self.values.pop(key, None)


class SharedState:
    """`app:` keys of a project and `user:` keys of its callers, for the calls of this process."""

    def __init__(self) -> None:
        self._app: dict[str, Any] = {}
        self._users: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._files: OrderedDict[str, Files] = OrderedDict()
        self.memory = Memory()

    def files(self, user: str) -> Files:
        """The caller's artifacts."""
        return self._files.get(user, {})

    def keep_files(self, user: str, files: Files) -> None:
        """Of a caller who has some now; nobody's are shared with nobody."""
        if not user:
            return
        self._files[user] = files
        self._files.move_to_end(user)
        if len(self._files) > MAX_USERS_WITH_FILES:
            self._files.popitem(last=False)

    def initial(self, user: str) -> dict[str, Any]:
        """What a call of this caller starts with."""
        return copy.deepcopy({**self._app, **self._users.get(user, {})})

    def take(self, user: str, delta: Mapping[str, Any], removed: Sequence[str]) -> None:
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


Change = tuple[Mapping[str, Any], Sequence[str]]
"""Keys set and keys removed."""
_NOTHING = object()


def merge_changes(before: Mapping[str, Any], changes: Sequence[Change]) -> list[Change]:
    """The same changes in agreement with each other: who applies them, in any order, has everybody's.

    `changes` are in the order in which the code ended: of two that changed the same, at whatever depth of objects, the
    last one holds.
    """
    after: Any = before
    for changed, removed in changes:
        own = {key: value for key, value in {**before, **changed}.items() if key not in removed}
        after = _merged(before, after, own)
    return [_agreed(after, [*changed, *removed]) for changed, removed in changes]


def _agreed(after: Mapping[str, Any], keys: Sequence[str]) -> Change:
    return {key: after[key] for key in keys if key in after}, [key for key in keys if key not in after]


def _merged(before: Any, first: Any, second: Any) -> Any:
    """`first`, with what `second` changed of what was `before`."""
    if not all(isinstance(each, Mapping) for each in (before, first, second)):
        return second
    merged = {}
    for key in {**first, **second}:
        old, one, other = (each.get(key, _NOTHING) for each in (before, first, second))
        value = one if _same(other, old) else other if _same(one, old) else _merged(old, one, other)
        if value is not _NOTHING:
            merged[key] = value
    return merged


def _same(one: Any, other: Any) -> bool:
    return one is other or bool(one == other)
