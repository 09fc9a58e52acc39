"""Which topics answer the caller's words: found by shared words, or by meaning where there is an embedding engine."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.format import Project, RetrievalSettings, Topic
from callagent.models import Embedder

_REFERENCE = re.compile(r"\{\{[^}]*\}\}")
_PART_WORDS = 40
"""Words in one part of a topic's content: an embedding model reads a bounded length."""
_WORD = re.compile(r"\w+(?:'\w+)?")
_STOP_TEXT = (
    "a about am an and any are as at be been but by can could did do does don't er for from get got had "
    "has have he hello here hey hi how i i'd i'm i've if in is it it's just know let like may me might "
    "my need no not of ok okay on or our please really shall she should so some tell thank thanks that "
    "the there these they this those to uh um us want was we were what what's when where which who why "
    "will with would yes you you're your "
    "one first last next "
)
_STOP_WORDS = frozenset(_STOP_TEXT.split())
_SATURATION = 1.2
"""Parameter k1 of the BM25 ranking: how fast repetitions of a word stop counting."""
_CONTENT_WEIGHT = 0.75
"""Weight of a match in a topic's content beside one in its name or example questions."""
_SINGLE_WORD_FACTOR = 0.5
"""Factor for content that shares a single word with the query, which in a long text may be chance."""


@dataclass(frozen=True, slots=True)
class Match:
    topic: Topic
    score: float


def words(text: str) -> list[str]:
    """Return the words of a text without stop words, with plain English endings removed."""
    return [_stem(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


def _stem(word: str) -> str:
    for ending in ("ies", "ing", "ed", "es", "s"):
        # No stem shorter than three letters: "is" and "bed" are no plurals and past tenses.
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            stem = word[: -len(ending)]
            return stem + "y" if ending == "ies" else stem.rstrip("e")
    return word.rstrip("e") if len(word) > 3 else word


class TopicIndex(Protocol):
    """The indexed topics of a project, shared by all calls. Scores are from 0 to 1."""

    async def prepare(self) -> None:
        """Do the slow part of indexing, before the first call."""

    async def search(self, text: str, excluded: Iterable[str] = (), variant: str | None = None) -> list[Match]:
        """Return the topics that match `text`, best first."""


class MeaningIndex:
    """Search by embeddings: a topic's score is the best one among its name, example questions and parts of content."""

    def __init__(self, topics: Iterable[Topic], embedder: Embedder) -> None:
        self._topics = tuple(topics)
        self._embedder = embedder
        self._matrix: Any = None
        self._owners: list[int] = []
        """Index of the topic to which each row of the matrix belongs."""

    async def prepare(self) -> None:
        texts = [(number, text) for number, topic in enumerate(self._topics) for text in _texts_of(topic)]
        self._owners = [number for number, _ in texts]
        vectors = await self._embedder.embed([text for _, text in texts])
        if vectors:
            import numpy

            self._matrix = numpy.stack(vectors)

    async def search(self, text: str, excluded: Iterable[str] = (), variant: str | None = None) -> list[Match]:
        if self._matrix is None or not text.strip():
            return []
        # The vectors have length one, so their product is the cosine.
        (query,) = await self._embedder.embed([text])
        best: dict[int, float] = {}
        for owner, score in zip(self._owners, (self._matrix @ query).tolist(), strict=True):
            # The nearest text of a topic counts, not the mean: one example question that fits is enough.
            best[owner] = max(score, best.get(owner, 0.0))
        left_out = set(excluded)
        found = [Match(self._topics[number], min(1.0, score)) for number, score in best.items() if score > 0]
        return sorted((each for each in found if _offered(each.topic, left_out, variant)), key=lambda each: -each.score)


def _texts_of(topic: Topic) -> list[str]:
    """Return name, example questions and content of a topic; the content is split into parts."""
    name = topic.name.replace("_", " ").replace("/", " ")
    spoken = _REFERENCE.sub("", topic.content).split()
    parts = [" ".join(spoken[start : start + _PART_WORDS]) for start in range(0, len(spoken), _PART_WORDS)]
    return [name, *topic.examples, *parts]


def _offered(topic: Topic, left_out: set[str], variant: str | None) -> bool:
    return topic.name not in left_out and topic.variant in (None, variant)


class WordIndex:
    """Search by words: cosine for names and example questions, BM25 for contents. It needs no embedding model."""

    def __init__(self, topics: Iterable[Topic]) -> None:
        self._topics = tuple(topics)
        self._short = [[Counter(words(text)) for text in (t.name.replace("_", " "), *t.examples)] for t in self._topics]
        self._content = [Counter(words(t.content)) for t in self._topics]
        documents = Counter[str]()
        for short, content in zip(self._short, self._content, strict=True):
            documents.update(set(content).union(*short))
        total = len(self._topics)
        # Inverse document frequency: a word that few topics have distinguishes them better.
        self._weights = {word: 1 + math.log((total + 1) / (count + 0.5)) for word, count in documents.items()}
        # A word that no topic has gets the mean weight, so that it lowers the score of the words that do match.
        self._unknown = sum(self._weights.values()) / len(self._weights) if self._weights else 1.0

    async def prepare(self) -> None:
        """Do nothing: words are counted when the index is made."""

    async def search(self, text: str, excluded: Iterable[str] = (), variant: str | None = None) -> list[Match]:
        """Return all topics that share a word with `text`, best first."""
        query = Counter(words(text))
        if not query:
            return []
        left_out = set(excluded)
        found = []
        for number, topic in enumerate(self._topics):
            if not _offered(topic, left_out, variant):
                continue
            # Contents are not compared by cosine, which would lower the score of a content for its length.
            short = max((self._likeness(query, each) for each in self._short[number]), default=0.0)
            score = max(short, self._coverage(query, self._content[number]) * _CONTENT_WEIGHT)
            if score > 0:
                found.append(Match(topic, score))
        return sorted(found, key=lambda match: -match.score)

    def _weight(self, word: str) -> float:
        return self._weights.get(word, self._unknown)

    def _likeness(self, query: Counter[str], document: Counter[str]) -> float:
        """Return the cosine of the weighted words, which suits two short texts."""
        shared = sum(self._weight(word) ** 2 for word in query.keys() & document.keys())
        if not shared:
            return 0.0
        lengths = (sum(self._weight(word) ** 2 for word in each) for each in (query, document))
        return shared / math.sqrt(math.prod(lengths))

    def _coverage(self, query: Counter[str], document: Counter[str]) -> float:
        """Return the BM25 score of the query as a share of its highest possible score."""
        best = sum(self._weight(word) for word in query)
        reached = sum(
            self._weight(word) * document[word] * (_SATURATION + 1) / (document[word] + _SATURATION)
            for word in query.keys() & document.keys()
        )
        factor = _SINGLE_WORD_FACTOR if len(query.keys() & document.keys()) == 1 else 1.0
        return min(1.0, reached / (best * (_SATURATION + 1) / 2)) * factor


def best_matches(matches: Sequence[Match], threshold: float, limit: int) -> list[Match]:
    return [match for match in matches if match.score >= threshold][:limit]


QA_METRIC = "QA"


async def retrieve(conversation: Conversation, index: TopicIndex, text: str) -> None:
    """Look up the caller's words; the topics found come before those of earlier turns."""
    settings = conversation.project.experimental.retrieval
    threshold = settings.threshold if conversation.position.flow is None else settings.in_flow_threshold
    limit = settings.max_matches
    excluded = {*conversation.disabled_topics, *_excluded(settings, conversation)}
    direct = best_matches(await index.search(text, excluded, conversation.variant), threshold, limit)
    found = direct
    if not direct and conversation.inputs:
        # "And on Sundays?" finds nothing alone, but does with the question before it.
        together = await index.search(" ".join((*conversation.inputs, text)), excluded, conversation.variant)
        found = best_matches(together, threshold, limit)
    # Topics of earlier turns stay behind the new ones, because the caller may come back to them.
    max_topics = max(limit, settings.max_topics)
    earlier_topics = [name for name in conversation.topics if name not in excluded]
    conversation.topics = list(dict.fromkeys((*(match.topic.name for match in found), *earlier_topics)))[:max_topics]
    inputs = [*conversation.inputs, text]
    # Counted from the start, because a slice from `-0` would be the whole list.
    conversation.inputs = inputs[max(0, len(inputs) - settings.max_earlier_inputs) :]
    # Cited is only a topic that these words found without the earlier ones, which may have been about something else.
    cited = best_matches(direct, settings.cited_threshold, 1)
    if cited and cited[0].topic.name not in settings.not_cited:
        await conversation.write_metric(QA_METRIC, cited[0].topic.name)


def retrieved_topics(project: Project, names: Sequence[str]) -> list[Topic]:
    found = {topic.name: topic for topic in project.topics}
    return [found[name] for name in names if name in found]


def _excluded(settings: RetrievalSettings, conversation: Conversation) -> tuple[str, ...]:
    """Return the topics that the channel leaves out; settings name it by its type or its short name."""
    exclusions = settings.excluded_by_channel
    return exclusions.get(conversation.channel_type) or exclusions.get(conversation.channel) or ()
