"""The two tones of a key, one of each group (ITU-T Q.23, judged after Q.24)."""

from __future__ import annotations

from functools import cache

from callagent.call_info import FRAME_SAMPLES, SAMPLE_RATE

_LOW = (697, 770, 852, 941)
_HIGH = (1209, 1336, 1477, 1633)
_KEYS = ("123A", "456B", "789C", "*0#D")
_QUIETEST = 200
"""Level of a frame below which nobody presses a key: about -39 dBm0."""
_OVER_OTHERS = 6.0
"""A tone's energy over each other's of its group: 8 dB."""
_TWIST = 6.3
"""Between the two tones: 8 dB either way."""
_SHARE = 0.7
"""Of the frame's energy in the two tones: speech has more around them."""
_AMPLITUDE = 16000.0


def key_of(frame: bytes) -> str | None:
    """The key whose two tones fill the frame."""
    import audioop

    level = audioop.rms(frame, 2)
    if level < _QUIETEST:
        return None
    low = _loudest(frame, _LOW)
    # Of speech, which this is asked of in every frame, one group tells enough.
    high = None if low is None else _loudest(frame, _HIGH)
    if low is None or high is None:
        return None
    (row, low_energy), (column, high_energy) = low, high
    if not 1 / _TWIST < low_energy / high_energy < _TWIST:
        return None
    return _KEYS[row][column] if low_energy + high_energy > _SHARE * level * level else None


def _loudest(frame: bytes, tones: tuple[int, ...]) -> tuple[int, float] | None:
    """Index and energy of the one tone that stands out."""
    energies = [_energy(frame, hertz) for hertz in tones]
    best = max(range(len(tones)), key=energies.__getitem__)
    others = max(energy for index, energy in enumerate(energies) if index != best)
    return (best, energies[best]) if energies[best] > _OVER_OTHERS * others else None


def _energy(frame: bytes, hertz: int) -> float:
    """Mean square of the part of the frame at this frequency."""
    import audioop

    # The factor by which the reference fits into the frame is their correlation: what Goertzel computes, in C.
    cosine, sine = _references(hertz)
    real, imaginary = audioop.findfactor(frame, cosine), audioop.findfactor(frame, sine)
    return (real * real + imaginary * imaginary) * _AMPLITUDE * _AMPLITUDE / 2


@cache
def _references(hertz: int) -> tuple[bytes, bytes]:
    from array import array
    from math import cos, pi, sin

    angles = [2 * pi * hertz * index / SAMPLE_RATE for index in range(FRAME_SAMPLES)]
    return (
        array("h", (round(_AMPLITUDE * cos(angle)) for angle in angles)).tobytes(),
        array("h", (round(_AMPLITUDE * sin(angle)) for angle in angles)).tobytes(),
    )
