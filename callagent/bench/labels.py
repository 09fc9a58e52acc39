"""Where speech begins and ends in a recording, from its level alone: the truth that reactions are measured against."""

from __future__ import annotations

import audioop
from collections.abc import Sequence
from itertools import pairwise

from callagent.audio import SAMPLE_RATE

STEP = SAMPLE_RATE // 100
"""Samples: 10 ms."""
BELOW_LOUDEST = 10 ** (-30 / 20)
QUIETEST = 40
"""Root mean square of what may be speech at all (-58 dBFS)."""
FAINT = 10 ** (-20 / 20)
"""Of the loudest: what never comes above it before the first silence is a breath."""
SILENCE = 10
"""Steps: longer than the closure of a stop."""


def spoken_span(pcm: bytes) -> tuple[float, float]:
    """Seconds of the first and the last sound within 30 dB of the loudest, three of four steps around it being so too.

    A breath before the speech does not begin it: all that is over before a silence of 0.1 s and stays 20 dB below the
    loudest. Every phone that can begin a word leads into a louder one sooner.

    Raises `ValueError` where nothing is loud enough.
    """
    levels = _levels(pcm)
    loud = _loud_steps(levels)
    begins = [at for at in range(len(loud)) if loud[at] and sum(loud[at : at + 4]) >= 3]
    ends = [at for at in range(len(loud)) if loud[at] and sum(loud[max(0, at - 3) : at + 1]) >= 3]
    if not begins or not ends:
        raise ValueError("there is no speech in it")
    return _after_breaths(levels, loud, begins) / 100, (ends[-1] + 1) / 100


def longest_pause(pcm: bytes) -> float:
    """Seconds of the longest silence between two sounds."""
    loud = _loud_steps(_levels(pcm))
    sounds = [at for at in range(len(loud)) if loud[at]]
    return max((after - before - 1 for before, after in pairwise(sounds)), default=0) / 100


def _after_breaths(levels: Sequence[int], loud: Sequence[bool], begins: Sequence[int]) -> int:
    """The step of the first of `begins` that is not in a breath."""
    faint, first = max(levels) * FAINT, begins[0]
    for at in range(first, len(loud)):
        if levels[at] > faint:
            return first
        if at + SILENCE <= len(loud) and not any(loud[at : at + SILENCE]):
            return next((start for start in begins if start > at), first)
    return first


def _levels(pcm: bytes) -> list[int]:
    return [audioop.rms(pcm[at : at + 2 * STEP], 2) for at in range(0, len(pcm) - 2 * STEP + 1, 2 * STEP)]


def _loud_steps(levels: Sequence[int]) -> list[bool]:
    threshold = max(QUIETEST, max(levels, default=0) * BELOW_LOUDEST)
    return [level > threshold for level in levels]
