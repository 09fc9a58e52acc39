"""Data that calls exchange with other programs: events for a running call, data for the target of a handoff."""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from callagent.agents.flows.messages import OptOuts
from callagent.errors import CallagentError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at

LIFETIME_SECONDS = 3600.0
"""Time for which an event's identifier and a handoff's data are valid."""
MAX_ENTRIES = 10_000
"""Limit of the identifiers, and of the handoffs, of all calls; beyond it the oldest are dropped."""
MAX_PER_CALL = 100
"""Limit of one call's identifiers; the engine's `Conversation` uses it for the received events, too."""

EventHandler = Callable[[JsonObject], None]


class TooManyEvents(CallagentError):
    """The call has `MAX_PER_CALL` identifiers already."""


@dataclass(frozen=True, slots=True)
class _Expected:
    call_id: str
    on_event: EventHandler
    send_to_llm: bool
    expires_at: float


@dataclass(slots=True)
class ExternalExchange:
    """Identifiers for events to the calls of one server, and handoff data to fetch. Used on the event loop only."""

    clock: Callable[[], float] = time.time
    opt_outs: OptOuts = field(default_factory=OptOuts)
    """Numbers that get no text messages; kept here, because webhooks and calls share the exchange."""
    _expected: OrderedDict[str, _Expected] = field(default_factory=OrderedDict)
    _handoffs: OrderedDict[str, tuple[float, MutableJsonObject]] = field(default_factory=OrderedDict)
    _shared: dict[str, str] = field(default_factory=dict)
    """Shared identifier -> the call that used it last."""

    # Events ---------------------------------------------------------------------------------------------------------

    def expect(self, call_id: str, on_event: EventHandler, *, send_to_llm: bool) -> str:
        """Return an identifier that cannot be guessed: whoever has it may send events to the call.

        Raises `TooManyEvents`.
        """
        self._drop_expired()
        # Each call has its own limit, so that one call cannot push out the identifiers of all others.
        if sum(each.call_id == call_id for each in self._expected.values()) >= MAX_PER_CALL:
            raise TooManyEvents(f"more than {MAX_PER_CALL} external events in one call")
        identifier = secrets.token_urlsafe(24)
        self._expected[identifier] = _Expected(call_id, on_event, send_to_llm, self.clock() + LIFETIME_SECONDS)
        return identifier

    def deliver(self, identifier: str, data: JsonValue, content_type: str) -> bool:
        """Deliver an event to the call that expects it; return False if the identifier is unknown or expired."""
        expected = self._expected.get(identifier)
        if expected is None or expected.expires_at < self.clock():
            return False
        event: JsonObject = {
            "ext_event_id": identifier,
            "send_to_llm": expected.send_to_llm,
            "created_at": self.clock(),
            "data": data,
            "content_type": content_type,
        }
        expected.on_event(event)
        return True

    def forget_call(self, call_id: str) -> None:
        """Forget the identifiers of a call that has ended; its handoff data stay."""
        for identifier in [key for key, each in self._expected.items() if each.call_id == call_id]:
            del self._expected[identifier]

    # Handoffs -------------------------------------------------------------------------------------------------------

    def store_handoff(self, call_id: str, shared_id: str | None, data: JsonObject) -> None:
        """Store data for whoever takes the call over; the last handoff of a call wins."""
        self._drop_expired()
        entry: MutableJsonObject = {"id": call_id, "shared_id": shared_id, "data": dict(data)}
        self._handoffs[call_id] = (self.clock() + LIFETIME_SECONDS, entry)
        # A second handoff of the call is the newest entry, so it goes to the end: the oldest are dropped first.
        self._handoffs.move_to_end(call_id)
        if shared_id:
            self._shared[shared_id] = call_id

    def get_handoff(self, *, call_id: str = "", shared_id: str = "") -> MutableJsonObject | None:
        """Return `{"id", "shared_id", "data"}` of a call; None: it has no handoff, or its data have expired."""
        self._drop_expired()
        found = self._handoffs.get(call_id or self._shared.get(shared_id, ""))
        return found[1] if found else None

    def _drop_expired(self) -> None:
        # Both maps are ordered by insertion, so the oldest entry comes first; dropping stops at the first valid one.
        now = self.clock()
        while self._expected and (
            next(iter(self._expected.values())).expires_at < now or len(self._expected) >= MAX_ENTRIES
        ):
            self._expected.popitem(last=False)
        while self._handoffs and (next(iter(self._handoffs.values()))[0] < now or len(self._handoffs) >= MAX_ENTRIES):
            _, (_, entry) = self._handoffs.popitem(last=False)
            # Where another call uses the same shared identifier by now, the other call's entry stays.
            shared_id = entry["shared_id"]
            if isinstance(shared_id, str) and self._shared.get(shared_id) == entry["id"]:
                del self._shared[shared_id]


def handoff_data(section: JsonObject, state: JsonObject) -> tuple[str | None, MutableJsonObject] | None:
    """Return the shared identifier and the state values that the section `handoff_api` selects.

    None: the section selects none.
    """
    if not isinstance(section.get("state_keys"), list):
        return None
    aliases = object_at(section, "aliases")
    shared = state.get(str(section.get("shared_id_state_key") or "shared_id"))
    keys = [str(key) for key in list_at(section, "state_keys")]
    return (str(shared) if shared else None), {str(aliases.get(key, key)): state.get(key) for key in keys}
