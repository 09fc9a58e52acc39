"""Key presses heard in the audio."""

from __future__ import annotations

from callagent.key_tones import key_of

_FRAMES = 2
"""Of the same key in a row; 40 ms must be heard (Q.24)."""


class InBandDigits:
    """Frame by frame. About 2 µs where it is quiet, 12 µs where it is not."""

    def __init__(self) -> None:
        self._key: str | None = None
        self._frames = 0
        self._gap = 0
        self._pressed = False

    def receive(self, frame: bytes) -> str | None:
        """The digit, once, with the frame that makes it sure."""
        key = key_of(frame)
        if key is None:
            self._gap += 1
            # One frame in the middle of a tone may be spoilt by loss.
            if self._gap >= _FRAMES:
                self._key, self._frames, self._pressed = None, 0, False
            return None
        if key != self._key:
            self._key, self._frames, self._pressed = key, 0, False
        self._gap = 0
        self._frames += 1
        if self._pressed or self._frames < _FRAMES:
            return None
        self._pressed = True
        return key
