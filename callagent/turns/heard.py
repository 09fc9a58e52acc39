"""What the caller heard of an utterance that was cut, and where to go on."""

from __future__ import annotations

from collections.abc import Sequence

from callagent.speech.protocol import WordTime

CHARACTERS_PER_SECOND = 15.0
"""Usual pace of a telephone voice, for audio whose end is not known yet."""
STEP_BACK = 0.3
"""Seconds to go back where the engine gives no word times."""


def heard_text(text: str, words: Sequence[WordTime], heard: float, length: float | None) -> str:
    """The part of `text` within the first `heard` seconds, whole words; `length`: of all its audio, where known.

    A word counts as heard when more than half of it was.
    """
    if length is not None and heard >= length:
        return text
    spoken = text.split()
    if words:
        count = sum((word.start + word.end) / 2 <= heard for word in words)
        if [word.word for word in words] == spoken[: len(words)]:
            return " ".join(spoken[:count])
        # The engine counts words otherwise than we do ("24" spoken as two): the share of them tells the place.
        if length is not None:
            return _share(spoken, count / len(words))
    estimate = len(text) / CHARACTERS_PER_SECOND if length is None else length
    return _share(spoken, heard / max(estimate, 0.02))


def resume_point(words: Sequence[WordTime], heard: float) -> float:
    """Seconds from the start of the utterance from which to speak again after `heard` seconds of it."""
    if not words:
        return max(heard - STEP_BACK, 0.0)
    return max((word.start for word in words if word.start <= heard), default=0.0)


def _share(words: list[str], share: float) -> str:
    """The leading words that make up `share` of the characters."""
    budget = share * sum(len(word) + 1 for word in words)
    kept = []
    for word in words:
        if budget < (len(word) + 1) / 2:
            break
        budget -= len(word) + 1
        kept.append(word)
    return " ".join(kept)
