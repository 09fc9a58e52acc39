"""What other programs and calls exchange: events for a running call, data of a handoff for its target."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from callagent.agents.flows.senders.opt_outs import OptOuts
from callagent.errors import CallagentError

LIFETIME = 3600.0
"""Seconds that an event's identifier and a handoff's data are good for."""
MAX_KEPT = 10_000
MAX_OF_A_CALL = 100
"""Identifiers, and events, of one call."""

Take = Callable[[Mapping[str, Any]], None]


class TooMany(CallagentError):
    """The call has as many identifiers as it may have."""


@dataclass(frozen=True, slots=True)
class _Expected:
    call_id: str
    take: Take
    send_to_llm: bool
    until: float


@dataclass(slots=True)
class Outside:
    """Of one server, for all its calls; used on the event loop only."""

    clock: Callable[[], float] = time.time
    opt_outs: OptOuts = field(default_factory=OptOuts)
    _expected: OrderedDict[str, _Expected] = field(default_factory=OrderedDict)
    _handoffs: OrderedDict[str, tuple[float, dict[str, Any]]] = field(default_factory=OrderedDict)
    _shared: dict[str, str] = field(default_factory=dict)
    """Shared identifier -> the call that used it last."""

    # Events ---------------------------------------------------------------------------------------------------------

    def expect(self, call_id: str, take: Take, *, send_to_llm: bool) -> str:
        """An identifier nobody can guess: whoever has it may send events to the call. Raises `TooMany`."""
        self._forget_old()
        if sum(each.call_id == call_id for each in self._expected.values()) >= MAX_OF_A_CALL:
            raise TooMany(f"more than {MAX_OF_A_CALL} external events in one call")
        identifier = secrets.token_urlsafe(24)
        self._expected[identifier] = _Expected(call_id, take, send_to_llm, self.clock() + LIFETIME)
        return identifier

    def deliver(self, identifier: str, data: Any, content_type: str) -> bool:
        """False: no call waits for it, or not any more."""
        expected = self._expected.get(identifier)
        if expected is None or expected.until < self.clock():
            return False
        event = {
            "ext_event_id": identifier,
            "send_to_llm": expected.send_to_llm,
            "created_at": self.clock(),
            "data": data,
            "content_type": content_type,
        }
        expected.take(event)
        return True

    def call_over(self, call_id: str) -> None:
        for identifier in [key for key, each in self._expected.items() if each.call_id == call_id]:
            del self._expected[identifier]

    # Handoffs -------------------------------------------------------------------------------------------------------

    def leave(self, call_id: str, shared_id: str | None, data: Mapping[str, Any]) -> None:
        """For who takes the call over; the last handoff of a call stands."""
        self._forget_old()
        entry = {"id": call_id, "shared_id": shared_id, "data": dict(data)}
        self._handoffs[call_id] = (self.clock() + LIFETIME, entry)
        self._handoffs.move_to_end(call_id)
        if shared_id:
            self._shared[shared_id] = call_id

    def handoff(self, *, call_id: str = "", shared_id: str = "") -> dict[str, Any] | None:
        """`{"id", "shared_id", "data"}`; None: there was none, or it was too long ago."""
        self._forget_old()
        found = self._handoffs.get(call_id or self._shared.get(shared_id, ""))
        return found[1] if found else None

    def _forget_old(self) -> None:
        now = self.clock()
        while self._expected and (next(iter(self._expected.values())).until < now or len(self._expected) >= MAX_KEPT):
            self._expected.popitem(last=False)
        while self._handoffs and (next(iter(self._handoffs.values()))[0] < now or len(self._handoffs) >= MAX_KEPT):
            _, (_, entry) = self._handoffs.popitem(last=False)
            if self._shared.get(entry["shared_id"]) == entry["id"]:
                del self._shared[entry["shared_id"]]


def handoff_data(section: Mapping[str, Any], state: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]] | None:
    """Shared identifier and data, by the section `handoff_api`; None: the project shares nothing."""
    keys = section.get("state_keys")
    if not isinstance(keys, list):
        return None
    aliases = section.get("aliases")
    aliases = aliases if isinstance(aliases, dict) else {}
    shared = state.get(str(section.get("shared_id_state_key") or "shared_id"))
    return (str(shared) if shared else None), {str(aliases.get(key, key)): state.get(str(key)) for key in keys}
