"""DTMF digits as in-band tones (ITU-T Q.23), for wires without telephone events."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final

from callagent.call_info import FRAME_SAMPLES, SAMPLE_RATE

TONE_FRAMES: Final = 5
"""100 ms of tone, then as much silence: ITU-T Q.24 asks for 40 ms of each."""
MAX_DIGITS: Final = 64
_AMPLITUDE: Final = 0.22 * 32767
"""Of each of the two sines: about -10 dBm0 together, what a telephone set sends."""
_KEYS: Final = ("123A", "456B", "789C", "*0#D")
_ROWS: Final = (697, 770, 852, 941)
_COLUMNS: Final = (1209, 1336, 1477, 1633)
_FREQUENCIES: Final = {key: (_ROWS[r], _COLUMNS[c]) for r, keys in enumerate(_KEYS) for c, key in enumerate(keys)}
_SILENCE: Final = bytes(2 * FRAME_SAMPLES)


def dtmf_frames(digits: str) -> Iterator[bytes]:
    """PCM frames that say the digits. Raises `ValueError` for what is no digit, or for more than 64."""
    if len(digits) > MAX_DIGITS or any(digit not in _FREQUENCIES for digit in digits):
        raise ValueError(f"'{digits}' is not a sequence of at most {MAX_DIGITS} DTMF digits")
    for digit in digits:
        yield from _tone(*_FREQUENCIES[digit])
        yield from (_SILENCE for _ in range(TONE_FRAMES))


def _tone(low: int, high: int) -> Iterator[bytes]:
    for frame in range(TONE_FRAMES):
        times = (n / SAMPLE_RATE for n in range(frame * FRAME_SAMPLES, (frame + 1) * FRAME_SAMPLES))
        samples = (
            round(_AMPLITUDE * (math.sin(2 * math.pi * low * t) + math.sin(2 * math.pi * high * t))) for t in times
        )
        yield struct.pack(f"<{FRAME_SAMPLES}h", *samples)
