"""Sound that is no words: the background track under all that is said, the thinking sound where nothing is said.

Frames are made ready when a sound is chosen. The pump thread only takes the next one and, under words, adds it: one
call into C of a third of a microsecond. The loop changes what is played with one assignment.
"""

from __future__ import annotations

import audioop

from callagent.audio import FRAME_BYTES
from callagent.turns.playout import fade

Frames = tuple[bytes, ...]
FULL_SCALE = 32768


def render(pcm: bytes, loudness: float) -> Frames:
    """A loop of frames whose root mean square is `loudness` dB of full scale; empty where there is no sound."""
    pcm = pcm[: len(pcm) - len(pcm) % FRAME_BYTES]
    level = audioop.rms(pcm, 2) if pcm else 0
    if not level:
        return ()
    louder = audioop.mul(pcm, 2, FULL_SCALE * 10 ** (loudness / 20) / level)
    return tuple(louder[at : at + FRAME_BYTES] for at in range(0, len(louder), FRAME_BYTES))


class _Loop:
    """Frames that go round. `position` is the pump's to change, `ending` the loop's."""

    __slots__ = ("ending", "frames", "position")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.position = 0
        self.ending = False

    def next_frame(self) -> bytes | None:
        """None: it has ended."""
        position, frames = self.position, self.frames
        if position < 0:
            return None
        frame = frames[position % len(frames)]
        if self.ending:
            self.position = -1
            return fade(frame, rising=False)
        self.position = position + 1
        return frame if position else fade(frame, rising=True)


class BackgroundAudio:
    """One call's. `under` is for the pump thread, the rest for the event loop."""

    def __init__(self) -> None:
        self._background: _Loop | None = None
        self._thinking: _Loop | None = None
        self._thinking_frames: Frames = ()

    def set_background(self, frames: Frames) -> None:
        """Played from now on, under words and between them; empty: none."""
        self._background = _Loop(frames) if frames else None

    def set_thinking(self, frames: Frames) -> None:
        """What `think` plays; empty: nothing."""
        self._thinking_frames = frames
        if not frames:
            self._thinking = None

    def think(self, wanted: bool) -> None:
        """Start the thinking sound, or let it fade within a frame."""
        playing = self._thinking is not None and not self._thinking.ending
        if wanted and not playing and self._thinking_frames:
            self._thinking = _Loop(self._thinking_frames)
        elif not wanted and self._thinking is not None:
            self._thinking.ending = True

    def under(self, frame: bytes | None) -> bytes | None:
        """The frame to send where `frame` is what is being said; None: nothing."""
        # Each is read once: the loop may put another in its place between two readings.
        thinking, background = self._thinking, self._background
        if frame is None and thinking is not None:
            frame = thinking.next_frame()
        if background is None or (below := background.next_frame()) is None:
            return frame
        return below if frame is None else audioop.add(frame, below, 2)
