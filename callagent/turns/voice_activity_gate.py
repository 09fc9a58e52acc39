"""From the probability of voice in each frame to "the caller began to speak" and "the caller fell silent"."""

from __future__ import annotations

import audioop
import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from callagent.audio import FRAME_SECONDS, key_of

LOUDNESS_DECAY = 0.998
"""Per frame: a loud word is forgotten by 6 dB in 7 s."""
KEY_ECHO, KEY_TAIL = 0.06, 0.3
"""Seconds after the tones of a key: the detector still hears them, or takes the line's noise for what follows them."""


class VoiceActivity(Protocol):
    """One call's detector."""

    def feed(self, frame: bytes) -> float:
        """The probability, 0 to 1, that the latest audio is voice."""

    def reset(self) -> None: ...


class Edge(Enum):
    STARTED = "started"
    """The caller speaks."""
    BARGED = "barged"
    """The caller speaks surely enough to silence the agent. Once after each STARTED at most."""
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class VoiceEdge:
    edge: Edge
    at: float
    """Start of the first voiced frame (STARTED, BARGED), or end of the last one with more than afterglow (ENDED)."""


@dataclass(frozen=True, slots=True)
class VoiceActivitySettings:
    """Seconds, and probabilities.

    Chosen with Silero's detector on 276 labelled telephone recordings: from the first sound to BARGED 90 ms in the
    middle and 260 ms at the 99th percentile; none in two minutes each of noise, hum, clicks and ringing, none in a
    thousand key tones.
    """

    start_threshold: float = 0.3
    stop_threshold: float = 0.3
    loud_threshold: float = 0.2
    """Of a loud frame: a short word after silence may be over before the detector is surer."""
    loud_level: int = 3000
    """Root mean square (-21 dBFS)."""
    min_speech: float = 0.06
    """Voiced frames that make speech."""
    hangover: float = 0.2
    """Silence within speech that is bridged: closures of stops, gaps between words."""
    barge_evidence: float = 1.2
    """Sum of the probabilities of voiced frames that silences the agent: three of 0.4, or four of 0.3."""
    energy_floor: int = 33
    """Root mean square below which a frame is silence whatever the detector thinks (-60 dBFS)."""
    tail_drop: float = 25.0
    """Decibels below the loudest of the speech, from which on a voiced frame is the detector's own afterglow."""
    longest_tail: float = 0.2
    """Seconds of afterglow at most: what is voiced for longer was spoken softly."""
    least_sound: float = 0.04
    """Seconds above the afterglow that are speech; a shorter sound is a stop's release, a breath or a click."""


class VoiceActivityGate:
    """Hysteresis over frames of 20 ms. Gaps of up to two frames do not start the count of `min_speech` anew."""

    def __init__(
        self, voice_activity: VoiceActivity, settings: VoiceActivitySettings = VoiceActivitySettings()
    ) -> None:
        self._voice_activity = voice_activity
        self._settings = settings
        self.speaking = False
        self.barging = False
        """BARGED has been told of the present speech."""
        self._first: float | None = None
        """Start of the first voiced frame of what is, or may become, speech."""
        self._last = 0.0
        """End of the last voiced frame."""
        self._last_loud = 0.0
        """End of the last sound that was not the detector's afterglow."""
        self._sound = 0.0
        """Seconds of the sound that is now; 0 in the afterglow."""
        self._key_at = -math.inf
        """When the last frame that a key's tones fill was over."""
        self._key_level = 0
        self._loudest = 0.0
        self._voiced = 0.0
        self._evidence = 0.0

    def feed(self, frame: bytes, now: float) -> tuple[VoiceEdge, ...]:
        """The frame that arrived at `now`, its end; what changed with it, in order."""
        probability, level = self._voice_activity.feed(frame), audioop.rms(frame, 2)
        if level < self._settings.energy_floor or self._is_key(frame, level, now):
            probability = 0.0
        threshold = self._settings.stop_threshold if self.speaking else self._settings.start_threshold
        if level >= self._settings.loud_level:
            threshold = min(threshold, self._settings.loud_threshold)
        if probability < threshold:
            return self._silent_frame(now)
        self._mind_level(level, now)
        return self._voiced_frame(probability, now)

    def _is_key(self, frame: bytes, level: int, now: float) -> bool:
        """The frame is the tones of a key, or comes so soon after them, or soon and so softly, that it is no speech."""
        if key_of(frame) is not None:
            self._key_at, self._key_level = now, level
        since = now - self._key_at - FRAME_SECONDS / 2
        soft = level * 10 ** (self._settings.tail_drop / 20) < self._key_level
        return since < KEY_ECHO or (soft and since < KEY_TAIL)

    @property
    def _ended(self) -> float:
        """When the speech truly ended."""
        return max(self._last_loud, self._last - self._settings.longest_tail)

    def _mind_level(self, level: int, now: float) -> None:
        """Of a voiced frame: where the speech will have ended."""
        self._loudest = max(self._loudest * LOUDNESS_DECAY, level)
        if level * 10 ** (self._settings.tail_drop / 20) < self._loudest:
            self._sound = 0.0
            return
        self._sound += FRAME_SECONDS
        if self._sound >= self._settings.least_sound - FRAME_SECONDS / 2:
            self._last_loud = now

    def _voiced_frame(self, probability: float, now: float) -> tuple[VoiceEdge, ...]:
        settings = self._settings
        if self._first is None:
            self._first = now - FRAME_SECONDS
        self._last = now
        self._voiced += FRAME_SECONDS
        self._evidence += probability
        edges = []
        # Half a frame of tolerance: sums of 0.02 are not exact.
        if not self.speaking and self._voiced >= settings.min_speech - FRAME_SECONDS / 2:
            self.speaking = True
            edges.append(VoiceEdge(Edge.STARTED, self._first))
        if self.speaking and not self.barging and self._evidence >= settings.barge_evidence:
            self.barging = True
            edges.append(VoiceEdge(Edge.BARGED, self._first))
        return tuple(edges)

    def _silent_frame(self, now: float) -> tuple[VoiceEdge, ...]:
        self._sound = 0.0
        if self._first is None:
            return ()
        allowed = self._settings.hangover if self.speaking else 2 * FRAME_SECONDS
        if now - self._last < allowed - FRAME_SECONDS / 2:
            return ()
        edges = (VoiceEdge(Edge.ENDED, self._ended),) if self.speaking else ()
        self.speaking = self.barging = False
        self._first = None
        self._voiced = self._evidence = self._loudest = 0.0
        return edges
