"""Background audio: a track under all that is said, and the thinking sound for waits in which nothing is said.

Frames are prepared when a sound is chosen. The pump thread only takes the next prepared frame and, while the agent
speaks, adds it to the speech, which is one call into C. The event loop changes what is played with a single assignment,
so the two threads need no lock.
"""

from __future__ import annotations

import audioop

from callagent.audio import FRAME_BYTES
from callagent.turns.playout import fade

Frames = tuple[bytes, ...]
FULL_SCALE = 32768
"""Magnitude of the largest 16-bit sample."""


def render(pcm: bytes, loudness: float) -> Frames:
    """Return `pcm` as frames to repeat, at a root mean square of `loudness` dB of full scale; empty if it is silent."""
    pcm = pcm[: len(pcm) - len(pcm) % FRAME_BYTES]
    level = audioop.rms(pcm, 2) if pcm else 0
    if not level:
        return ()
    # The reference is the largest sample: a sine of full scale has -3 dB by this measure.
    scaled = audioop.mul(pcm, 2, FULL_SCALE * 10 ** (loudness / 20) / level)
    return tuple(scaled[at : at + FRAME_BYTES] for at in range(0, len(scaled), FRAME_BYTES))


class _Track:
    """Frames that are repeated. Only the pump thread changes `position`, and only the event loop `ending`."""

    __slots__ = ("ending", "frames", "position")

    def __init__(self, frames: Frames) -> None:
        self.frames = frames
        self.position = 0
        self.ending = False

    def next_frame(self) -> bytes | None:
        """Return the next frame, the first faded in and the last faded out; None once the track has ended."""
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
    """The sounds of one call. `mix` is for the pump thread, everything else for the event loop."""

    def __init__(self) -> None:
        self._background: _Track | None = None
        self._thinking: _Track | None = None
        self._thinking_frames: Frames = ()

    def set_background(self, frames: Frames) -> None:
        """Repeat `frames` from now on, under speech and between utterances; an empty tuple stops the track."""
        self._background = _Track(frames) if frames else None

    def set_thinking(self, frames: Frames) -> None:
        """Set the frames of the thinking sound; an empty tuple stops it."""
        self._thinking_frames = frames
        if not frames:
            self._thinking = None

    def play_thinking(self, wanted: bool) -> None:
        """Start the thinking sound, or fade it out within one frame."""
        playing = self._thinking is not None and not self._thinking.ending
        if wanted and not playing and self._thinking_frames:
            self._thinking = _Track(self._thinking_frames)
        elif not wanted and self._thinking is not None:
            self._thinking.ending = True

    def mix(self, frame: bytes | None) -> bytes | None:
        """Return `frame` of speech, or of the thinking sound, over the background track; None if all are silent."""
        # Each attribute is read once, because the event loop may replace it between two readings.
        thinking, background = self._thinking, self._background
        if frame is None and thinking is not None:
            frame = thinking.next_frame()
        if background is None or (background_frame := background.next_frame()) is None:
            return frame
        return background_frame if frame is None else audioop.add(frame, background_frame, 2)
