"""What `conv` offers from function to function: state, entities, variants, memory and the knowledge base."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn


class State(dict[Any, Any]):
    """`conv.state`: a missing attribute is None, a missing item a `KeyError`."""

    def __getattr__(self, name: str) -> Any:
        # Pickle and copy look for these; None in their place would be called.
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return self.get(name)

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value

    def __delattr__(self, name: str) -> None:
        self.pop(name, None)


class Variant(State):
    """The active variant's attributes; falsy when the project has none."""


class Entities(State):
    """`conv.entities`: collected values by entity name; a missing one is None."""


class ReadOnlyDict(dict[Any, Any]):
    """`conv.real_time_config`: a dict that cannot be changed."""

    def _refuse(self, *_arguments: Any, **_more: Any) -> NoReturn:
        raise TypeError("this mapping is read-only")

    __setitem__ = __delitem__ = clear = pop = popitem = setdefault = update = __ior__ = _refuse


RealtimeConfig = ReadOnlyDict


class LineMemory:
    """`conv.memory.line_memory`: statistics of the caller's earlier calls; falsy when there were none."""

    def __init__(self, fields: Mapping[str, Any] | None = None) -> None:
        self._fields = dict(fields or {})
        self.available = bool(self._fields)
        self.returning = bool(self._fields.get("returning"))
        self.contact_count = int(self._fields.get("contact_count") or 0)
        self.last_seen = self._fields.get("last_seen")
        self.preferred_language = self._fields.get("preferred_language")
        self.handoff_count = int(self._fields.get("handoff_count") or 0)
        self.top_handoff_reason = self._fields.get("top_handoff_reason")

    def fields(self) -> dict[str, Any]:
        return dict(self._fields)

    def __bool__(self) -> bool:
        return self.available


class Memory(Mapping[str, Any]):
    """`conv.memory`: what earlier calls of the same caller left; read-only."""

    def __init__(self, fields: Mapping[str, Any] | None = None, line: Mapping[str, Any] | None = None) -> None:
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
