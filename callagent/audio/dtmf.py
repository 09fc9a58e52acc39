"""DTMF digits in the audio (ITU-T Q.23, Q.24): detected in frames, and generated for wires without telephone events."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from functools import cache
from typing import Final

from callagent.audio.pcm import FRAME_SAMPLES, SAMPLE_RATE

_KEYS: Final = ("123A", "456B", "789C", "*0#D")
_ROWS: Final = (697, 770, 852, 941)
_COLUMNS: Final = (1209, 1336, 1477, 1633)
_FREQUENCIES: Final = {key: (_ROWS[r], _COLUMNS[c]) for r, keys in enumerate(_KEYS) for c, key in enumerate(keys)}

_MIN_LEVEL = 200
"""Root mean square of a frame below which it has no tone of a key: about -39 dBm0."""
_MIN_RATIO = 6.0
"""Ratio of a tone's energy to that of each other tone of its group: 8 dB."""
_MAX_TWIST = 6.3
"""How much louder one of the two tones may be than the other: 8 dB (twist, ITU-T Q.24)."""
_MIN_SHARE = 0.7
"""The share of the frame's energy that is in the two tones; in speech other frequencies have more."""
_REFERENCE_AMPLITUDE = 16000.0
"""Amplitude of the sines that frames are compared with; it cancels out of the result."""

_DETECTION_FRAMES = 2
"""Frames in a row that must have the same key: a tone of 40 ms must be recognised (Q.24)."""

TONE_FRAMES: Final = 5
"""Frames of a tone that we send, and of the silence after it: 100 ms each, where Q.24 requires 40 ms."""
MAX_DIGITS: Final = 64
"""Most digits that are sent at a time."""
_TONE_AMPLITUDE: Final = 0.22 * 32767
"""Amplitude of each of the two sines, which together have the -10 dBm0 of a telephone set."""
_SILENCE: Final = bytes(2 * FRAME_SAMPLES)


def key_of(frame: bytes) -> str | None:
    """Return the key whose two tones fill the frame, or None."""
    import audioop

    level = audioop.rms(frame, 2)
    if level < _MIN_LEVEL:
        return None
    low = _loudest(frame, _ROWS)
    # Most frames are speech, where hardly ever a tone of the first group stands out: the second one is then skipped.
    high = None if low is None else _loudest(frame, _COLUMNS)
    if low is None or high is None:
        return None
    (row, low_energy), (column, high_energy) = low, high
    if not 1 / _MAX_TWIST < low_energy / high_energy < _MAX_TWIST:
        return None
    return _KEYS[row][column] if low_energy + high_energy > _MIN_SHARE * level * level else None


def _loudest(frame: bytes, tones: tuple[int, ...]) -> tuple[int, float] | None:
    """Return index and energy of the one tone that stands out, or None."""
    energies = [_energy(frame, hertz) for hertz in tones]
    best = max(range(len(tones)), key=energies.__getitem__)
    others = max(energy for index, energy in enumerate(energies) if index != best)
    return (best, energies[best]) if energies[best] > _MIN_RATIO * others else None


def _energy(frame: bytes, hertz: int) -> float:
    """Return the mean square of the part of the frame at this frequency."""
    import audioop

    # `findfactor` computes the correlation of frame and reference, as the Goertzel algorithm does, but in C.
    cosine, sine = _references(hertz)
    real, imaginary = audioop.findfactor(frame, cosine), audioop.findfactor(frame, sine)
    return (real * real + imaginary * imaginary) * _REFERENCE_AMPLITUDE * _REFERENCE_AMPLITUDE / 2


@cache
def _references(hertz: int) -> tuple[bytes, bytes]:
    from array import array

    angles = [2 * math.pi * hertz * index / SAMPLE_RATE for index in range(FRAME_SAMPLES)]
    return (
        array("h", (round(_REFERENCE_AMPLITUDE * math.cos(angle)) for angle in angles)).tobytes(),
        array("h", (round(_REFERENCE_AMPLITUDE * math.sin(angle)) for angle in angles)).tobytes(),
    )


class InBandDigits:
    """A detector of key presses in one stream's frames. A frame takes about 2 µs in silence and 12 µs in sound."""

    def __init__(self) -> None:
        self._key: str | None = None
        """The key of the present tone."""
        self._tone_frames = 0
        self._gap_frames = 0
        """Frames without a tone since the last one with a tone."""
        self._is_reported = False
        """Whether the key of the present tone has been returned."""

    def receive(self, frame: bytes) -> str | None:
        """Return a digit once, with the frame that makes it certain; None with all other frames."""
        key = key_of(frame)
        if key is None:
            self._gap_frames += 1
            # A single frame without the tone does not end it: packet loss may have spoilt the frame.
            if self._gap_frames >= _DETECTION_FRAMES:
                self._key, self._tone_frames, self._is_reported = None, 0, False
            return None
        if key != self._key:
            self._key, self._tone_frames, self._is_reported = key, 0, False
        self._gap_frames = 0
        self._tone_frames += 1
        if self._is_reported or self._tone_frames < _DETECTION_FRAMES:
            return None
        self._is_reported = True
        return key


def dtmf_frames(digits: str) -> Iterator[bytes]:
    """Yield frames with the tones of the digits. Raises `ValueError` for other characters and above 64 digits."""
    if len(digits) > MAX_DIGITS or any(digit not in _FREQUENCIES for digit in digits):
        raise ValueError(f"'{digits}' is not a sequence of at most {MAX_DIGITS} DTMF digits")
    for digit in digits:
        yield from _tone(*_FREQUENCIES[digit])
        yield from (_SILENCE for _ in range(TONE_FRAMES))


def _tone(low: int, high: int) -> Iterator[bytes]:
    for frame in range(TONE_FRAMES):
        times = (n / SAMPLE_RATE for n in range(frame * FRAME_SAMPLES, (frame + 1) * FRAME_SAMPLES))
        samples = (
            round(_TONE_AMPLITUDE * (math.sin(2 * math.pi * low * t) + math.sin(2 * math.pi * high * t))) for t in times
        )
        yield struct.pack(f"<{FRAME_SAMPLES}h", *samples)
