"""The voice activity gate: decides from each frame's probability of voice when the caller begins and ends speaking."""

from __future__ import annotations

import audioop
import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from callagent.audio import FRAME_SECONDS, key_of

LOUDNESS_DECAY = 0.998
"""Factor by which the loudest level decays with each frame: 6 dB in 7 s."""
KEY_ECHO, KEY_TAIL = 0.06, 0.3
"""Seconds after the tones of a key in which the detector still hears them, and in which it takes soft noise of the line
for voice."""


class VoiceActivity(Protocol):
    """The voice activity detector of one call."""

    def feed(self, frame: bytes) -> float:
        """Return the probability, 0 to 1, that the latest audio is voice."""

    def reset(self) -> None: ...


class Edge(Enum):
    STARTED = "started"
    """The caller began to speak."""
    BARGED = "barged"
    """The caller speaks surely enough to silence the agent. Follows a STARTED, at most once."""
    ENDED = "ended"
    """The caller fell silent."""


@dataclass(frozen=True, slots=True)
class VoiceEdge:
    """A change of the caller's voice activity, and when it truly happened."""

    edge: Edge
    at: float
    """Start of the first voiced frame (STARTED, BARGED), or end of the last one with more than afterglow (ENDED)."""


@dataclass(frozen=True, slots=True)
class VoiceActivitySettings:
    """Times in seconds, and probabilities.

    Chosen with Silero's detector on 276 labelled telephone recordings: BARGED follows the first sound by 90 ms (median)
    and 260 ms (99th percentile). There is none in two minutes each of noise, hum, clicks and ringing, and none in a
    thousand key tones.
    """

    start_threshold: float = 0.3
    stop_threshold: float = 0.3
    loud_threshold: float = 0.2
    """Threshold of a loud frame: a short word after silence may be over before the detector is surer."""
    loud_level: int = 3000
    """Root mean square from which on a frame is loud (-21 dBFS)."""
    min_speech: float = 0.06
    """Length of voiced frames that make speech."""
    hangover: float = 0.2
    """Silence that does not end speech: closures of stops, gaps between words."""
    barge_evidence: float = 1.2
    """Sum of the probabilities of voiced frames that is sure enough to silence the agent: three of 0.4, four of 0.3."""
    energy_floor: int = 33
    """Root mean square below which a frame is silence whatever the detector finds (-60 dBFS)."""
    tail_drop: float = 25.0
    """Decibels below the loudest frame of the speech from which on a voiced frame is the detector's afterglow."""
    longest_tail: float = 0.2
    """Longest afterglow: what is voiced for longer was spoken softly."""
    least_sound: float = 0.04
    """Shortest sound above the afterglow that is speech; shorter ones are releases of stops, breaths and clicks."""


class VoiceActivityGate:
    """Decides, with hysteresis over frames of 20 ms, when the caller speaks and when that may interrupt the agent.

    Gaps of up to two frames do not start the count of `min_speech` anew.
    """

    def __init__(
        self, voice_activity: VoiceActivity, settings: VoiceActivitySettings = VoiceActivitySettings()
    ) -> None:
        self._voice_activity = voice_activity
        self._settings = settings
        self.speaking = False
        self.barging = False
        """Whether BARGED was given for the present speech."""
        self._first: float | None = None
        """Start of the first voiced frame of what is, or may become, speech."""
        self._last = 0.0
        """End of the last voiced frame."""
        self._last_loud = 0.0
        """End of the last sound that was not the detector's afterglow."""
        self._sound = 0.0
        """Length of the present sound; 0 in the afterglow."""
        self._key_at = -math.inf
        """End of the latest frame that has the tones of a key."""
        self._key_level = 0
        self._loudest = 0.0
        self._voiced = 0.0
        self._evidence = 0.0

    def feed(self, frame: bytes, now: float) -> tuple[VoiceEdge, ...]:
        """Take the frame that ended at `now`; return what has changed with it, in order."""
        probability, level = self._voice_activity.feed(frame), audioop.rms(frame, 2)
        if level < self._settings.energy_floor or self._is_key(frame, level, now):
            probability = 0.0
        # Hysteresis: once the caller speaks, another threshold says what still is speech.
        threshold = self._settings.stop_threshold if self.speaking else self._settings.start_threshold
        if level >= self._settings.loud_level:
            threshold = min(threshold, self._settings.loud_threshold)
        if probability < threshold:
            return self._silent_frame(now)
        self._note_level(level, now)
        return self._voiced_frame(probability, now)

    def _is_key(self, frame: bytes, level: int, now: float) -> bool:
        """Return whether a frame has the tones of a key, or follows them so soon, or soon and softly, as their echo."""
        if key_of(frame) is not None:
            self._key_at, self._key_level = now, level
        since = now - self._key_at - FRAME_SECONDS / 2
        soft = level * 10 ** (self._settings.tail_drop / 20) < self._key_level
        return since < KEY_ECHO or (soft and since < KEY_TAIL)

    @property
    def _speech_ended_at(self) -> float:
        """When the speech truly ended."""
        return max(self._last_loud, self._last - self._settings.longest_tail)

    def _note_level(self, level: int, now: float) -> None:
        """Note from the level of a voiced frame where the speech ends if this is its last frame."""
        self._loudest = max(self._loudest * LOUDNESS_DECAY, level)
        # The detector stays sure for some frames after the last sound. Without this, every turn would end later.
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
        # Half a frame of tolerance, because sums of 0.02 are not exact.
        if not self.speaking and self._voiced >= settings.min_speech - FRAME_SECONDS / 2:
            self.speaking = True
            edges.append(VoiceEdge(Edge.STARTED, self._first))
        # The sum of probabilities grows quickly with clear speech and slowly with doubtful sounds: a cough takes longer
        # to interrupt than a word.
        if self.speaking and not self.barging and self._evidence >= settings.barge_evidence:
            self.barging = True
            edges.append(VoiceEdge(Edge.BARGED, self._first))
        return tuple(edges)

    def _silent_frame(self, now: float) -> tuple[VoiceEdge, ...]:
        self._sound = 0.0
        if self._first is None:
            return ()
        # Before speech is certain, a gap of two frames is bridged; within speech, the closure of a stop.
        allowed = self._settings.hangover if self.speaking else 2 * FRAME_SECONDS
        if now - self._last < allowed - FRAME_SECONDS / 2:
            return ()
        edges = (VoiceEdge(Edge.ENDED, self._speech_ended_at),) if self.speaking else ()
        self.speaking = self.barging = False
        self._first = None
        self._voiced = self._evidence = self._loudest = 0.0
        return edges
