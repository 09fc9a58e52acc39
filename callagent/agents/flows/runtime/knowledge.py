"""`conv.knowledge_base`: topics taken out of retrieval."""

from __future__ import annotations

from collections.abc import Iterable


class KnowledgeBase:
    """Lasts over turns."""

    def __init__(self) -> None:
        self.disabled_topics: list[str] = []

    def disable_topics(self, topics: Iterable[str]) -> None:
        self.disabled_topics.extend(topic for topic in topics if topic not in self.disabled_topics)

    def enable_topics(self, topics: Iterable[str]) -> None:
        enabled = set(topics)
        self.disabled_topics = [topic for topic in self.disabled_topics if topic not in enabled]

    def enable_all_topics(self) -> None:
        self.disabled_topics = []
