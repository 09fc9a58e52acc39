"""What the recogniser should work on while the caller speaks. No I/O, no clock: time is counted in audio."""

from __future__ import annotations

import audioop
from enum import Enum

from callagent.audio import SAMPLE_RATE

BYTES_PER_SECOND = 2 * SAMPLE_RATE
PARTIAL_SECONDS = 0.3
"""Of new speech, between one partial transcript and the next."""
DRAFT_SECONDS = 0.2
"""Of silence, after which the final is begun in the hope that nothing more is said."""
SOFT = 0.05
"""Of the loudest frame (-26 dB): what is quieter is silence."""
FAINT_RMS = 40
"""Never speech (-58 dBFS)."""
MAX_PIECE_SECONDS = 26.0
"""Seconds of speech without an end; then what was said so far is transcribed on its own."""
CUT_WITHIN = 8.0
"""At the end of the longest piece, where the quietest moment is looked for."""
CUT_STEP = BYTES_PER_SECOND // 10


class Wanted(Enum):
    NOTHING = "nothing"
    PARTIAL = "partial"
    DRAFT = "draft"
    PIECE = "piece"


class Utterance:
    """The audio of one utterance."""

    def __init__(self, before: bytes) -> None:
        self.audio = bytearray()
        """What was said since the last piece was cut off."""
        self.spoken_on = False
        """Sound has come since the draft was begun: it lacks words."""
        self._drafted = False
        self._loudest = 0
        self._new = 0
        self._quiet = 0
        if before:
            self.feed(before)
            self._new = 0

    def feed(self, pcm: bytes) -> Wanted:
        self.audio += pcm
        if self._is_silence(pcm):
            self._quiet += len(pcm)
        else:
            self._quiet = 0
            self._new += len(pcm)
            self._drafted = False
            self.spoken_on = True
        return self._wanted()

    def begin_partial(self) -> None:
        self._new = 0

    def begin_draft(self) -> None:
        self._new = 0
        self._drafted = True
        self.spoken_on = False

    def cut(self) -> bytes:
        """Take the audio up to the quietest moment of the last seconds."""
        at = quietest(self.audio, CUT_WITHIN)
        piece = bytes(self.audio[:at])
        del self.audio[:at]
        self._new = 0
        return piece

    def _wanted(self) -> Wanted:
        if len(self.audio) >= MAX_PIECE_SECONDS * BYTES_PER_SECOND:
            return Wanted.PIECE
        if not self._drafted and self._loudest and self._quiet >= DRAFT_SECONDS * BYTES_PER_SECOND:
            return Wanted.DRAFT
        if self._new >= PARTIAL_SECONDS * BYTES_PER_SECOND:
            return Wanted.PARTIAL
        return Wanted.NOTHING

    def _is_silence(self, pcm: bytes) -> bool:
        level = audioop.rms(pcm, 2)
        if level > FAINT_RMS:
            self._loudest = max(self._loudest, level)
        return level <= max(FAINT_RMS, SOFT * self._loudest)


def quietest(audio: bytes | bytearray, within: float) -> int:
    """Offset of the quietest tenth of a second among the last `within` seconds."""
    first = max(CUT_STEP, len(audio) - round(within * BYTES_PER_SECOND))
    first -= first % 2
    offsets = range(first, len(audio) - CUT_STEP + 1, CUT_STEP)
    found = min(offsets, key=lambda at: audioop.rms(audio[at : at + CUT_STEP], 2), default=len(audio))
    return min(found + CUT_STEP // 2, len(audio))


def pieces(pcm: bytes) -> list[bytes]:
    """A recording of any length in pieces that a model takes."""
    rest = bytearray(pcm)
    cut: list[bytes] = []
    while len(rest) > MAX_PIECE_SECONDS * BYTES_PER_SECOND:
        window = rest[: round(MAX_PIECE_SECONDS * BYTES_PER_SECOND)]
        at = quietest(window, CUT_WITHIN)
        cut.append(bytes(rest[:at]))
        del rest[:at]
    return [*cut, bytes(rest)]
