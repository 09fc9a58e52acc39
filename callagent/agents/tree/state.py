"""The state of a call: plain data under names with scopes (`user:`, `app:`, `temp:`; none: the call)."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

APP, USER, TEMP = "app:", "user:", "temp:"
MAX_USERS = 10_000
"""Callers whose `user:` keys are kept; the one that was silent longest goes first."""


class State:
    """What agents of one call share, and what of it the worker does not know yet."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self.values: dict[str, Any] = copy.deepcopy(dict(values or {}))
        self._unsent: dict[str, Any] = dict(self.values)
        self._unsent_removed: set[str] = set()

    def apply(self, delta: Mapping[str, Any], removed: Sequence[str] = (), *, known: bool = False) -> None:
        """Set and remove keys; `known`: the worker did it."""
        # A copy: whoever holds the delta may go on changing what is in it.
        delta = copy.deepcopy(dict(delta))
        self.values.update(delta)
        for key in removed:
            self.values.pop(key, None)
        if not known:
            self._unsent.update(delta)
            self._unsent_removed = (self._unsent_removed - delta.keys()) | set(removed)
            for key in removed:
                self._unsent.pop(key, None)

    def unsent(self) -> dict[str, Any]:
        """`{"set", "removed"}` for the worker."""
        return {"set": dict(self._unsent), "removed": sorted(self._unsent_removed)}

    def sent(self) -> None:
        """The worker has answered: it knows everything."""
        self._unsent.clear()
        self._unsent_removed.clear()

    def drop_temporary(self) -> None:
        """The end of a turn."""
        self.apply({}, [key for key in self.values if key.startswith(TEMP)])

    def stored(self) -> dict[str, Any]:
        """What is kept beyond the turn."""
        return {key: value for key, value in self.values.items() if not key.startswith(TEMP)}


class SharedState:
    """`app:` keys of a project and `user:` keys of its callers, for the calls of this process."""

    def __init__(self) -> None:
        self._app: dict[str, Any] = {}
        self._users: OrderedDict[str, dict[str, Any]] = OrderedDict()

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
