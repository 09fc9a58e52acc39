"""Phrase filters on the agent's streamed text: nothing of a filtered phrase may reach the voice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callagent.agents.flows.voice import PhraseFilter, same_language

_LOOK_BACK = 200
"""Characters of already spoken text that a phrase may begin in."""


@dataclass(frozen=True, slots=True)
class FilterHit:
    filter: PhraseFilter
    spoken: str
    """What of the sentence is still said."""


class StreamFilter:
    """Looks at one answer of the model, sentence by sentence, before each is spoken."""

    def __init__(self, filters: Sequence[PhraseFilter], language: str | None) -> None:
        self._filters = [each for each in filters if same_language(each.language, language)]
        self._spoken = ""

    def check(self, sentence: str) -> FilterHit | None:
        """The first filter that matches the text so far with this sentence; None: say it."""
        text = f"{self._spoken} {sentence}" if self._spoken else sentence
        start = len(text) - len(sentence)
        best: tuple[int, FilterHit] | None = None
        for rule in self._filters:
            for pattern in rule.patterns:
                match = pattern.search(text, max(0, start - _LOOK_BACK))
                if match is None or match.end() <= start:
                    continue
                cut = match.end() if rule.say_phrase else match.start()
                hit = FilterHit(rule, text[start : max(start, cut)].strip())
                if best is None or match.start() < best[0]:
                    best = (match.start(), hit)
        self._spoken = text
        return best[1] if best else None
