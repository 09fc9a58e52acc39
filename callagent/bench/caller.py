"""The caller of `callagent bench conversation`: what an exchange with the agent was like, at the caller's end.

Where speech begins and ends in a recording is read from its level alone: the truth that reactions are measured against.
"""

from __future__ import annotations

import asyncio
import audioop
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from time import monotonic

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE

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


GAP = 0.3
"""Seconds without sound after which the agent begins anew."""
EARLIEST = 0.2
"""Seconds after the caller's last sound from which on what begins is the answer; before it, it is no answer."""
PATIENCE = 3.0
"""Seconds that an answer may be late before the agent has missed the caller."""
_LOUD = 300
_FADE_SAMPLES = 40
"""A frame that has no sound after so many is the fade-out of one that was not said."""
_MISSED = math.inf


@dataclass(frozen=True, slots=True)
class Utterance:
    """A recording of the caller."""

    frames: tuple[bytes, ...]
    begins: float
    """Seconds from the start of the first frame to the first sound."""
    ends: float
    name: str = ""

    @classmethod
    def of(cls, pcm: bytes, name: str = "") -> Utterance:
        """Raises `ValueError` where there is no speech in it."""
        begins, ends = spoken_span(pcm)
        frames = tuple(pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm) - FRAME_BYTES + 1, FRAME_BYTES))
        return cls(frames, begins, ends, name)


@dataclass(slots=True)
class Trial:
    """What one exchange was like; seconds, infinite where it did not happen."""

    said: str = ""
    """The recording that interrupted."""
    span: tuple[float, float] = (_MISSED, _MISSED)
    """Of the monotonic clock: from the interruption to its answer, or until that was given up."""
    filler_heard: float = _MISSED
    """Of the monotonic clock."""
    barge_in: float = _MISSED
    """From the caller's first sound to the last packet with speech that reached the caller before the answer."""
    overhead: float = _MISSED
    """From the caller's last sound to the first packet of the answer, without what is configured."""
    clears: int = 0
    """Messages that emptied the carrier's buffer, from the interruption to its answer."""
    heard: float = 0.0
    """Of the answer that was interrupted, as it reached the caller."""

    @property
    def missed(self) -> bool:
        """The agent is no longer where the next exchange begins."""
        return math.isinf(self.overhead)


class Wire:
    """Sends utterances, notes when they were heard and when the agent's packets hold sound.

    A packet carries what was said in the 20 ms before it was sent.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.clock = clock
        self._said: tuple[Utterance, list[float]] = Utterance((), 0.0, 0.0), []
        """The utterance and when each of its packets left; replaced as one, the pump's thread reads it."""
        self.sound_at = 0.0
        """When the last packet with sound arrived."""
        self.began_at = 0.0
        """When the agent's present sound began."""
        self.stopped_at = 0.0
        """When the last packet of the sound before it arrived."""
        self.heard = 0.0
        """Seconds from the first to the last frame of the sound before it, the fade-out apart."""
        self._frames = self._first = self._last = 0
        """Of the agent: how many came, and which of them begin and end its present sound."""

    def speak(self, said: Utterance) -> None:
        self._said = said, []

    @property
    def speaking(self) -> bool:
        said, sent = self._said
        return len(sent) < len(said.frames)

    @property
    def onset(self) -> float:
        """When the caller's first sound was made; infinite while it is not sent."""
        return self._made(self._said[0].begins)

    @property
    def end(self) -> float:
        return self._made(self._said[0].ends)

    def next_frame(self) -> bytes | None:
        """The media source, on the pump's thread."""
        said, sent = self._said
        position = len(sent)
        if position >= len(said.frames):
            return None
        sent.append(self.clock())
        return said.frames[position]

    def on_frame(self, pcm: bytes, now: float) -> None:
        self._frames += 1
        samples = struct.unpack(f"<{len(pcm) // 2}h", pcm)
        if max(samples) <= _LOUD:
            return
        if now - self.sound_at > GAP:
            self.stopped_at, self.began_at = self.sound_at, now
            self.heard = (self._last - self._first + 1) * FRAME_SECONDS
            self._first = self._last = self._frames
        self.sound_at = now
        if max(samples[_FADE_SAMPLES:]) > _LOUD:
            self._last = self._frames

    async def until(self, condition: Callable[[], bool], seconds: float) -> None:
        """Raises `TimeoutError`."""
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the wire is sampled every 5 ms
                await asyncio.sleep(0.005)

    def silent_for(self, seconds: float) -> bool:
        return self.sound_at > 0 and self.clock() - self.sound_at > seconds

    async def answered(self, seconds: float) -> None:
        """Something begins after the utterance, within `seconds`. Raises `TimeoutError`."""
        await self.until(lambda: not self.speaking, len(self._said[0].frames) * FRAME_SECONDS + seconds)
        await self.until(lambda: self.began_at > self.end + EARLIEST, seconds)

    def _made(self, seconds: float) -> float:
        """When the sound so far into the utterance was made."""
        # The end of a frame belongs to it: a recording may end with its last sound.
        index = max(0, math.ceil(seconds / FRAME_SECONDS - 1e-6) - 1)
        sent = self._said[1]
        return sent[index] - (index + 1) * FRAME_SECONDS + seconds if index < len(sent) else math.inf


@dataclass(frozen=True, slots=True)
class Plan:
    """One exchange."""

    question: Utterance
    interruption: Utterance
    after: float
    """Seconds that the agent speaks before it is interrupted."""
    configured: float
    """Seconds of silence and of the engines before that is answered."""


async def exchange(wire: Wire, plan: Plan, clears: Callable[[], int]) -> Trial:
    """Ask; the filler of a slow function is heard; its long answer is interrupted, and that is answered.

    `clears`: how often the carrier's buffer was emptied.
    """
    trial = Trial(plan.interruption.name)
    try:
        wire.speak(plan.question)
        await wire.answered(plan.configured + PATIENCE)
        trial.filler_heard = filler = wire.began_at
        await wire.until(lambda: wire.began_at > filler and wire.clock() - wire.began_at > plan.after, 10)
        await _interrupt(wire, plan, clears, trial)
        await wire.until(lambda: wire.silent_for(2 * GAP), 10)
    except TimeoutError:
        pass
    return trial


async def _interrupt(wire: Wire, plan: Plan, clears: Callable[[], int], trial: Trial) -> None:
    before, began = clears(), wire.clock()
    wire.speak(plan.interruption)
    try:
        await wire.answered(plan.configured + PATIENCE)
    except TimeoutError:
        if wire.silent_for(GAP):
            trial.barge_in = wire.sound_at - wire.onset
        raise
    finally:
        trial.clears, trial.span = clears() - before, (began, wire.clock())
    trial.barge_in, trial.heard = wire.stopped_at - wire.onset, wire.heard
    trial.overhead = wire.began_at - wire.end - plan.configured


async def ask(wire: Wire, question: Utterance, patience: float) -> float:
    """Seconds from the caller's last sound to the first packet of the answer; infinite: there was none in time."""
    wire.speak(question)
    try:
        await wire.answered(patience)
        seconds = wire.began_at - wire.end
        await wire.until(lambda: wire.silent_for(2 * GAP), 10)
    except TimeoutError:
        return _MISSED
    return seconds
