"""Where speech begins and ends in a recording, from its level alone: the truth that reactions are measured against."""

from __future__ import annotations

import audioop
from itertools import pairwise

from callagent.call_info import SAMPLE_RATE

STEP = SAMPLE_RATE // 100
"""Samples: 10 ms."""
BELOW_LOUDEST = 10 ** (-30 / 20)
QUIETEST = 40
"""Root mean square of what may be speech at all (-58 dBFS)."""


def spoken_span(pcm: bytes) -> tuple[float, float]:
    """Seconds of the first and the last sound within 30 dB of the loudest, three of four steps around it being so too.

    Raises `ValueError` where nothing is loud enough.
    """
    loud = _loud_steps(pcm)
    begins = [at for at in range(len(loud)) if loud[at] and sum(loud[at : at + 4]) >= 3]
    ends = [at for at in range(len(loud)) if loud[at] and sum(loud[max(0, at - 3) : at + 1]) >= 3]
    if not begins or not ends:
        raise ValueError("there is no speech in it")
    return begins[0] / 100, (ends[-1] + 1) / 100


def longest_pause(pcm: bytes) -> float:
    """Seconds of the longest silence between two sounds."""
    loud = _loud_steps(pcm)
    sounds = [at for at in range(len(loud)) if loud[at]]
    return max((after - before - 1 for before, after in pairwise(sounds)), default=0) / 100


def _loud_steps(pcm: bytes) -> list[bool]:
    levels = [audioop.rms(pcm[at : at + 2 * STEP], 2) for at in range(0, len(pcm) - 2 * STEP + 1, 2 * STEP)]
    threshold = max(QUIETEST, max(levels, default=0) * BELOW_LOUDEST)
    return [level > threshold for level in levels]
