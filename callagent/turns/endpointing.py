"""How long a silence ends the caller's turn: the setting, what was said so far, and a turn model's opinion.

A silence after "and", or after four digits of seven, is a pause, whatever else speaks for an end. Otherwise a turn
model shortens it, where it is sure that the caller is done, or lengthens it. It alone decides nothing.
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
"""English words after which something is to come."""
_DIGITS = frozenset({"zero", "oh", "o", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"})
_REPEATED = {"double": 2, "triple": 3}
_EDGES = ".!?;:\"'"


class TurnModel(Protocol):
    """Hears whether somebody has finished. Shared by all calls."""

    async def finished(self, pcm: bytes) -> float | None:
        """The probability, 0 to 1, that who spoke last in `pcm` has finished; None: no opinion. Never raises."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class EndpointingSettings:
    """Seconds of silence."""

    normal: float = 0.5
    finished: float = 0.35
    """Where a turn model is sure that the caller is done."""
    unfinished: float = 1.2
    """Where the words, or the model, say that more is to come."""
    threshold: float = 0.5
    """Of the model's probability."""


def patience(settings: EndpointingSettings, text: str, digits: int, opinion: float | None) -> float:
    """Seconds of silence that end a turn in which `text` was said; `digits`: how many are asked for, 0 where none."""
    if _sounds_unfinished(text) or 0 < spoken_digits(text) < digits:
        return max(settings.normal, settings.unfinished)
    if opinion is None:
        return settings.normal
    if opinion >= settings.threshold:
        return min(settings.normal, settings.finished)
    return max(settings.normal, settings.unfinished)


def spoken_digits(text: str) -> int:
    """How many digits the text ends with, in figures or English words."""
    count, repeated = 0, 0
    for token in re.split(r"[\s,-]+", text.lower()):
        word = token.strip(_EDGES + "()+")
        if word in _DIGITS or word.isdecimal():
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
    return last.endswith((",", "…", "...", "-")) or last.strip(_EDGES) in _UNFINISHED


class Endpointing:
    """One call's: asks the turn model once in each silence, and says how long this one may last."""

    def __init__(self, model: TurnModel | None, settings: EndpointingSettings, changed: Callable[[], None]) -> None:
        self._model = model
        self._settings = settings
        self._changed = changed
        """Called on the loop when the model has spoken."""
        self._opinion: float | None = None
        self._asked: asyncio.Task[None] | None = None

    def silence_began(self, pcm: bytes) -> None:
        """After the caller said `pcm`, the latest of it last."""
        self.forget()
        if self._model is not None:
            self._asked = asyncio.get_running_loop().create_task(self._ask(self._model, pcm), name="turn model")

    def forget(self) -> None:
        """The silence is over."""
        self._opinion = None
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None

    def close(self) -> None:
        """Forget the silence and drop the callback, whose owner holds this object."""
        self.forget()
        self._changed = _ignore

    def seconds(self, listen: ListenSettings, text: str) -> float:
        default = self._settings
        settings = EndpointingSettings(
            normal=default.normal if listen.endpointing is None else listen.endpointing,
            finished=default.finished,
            unfinished=default.unfinished if listen.unfinished is None else listen.unfinished,
            threshold=default.threshold if listen.turn_threshold is None else listen.turn_threshold,
        )
        return patience(settings, text, listen.digits.max_digits if listen.digits else 0, self._opinion)

    async def _ask(self, model: TurnModel, pcm: bytes) -> None:
        self._opinion = await model.finished(pcm)
        if self._opinion is not None:
            self._changed()


def _ignore() -> None:
    """Stand in for the callback of a closed call."""
