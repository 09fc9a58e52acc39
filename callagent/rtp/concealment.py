"""Sound for frames that never came: the last pitch period again, fading out (in the manner of G.711 appendix I)."""

from __future__ import annotations

from callagent.call_info import FRAME_BYTES

SILENCE = bytes(FRAME_BYTES)
_SHORTEST_PITCH = 40
_LONGEST_PITCH = 120
"""Samples: 200 Hz and 66 Hz at 8 kHz."""
_MATCH = 80
_HISTORY_BYTES = 2 * (2 * _LONGEST_PITCH + _MATCH)
_SEGMENT_BYTES = 80
_RAMP_BYTES = 16
_RAMP_STEPS = 5
_GAINS = (1.0, 0.9, 0.8)
"""At the start of each of the first frames."""
_FADE_FRAMES = 5
"""Full silence after so many: fading from 60 to 100 ms, so a long gap does not buzz."""


class Concealment:
    """Remembers what was heard last. About 0.2 µs for a frame received, 30 µs for a frame made up."""

    def __init__(self) -> None:
        self._history = b""
        self._cycle = b""
        self._phase = 0
        self._made_up = 0

    def received(self, frame: bytes) -> bytes:
        """The frame to hand on: as received, or with its first 5 ms blended into what was made up before it."""
        if self._made_up:
            frame = self._blend(frame)
            self._made_up = 0
        self._history = (self._history + frame)[-_HISTORY_BYTES:]
        return frame

    def conceal(self) -> bytes:
        """A frame for one that is missing."""
        if not self._made_up:
            self._start_cycle()
        made_up, self._made_up = self._made_up, self._made_up + 1
        if not self._cycle or made_up >= _FADE_FRAMES:
            return SILENCE
        return _fade(self._continue_cycle(FRAME_BYTES), _gain(made_up), _gain(made_up + 1))

    def silence(self) -> bytes:
        """A frame of silence that the peer meant; nothing is made up from what was heard before it."""
        self._history = b""
        self._made_up = 0
        return SILENCE

    def _start_cycle(self) -> None:
        import audioop

        self._cycle = b""
        self._phase = 0
        if len(self._history) < _HISTORY_BYTES or audioop.rms(self._history, 2) < 8:
            return
        end = self._history[-2 * _MATCH :]
        searched = self._history[-2 * (_LONGEST_PITCH + _MATCH) : -2 * _SHORTEST_PITCH]
        offset, factor = audioop.findfit(searched, end)
        # A negative factor is a match upside down, half a period away.
        pitch = (_LONGEST_PITCH - offset) * (1 if factor > 0 else 2)
        self._cycle = self._history[-2 * pitch :]

    def _continue_cycle(self, length: int) -> bytes:
        cycle = self._cycle
        repeated = cycle * (length // len(cycle) + 2)
        part = repeated[self._phase : self._phase + length]
        self._phase = (self._phase + length) % len(cycle)
        return part

    def _blend(self, frame: bytes) -> bytes:
        import audioop

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


def _gain(made_up: int) -> float:
    if made_up < len(_GAINS):
        return _GAINS[made_up]
    return max(0.0, _GAINS[-1] * (1 - (made_up - len(_GAINS)) / (_FADE_FRAMES - len(_GAINS))))


def _fade(frame: bytes, start: float, end: float) -> bytes:
    """From one gain to the other in steps of 5 ms."""
    import audioop

    steps = len(frame) // _SEGMENT_BYTES
    return b"".join(
        audioop.mul(
            frame[index * _SEGMENT_BYTES : (index + 1) * _SEGMENT_BYTES], 2, start + (end - start) * index / steps
        )
        for index in range(steps)
    )
