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
FRAME_SECONDS = 0.02
FRAME_SAMPLES = 160
FRAME_BYTES = 320
"""20 ms of 16-bit little-endian mono PCM at 8 kHz."""
DIGITS = "0123456789*#ABCD"
"""The keys of a telephone, in the order of their event codes (RFC 4733 §3.2)."""


_TAPS = 47
_PASSED_HERTZ = 3500
_TELEPHONE_HERTZ = 8000


def prepare_decimators() -> None:
    """Not while calls are served: import NumPy where it is installed. With it the filter costs a tenth."""
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401


class Decimator:
    """A low-pass filter, then every `factor`th sample: three for 24 kHz."""

    def __init__(self, factor: int = 3) -> None:
        self._factor = factor
        self._taps = _low_pass(_PASSED_HERTZ / (_TELEPHONE_HERTZ * factor))
        self._filter = _filtered_by_numpy if "numpy" in sys.modules else _filtered
        self._odd = b""
        self._before = bytes(2 * (_TAPS - 1))
        """The samples that the next output still depends on."""
        self._phase = 0
        """Of the next output: samples of the next piece that come before it."""

    def feed(self, pcm: bytes) -> bytes:
        """16-bit PCM in and out, in pieces of any length."""
        pcm = self._odd + pcm
        fed = len(pcm) // 2
        self._odd = pcm[2 * fed :]
        samples = self._before + pcm[: 2 * fed]
        self._before = samples[2 * fed :]
        count = len(range(self._phase, fed, self._factor))
        first, self._phase = self._phase, (self._phase - fed) % self._factor
        return self._filter(samples[2 * first :], self._taps, self._factor, count) if count else b""


def _filtered(samples: bytes, taps: tuple[float, ...], step: int, count: int) -> bytes:
    """A sum of weighted copies, each `step` samples apart; every addition runs in C over all of them at once."""
    # In 32 bits, at half amplitude: two are added before they are weighted.
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


def _filtered_by_numpy(samples: bytes, taps: tuple[float, ...], step: int, count: int) -> bytes:
    import numpy

    sound = numpy.frombuffer(samples, dtype=numpy.int16).astype(numpy.float32)
    windows = numpy.ndarray((count, len(taps)), numpy.float32, sound, strides=(4 * step, 4))
    # Not a product of matrices: its library may start threads.
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
    """A windowed sinc (Hamming) with a gain of 1 at 0 Hz; `cutoff` in cycles per sample."""
    middle = (_TAPS - 1) / 2
    taps = []
    for number in range(_TAPS):
        x = number - middle
        sinc = 2 * cutoff if not x else sin(2 * pi * cutoff * x) / (pi * x)
        taps.append(sinc * (0.54 - 0.46 * cos(2 * pi * number / (_TAPS - 1))))
    return tuple(tap / sum(taps) for tap in taps)
