"""Sound for frames that did not arrive: concealed losses, and the comfort noise that a peer describes (RFC 3389).

A loss repeats the pitch period before the gap, in the manner of G.711 appendix I. If the packet after the gap has
arrived, the gap is filled from both sides: the continued earlier sound fades into the later sound, continued backwards.
Only the level of comfort noise is used, not its spectrum (RFC 3389 §3.2).
"""

from __future__ import annotations

import audioop
import random
from functools import cache

from callagent.audio import FRAME_BYTES

SILENCE = bytes(FRAME_BYTES)
_MIN_PERIOD = 40
_MAX_PERIOD = 120
"""Shortest and longest pitch period, in samples: 200 Hz and 66 Hz at 8 kHz."""
_MATCH_SAMPLES = 80
"""How many samples at the end of the sound are compared with those one pitch period earlier."""
_SHORT_MATCH_SAMPLES = 40
"""The same number if only one frame is available, as after a gap."""
_SEGMENTS = 8
"""Parts of a frame that have one gain each."""
_SEGMENT_BYTES = FRAME_BYTES // _SEGMENTS
_RAMP_BYTES = 16
_RAMP_STEPS = 5
"""After a loss the received sound is blended in over five steps of 1 ms."""
_MIN_LEVEL = 8
"""Level of 16-bit samples below which there is no pitch to repeat."""
_GAINS = (1.0, 0.9, 0.8)
"""Gains at the start of the first three made-up frames."""
_FADE_FRAMES = 5
"""Made-up frames until silence: the sound fades from 60 to 100 ms, so that a long gap does not buzz."""


class Concealment:
    """The latest sound of one stream, from which missing frames are made up.

    A received frame takes about 0.2 µs, and a made-up frame 30 µs.
    """

    def __init__(self) -> None:
        # Two frames are history enough: the longest pitch period twice, and the samples that are matched.
        self._before = b""
        self._last = b""
        self._cycle = b""
        self._phase = 0
        self._made_up = 0

    def receive(self, frame: bytes) -> bytes:
        """Return the frame to play: unchanged, or with its first 5 ms blended into made-up sound before it."""
        if self._made_up:
            frame = self._blend(frame)
            self._made_up = 0
        self._before, self._last = self._last, frame
        return frame

    def conceal(self) -> bytes:
        """Return a frame in place of one that is missing."""
        # The pitch is measured once, at the beginning of a gap: made-up sound has the same pitch.
        if not self._made_up:
            self._start_cycle()
        made_up, self._made_up = self._made_up, self._made_up + 1
        if not self._cycle or made_up >= _FADE_FRAMES:
            return SILENCE
        return _apply_gains(self._continue_cycle(FRAME_BYTES), [_gain(made_up + part) for part in _SEGMENT_MIDDLES])

    def fill_gap(self, count: int, following: bytes) -> list[bytes]:
        """Return frames in place of `count` missing ones in a row; `following` is the sound right after them."""
        if not self._made_up:
            self._start_cycle()
        # The later sound is reversed in time, so that it can be continued into the gap like the earlier sound.
        backwards = _last_period(audioop.reverse(following, 2), _SHORT_MATCH_SAMPLES)
        if not backwards:
            return [self.conceal() for _ in range(count)]
        length = count * FRAME_BYTES
        after = audioop.reverse((backwards * (length // len(backwards) + 1))[:length], 2)
        frames = []
        for index in range(count):
            made_up = self._made_up + index
            # The share of the later sound grows from 0 to 1 over the whole gap; the rest is the earlier sound.
            shares = [(index + part) / count for part in _SEGMENT_MIDDLES]
            future = [_gain(count - index - part) * share for part, share in zip(_SEGMENT_MIDDLES, shares, strict=True)]
            frame = _apply_gains(after[index * FRAME_BYTES : (index + 1) * FRAME_BYTES], future)
            if self._cycle and made_up < _FADE_FRAMES:
                past = [
                    _gain(made_up + part) * (1 - share) for part, share in zip(_SEGMENT_MIDDLES, shares, strict=True)
                ]
                frame = audioop.add(frame, _apply_gains(self._continue_cycle(FRAME_BYTES), past), 2)
            frames.append(frame)
        # The last of these frames leads into the received sound, so nothing is left to blend.
        self._made_up = 0
        return frames

    def silence(self) -> bytes:
        """Return a frame of intended silence, and forget the sound before it, so that no later loss repeats it."""
        self._before = self._last = b""
        self._made_up = 0
        return SILENCE

    def _start_cycle(self) -> None:
        self._phase = 0
        self._cycle = _last_period(self._before + self._last, _MATCH_SAMPLES)

    def _continue_cycle(self, length: int) -> bytes:
        cycle = self._cycle
        repeated = cycle * (length // len(cycle) + 2)
        part = repeated[self._phase : self._phase + length]
        self._phase = (self._phase + length) % len(cycle)
        return part

    def _blend(self, frame: bytes) -> bytes:
        gain = _gain(self._made_up)
        if not self._cycle or not gain:
            return frame
        made_up = self._continue_cycle(_RAMP_BYTES * _RAMP_STEPS)
        parts = []
        for step in range(_RAMP_STEPS):
            share = (step + 1) / (_RAMP_STEPS + 1)
            piece = slice(step * _RAMP_BYTES, (step + 1) * _RAMP_BYTES)
            old = audioop.mul(made_up[piece], 2, gain * (1 - share))
            parts.append(audioop.add(old, audioop.mul(frame[piece], 2, share), 2))
        return b"".join(parts) + frame[_RAMP_BYTES * _RAMP_STEPS :]


_SEGMENT_MIDDLES = [(index + 0.5) / _SEGMENTS for index in range(_SEGMENTS)]
"""The middle of each segment of a frame, as a part of the frame."""


def _last_period(history: bytes, match: int) -> bytes:
    """Return the last pitch period of the sound; empty if the sound is too short or too quiet."""
    if len(history) < 2 * (_MAX_PERIOD + match) or audioop.rms(history, 2) < _MIN_LEVEL:
        return b""
    searched = history[-2 * (_MAX_PERIOD + match) : -2 * _MIN_PERIOD]
    end = history[-2 * match :]
    offset, factor = audioop.findfit(searched, end)
    # `findfit` ignores the sign: with a negative factor, the piece that it found resembles the inverted end.
    period = _MAX_PERIOD - offset if factor > 0 else _upright_period(searched, end)
    return history[-2 * period :]


def _upright_period(searched: bytes, end: bytes) -> int:
    """Return the pitch period, in samples, at which the earlier sound resembles the end the most, sign included."""

    def likeness(period: int) -> float:
        start = 2 * (_MAX_PERIOD - period)
        piece = searched[start : start + len(end)]
        return audioop.findfactor(piece, end) / (audioop.rms(piece, 2) + 1)

    return max(range(_MIN_PERIOD, _MAX_PERIOD + 1, 2), key=likeness)


def _gain(made_up: float) -> float:
    """Return the gain after `made_up` made-up frames, interpolated between whole frames."""
    if made_up < len(_GAINS) - 1:
        below = int(made_up)
        return _GAINS[below] + (_GAINS[below + 1] - _GAINS[below]) * (made_up - below)
    return max(0.0, min(_GAINS[-1], _GAINS[-1] * (1 - (made_up - len(_GAINS)) / (_FADE_FRAMES - len(_GAINS)))))


def _apply_gains(frame: bytes, gains: list[float]) -> bytes:
    """Return the frame with each of its segments multiplied by a gain."""
    return b"".join(
        audioop.mul(frame[index * _SEGMENT_BYTES : (index + 1) * _SEGMENT_BYTES], 2, gain)
        for index, gain in enumerate(gains)
    )


_TABLE_SAMPLES = 4096
_TABLE_LEVEL = 4000.0
_OVERLOAD = 32768.0
"""The level of 0 dBov (decibels relative to overload)."""


class ComfortNoise:
    """Noise of the level that one comfort noise packet names."""

    def __init__(self, payload: bytes) -> None:
        """Raises `ValueError` for an empty payload."""
        if not payload:
            raise ValueError("Comfort noise is not valid: it has no level")
        # The first octet is the level below overload in dB (RFC 3389 §3.1).
        self._factor = _OVERLOAD * 10 ** (-(payload[0] & 0x7F) / 20) / _TABLE_LEVEL

    def frame(self) -> bytes:
        """Return 20 ms of the noise."""
        start = 2 * random.randrange(_TABLE_SAMPLES - FRAME_BYTES // 2)
        return audioop.mul(_white_noise()[start : start + FRAME_BYTES], 2, self._factor)


@cache
def _white_noise() -> bytes:
    """Return half a second of white noise, of which frames are cut at random places."""
    from array import array

    # The generator has its own seed: every process makes the same noise, and no other random numbers change.
    chance = random.Random(3389)
    samples = (round(chance.gauss(0, _TABLE_LEVEL)) for _ in range(_TABLE_SAMPLES))
    return array("h", (max(-32768, min(32767, sample)) for sample in samples)).tobytes()
