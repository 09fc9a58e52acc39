"""The 20 ms frame of a call, the keys of a telephone, and audio of a higher rate brought down to 8 kHz."""

from __future__ import annotations

import audioop
import contextlib
import sys
from array import array
from functools import cache
from math import cos, pi, sin
from typing import Any

SAMPLE_RATE = 8000
"""Hertz of every frame between a leg and the turn manager."""
# 20 ms is the packet time that nearly all telephone networks use (RFC 3551 §4.2), so a frame is a packet of theirs.
FRAME_SECONDS = 0.02
FRAME_SAMPLES = 160
FRAME_BYTES = 320
"""20 ms of 16-bit little-endian mono PCM at 8 kHz."""
DIGITS = "0123456789*#ABCD"
"""The keys of a telephone, in the order of their event codes (RFC 4733 §3.2)."""


_TAPS = 47
"""Length of the filter; the delay is half of it, less than a millisecond at 24 kHz."""
_CUTOFF_HERTZ = 3500
"""Sound above 4 kHz, half the new rate, would come back as noise (aliasing)."""


def prepare_decimators() -> None:
    """Import NumPy, if it is installed, before calls are served: with it the filter takes a tenth of the time."""
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401


class Decimator:
    """A converter to 8 kHz: a low-pass filter, of whose output every `factor`th sample is taken (3 for 24 kHz)."""

    def __init__(self, factor: int = 3) -> None:
        self._factor = factor
        self._taps = _low_pass(_CUTOFF_HERTZ / (SAMPLE_RATE * factor))
        self._filter = _filter_by_numpy if "numpy" in sys.modules else _filter_by_audioop
        self._odd = b""
        """The first octet of a sample whose second one comes with the next piece."""
        self._history = bytes(2 * (_TAPS - 1))
        """The samples that the next output still depends on."""
        self._phase = 0
        """Samples of the next piece that come before the next output sample."""

    def feed(self, pcm: bytes) -> bytes:
        """Return the output that this piece, of any length, completes; both are 16-bit PCM."""
        pcm = self._odd + pcm
        # A piece may end within a sample, of which each has two octets.
        fed = len(pcm) // 2
        self._odd = pcm[2 * fed :]
        samples = self._history + pcm[: 2 * fed]
        self._history = samples[2 * fed :]
        count = len(range(self._phase, fed, self._factor))
        first, self._phase = self._phase, (self._phase - fed) % self._factor
        return self._filter(samples[2 * first :], self._taps, self._factor, count) if count else b""


def _filter_by_audioop(samples: bytes, taps: tuple[float, ...], step: int, count: int) -> bytes:
    """Filter by a sum of weighted copies of the sound; each addition runs in C over all samples at once."""
    # The copies have 32 bits and half the amplitude, because two of them are added before they are weighted.
    wide = array("i", audioop.mul(audioop.lin2lin(samples, 2, 4), 4, 0.5))
    phases = [wide[phase::step].tobytes() for phase in range(step)]

    def copy(tap: int) -> bytes:
        at = tap // step * 4
        return phases[tap % step][at : at + 4 * count]

    middle = len(taps) // 2
    total = audioop.mul(copy(middle), 4, 2 * taps[middle])
    # The filter is symmetric: both sides have the same weight.
    for tap in range(middle):
        pair = audioop.add(copy(tap), copy(len(taps) - 1 - tap), 4)
        total = audioop.add(total, audioop.mul(pair, 4, 2 * taps[tap]), 4)
    return audioop.lin2lin(total, 4, 2)


def _filter_by_numpy(samples: bytes, taps: tuple[float, ...], step: int, count: int) -> bytes:
    import numpy

    sound = numpy.frombuffer(samples, dtype=numpy.int16).astype(numpy.float32)
    windows = numpy.ndarray((count, len(taps)), numpy.float32, sound, strides=(4 * step, 4))
    # `einsum`, because the library behind a product of matrices may start threads.
    total = numpy.einsum("ij,j->i", windows, _weights(taps))
    numpy.maximum(total, -32768, out=total)
    numpy.minimum(total, 32767, out=total)
    numpy.floor(total, out=total)
    return bytes(total.astype(numpy.int16).tobytes())


@cache
def _weights(taps: tuple[float, ...]) -> Any:
    import numpy

    return numpy.array(taps, dtype=numpy.float32)


@cache
def _low_pass(cutoff: float) -> tuple[float, ...]:
    """Return a windowed sinc (Hamming) with a gain of 1 at 0 Hz; `cutoff` is in cycles per sample."""
    middle = (_TAPS - 1) / 2
    taps = []
    for number in range(_TAPS):
        x = number - middle
        sinc = 2 * cutoff if not x else sin(2 * pi * cutoff * x) / (pi * x)
        taps.append(sinc * (0.54 - 0.46 * cos(2 * pi * number / (_TAPS - 1))))
    return tuple(tap / sum(taps) for tap in taps)
