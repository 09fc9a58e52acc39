"""What is remembered of a caller's earlier calls, found by words. It is gone when the server ends."""

from __future__ import annotations

import re
import unicodedata
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from callagent.agents.tree.content import Content, texts
from callagent.agents.tree.event import Event

Entry = Mapping[str, Any]
"""`{"id", "author", "timestamp", "content", "custom_metadata"}`."""
MAX_CALLERS = 500
"""The one who was silent longest goes first."""
MAX_CALLS = 10
"""Of one caller."""
MAX_ENTRIES = 200
"""Of one call."""
MOST_FOUND = 10


class Memory:
    def __init__(self) -> None:
        self._callers: OrderedDict[Hashable, OrderedDict[Hashable, list[Entry]]] = OrderedDict()

    def take(self, caller: Hashable, call: Hashable, entries: Iterable[Entry]) -> None:
        """What a call holds now; what it held before is replaced."""
        calls = self._callers.setdefault(caller, OrderedDict())
        calls[call] = list(entries)[-MAX_ENTRIES:]
        calls.move_to_end(call)
        if len(calls) > MAX_CALLS:
            calls.popitem(last=False)
        self._callers.move_to_end(caller)
        if len(self._callers) > MAX_CALLERS:
            self._callers.popitem(last=False)

    def search(self, caller: Hashable, query: str) -> list[Entry]:
        """Those that share the most words with the query; the older of two that share as many is first."""
        wanted = _words(query)
        found = []
        for entry in (each for call in self._callers.get(caller, {}).values() for each in call):
            said = " ".join(texts(entry["content"]))
            has, folded = _words(said), unicodedata.normalize("NFC", said).lower()
            # Japanese and Chinese have no spaces between words: there a part of the text is one.
            shared = sum(word in has or (not word.isascii() and word in folded) for word in wanted)
            if shared:
                found.append((shared, entry))
        found.sort(key=lambda each: -each[0])
        return [entry for _, entry in found[:MOST_FOUND]]


def entries_of(events: Sequence[Event], timestamp: str) -> list[Entry]:
    """What was said in a call."""
    return [
        {
            "content": {
                "parts": [{"text": text} for text in texts(event.content)],
                "role": (event.content or {})["role"],
            },
            "custom_metadata": {},
            "id": event.id,
            "author": event.author,
            "timestamp": timestamp,
        }
        for event in events
        if texts(event.content)
    ]


def _spoken(content: Content) -> Content:
    return {"parts": [{"text": text} for text in texts(content)], "role": content.get("role")}


def _words(text: str) -> set[str]:
    """Also the Latin words that stand in the middle of other scripts."""
    found = {word.lower() for word in re.findall(r"\w+", unicodedata.normalize("NFC", text))}
    foreign = [word for word in found if not word.isascii()]
    return found | {part for word in foreign for part in re.findall(r"[a-z0-9_]+|[^a-z0-9_]+", word)}
