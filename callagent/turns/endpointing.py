"""Endpointing: how long a silence has to last to end the caller's turn.

That time depends on the settings, on what was said so far, and on the turn model if there is one. After "and", or after
four digits of seven, the silence counts as a pause, whatever the model says. Otherwise the model shortens the time if
it is sure that the caller has finished, or else lengthens it; it never ends a turn by itself.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from callagent.agents import ListenSettings

_UNFINISHED = frozenset(
    {"a", "about", "also", "an", "and", "at", "because", "but", "by", "er", "erm", "for", "from", "i'd", "i'm", "if"}
    | {"in", "is", "it's", "like", "maybe", "my", "of", "on", "or", "our", "so", "than", "that's", "the", "then"}
    | {"to", "uh", "um", "until", "was", "well", "when", "where", "which", "who", "with", "your"}
)
"""English words that do not end a sentence."""
_DIGIT_WORDS = frozenset({"zero", "oh", "o", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"})
_REPEATED = {"double": 2, "triple": 3}
_PUNCTUATION = ".!?;:\"'"


class TurnModel(Protocol):
    """Judges from audio whether a speaker has finished. Shared by all calls."""

    async def finished(self, pcm: bytes) -> float | None:
        """Return the probability, 0 to 1, that the speaker has finished at the end of `pcm`; None: no answer.

        Never raises.
        """

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EndpointingTimes:
    """Seconds of silence that end a turn, and the threshold of the turn model."""

    normal: float = 0.5
    finished: float = 0.35
    """If the turn model finds that the caller has finished."""
    unfinished: float = 1.2
    """If the words or the model show that more is to come."""
    threshold: float = 0.5
    """Lowest probability at which the caller counts as having finished."""


def silence_to_wait(times: EndpointingTimes, text: str, digits: int, probability: float | None) -> float:
    """Return the seconds of silence that end a turn in which `text` was said.

    `digits`: how many the agent asked for, or 0. `probability`: the turn model's answer, if there is one yet.
    """
    # The words decide before the model, which takes most sentences that are cut off for finished ones.
    if _sounds_unfinished(text) or 0 < spoken_digits(text) < digits:
        return max(times.normal, times.unfinished)
    if probability is None:
        return times.normal
    if probability >= times.threshold:
        return min(times.normal, times.finished)
    return max(times.normal, times.unfinished)


def spoken_digits(text: str) -> int:
    """Return how many digits the text ends with, in figures or as English words; "double five" counts as two."""
    count, repeated = 0, 0
    for token in re.split(r"[\s,-]+", text.lower()):
        word = token.strip(_PUNCTUATION + "()+")
        if word in _DIGIT_WORDS or word.isdecimal():
            count += max(repeated, 1) if not word.isdecimal() or len(word) == 1 else len(word)
            repeated = 0
        elif word in _REPEATED:
            repeated = _REPEATED[word]
        elif word:
            count, repeated = 0, 0
    return count


def _sounds_unfinished(text: str) -> bool:
    words = text.split()
    if not words:
        return False
    last = words[-1].lower()
    return last.endswith((",", "…", "...", "-")) or last.strip(_PUNCTUATION) in _UNFINISHED


class Endpointing:
    """Decides in one call how long a silence ends the turn; asks the turn model once in each silence."""

    def __init__(self, model: TurnModel | None, times: EndpointingTimes, on_answer: Callable[[], None]) -> None:
        """`on_answer` is called, on the event loop, when the model has answered."""
        self._model = model
        self._times = times
        self._on_answer = on_answer
        self._probability: float | None = None
        self._request: asyncio.Task[None] | None = None

    def begin_silence(self, pcm: bytes) -> None:
        """Ask the model about a silence that follows `pcm`."""
        self.end_silence()
        if self._model is not None:
            self._request = asyncio.get_running_loop().create_task(self._ask(self._model, pcm), name="turn model")

    def end_silence(self) -> None:
        """Forget what the model said; its answer to an earlier silence must not reach a later one."""
        self._probability = None
        if self._request is not None:
            self._request.cancel()
            self._request = None

    def close(self) -> None:
        """Cancel the request to the model, and drop the callback, which would keep its owner alive."""
        self.end_silence()
        self._on_answer = _ignore

    def silence_to_wait(self, listen: ListenSettings, text: str) -> float:
        """Return the seconds that the present silence has to last to end the turn.

        `text` is what the caller has said in this turn; values of `listen` take precedence over the call's settings.
        """
        default = self._times
        times = EndpointingTimes(
            normal=default.normal if listen.endpointing is None else listen.endpointing,
            finished=default.finished,
            unfinished=default.unfinished if listen.unfinished is None else listen.unfinished,
            threshold=default.threshold if listen.turn_threshold is None else listen.turn_threshold,
        )
        return silence_to_wait(times, text, listen.digits.max_digits if listen.digits else 0, self._probability)

    async def _ask(self, model: TurnModel, pcm: bytes) -> None:
        # Until the model has answered, only the settings and the words decide how long the silence has to last.
        self._probability = await model.finished(pcm)
        if self._probability is not None:
            self._on_answer()


def _ignore() -> None:
    """Stand in for the callback of a closed call."""
