"""What a conversation is put together from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from callagent.agents.flows.runtime.api import ApiIntegrations
from callagent.agents.flows.runtime.clock import Clock
from callagent.agents.flows.runtime.entity_config import EntityValidationResult
from callagent.agents.flows.runtime.failures import MissingHandoff
from callagent.agents.flows.runtime.logs import ConversationLogger
from callagent.agents.flows.runtime.memory import Memory, VerifiedContext
from callagent.agents.flows.runtime.messages import HandoffConfig
from callagent.agents.flows.runtime.metrics import Metrics
from callagent.agents.flows.runtime.state import Entities, State
from callagent.agents.flows.runtime.utils import Utils

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Parts:
    """The objects of one call that live as long as the call's worker."""

    state: State
    log: ConversationLogger
    metrics: Metrics
    utils: Utils
    clock: Clock
    memory: Memory
    verified_context: VerifiedContext
    api: Callable[[Callable[..., None]], ApiIntegrations]
    """Makes `conv.api`, given what logs a response."""
    expect_event: Callable[[bool], str]
    """Asks for an identifier; True: what comes is for the model too."""
    account_id: str
    project_id: str


class Translations:
    """`conv.translations.key`: the text in the conversation's language, else in its base language."""

    def __init__(self, texts: Mapping[str, Mapping[str, str]], language: Callable[[], str | None]) -> None:
        self._texts = texts
        self._language = language

    def __getattr__(self, key: str) -> str:
        if key.startswith("__") or key not in self._texts:
            raise AttributeError(f"the project has no translation '{key}'")
        language = self._language() or ""
        texts = self._texts[key]
        for code in (language, language.partition("-")[0], *texts):
            if code in texts:
                return texts[code]
        return ""

    def __getitem__(self, key: str) -> str:
        try:
            return self.__getattr__(key)
        except AttributeError:
            raise KeyError(key) from None


def named(kind: Callable[..., Item], entries: Mapping[str, Mapping[str, Any]] | None) -> dict[str, Item]:
    """Dataclasses by name; keys that the class does not have are left out."""
    known = {item.name for item in fields(kind)} - {"name"}  # type: ignore[arg-type]
    return {
        name: kind(
            name=name, **{key: value for key, value in (entry or {}).items() if key in known and value is not None}
        )
        for name, entry in (entries or {}).items()
    }


def entities_of(entries: Mapping[str, Any]) -> Entities:
    known = {item.name for item in fields(EntityValidationResult)} - {"name"}
    entities = Entities()
    for name, entry in entries.items():
        given = entry if isinstance(entry, Mapping) else {"value": entry}
        values = {key: value for key, value in given.items() if key in known}
        entities[name] = EntityValidationResult(name=name, **values)
    return entities


def find_handoff(handoffs: Mapping[str, HandoffConfig], destination: str) -> str:
    """The handoff's name: exact, else in another case, else `default` for the default one. Raises `MissingHandoff`."""
    if destination in handoffs:
        return destination
    for name in handoffs:
        if name.casefold() == destination.casefold():
            return name
    for name, handoff in handoffs.items():
        if destination.casefold() == "default" and handoff.is_default:
            return name
    raise MissingHandoff(f"the project has no handoff '{destination}'; it has: {', '.join(handoffs) or 'none'}")
