"""A leg's media between two users: the agent, and another leg while the two are bridged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from callagent.call_info import MediaStatistics

CROSSING_FRAMES = 10
"""200 ms: more than that a bridge does not delay anybody; what is older is dropped."""
_PREFILL = 2


FrameSink = Callable[[bytes, float], None]
"""Called on the event loop with each 20 ms frame received and the monotonic time of its arrival. Never blocks."""

FrameSource = Callable[[], bytes | None]
"""Asked for a frame every 20 ms, from the pump thread for RTP. None: nothing to say, the leg sends silence."""


class Media(Protocol):
    """The audio of an answered leg."""

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        """Begin to deliver frames to `sink` and to ask `source`. Once."""

    def clear(self) -> float:
        """Drop what was taken from the source and is not yet played; the seconds dropped (0.0 on RTP)."""

    def unheard(self) -> float:
        """Seconds taken from the source that the peer has not played yet, as far as the wire tells (0.0 on RTP)."""

    def statistics(self) -> MediaStatistics: ...


class Crossing:
    """One direction of a bridge: the loop puts frames of one leg in, the pump's thread takes them for the other."""

    def __init__(self) -> None:
        # A deque's own steps are single operations under the interpreter's lock; the bound drops the oldest frame.
        self._frames: deque[bytes] = deque(maxlen=CROSSING_FRAMES)
        self._flowing = False

    def put(self, pcm: bytes, now: float) -> None:
        self._frames.append(pcm)

    def take(self) -> bytes | None:
        """The next frame; after a gap only once two are there, so that jitter between the clocks is not heard."""
        if not self._flowing and len(self._frames) < _PREFILL:
            return None
        try:
            frame = self._frames.popleft()
        except IndexError:
            self._flowing = False
            return None
        self._flowing = True
        return frame


class SwitchedMedia:
    """Passes everything through to the agent's side, or crosses frames with another leg."""

    def __init__(self, media: Media) -> None:
        self._media = media
        self._heard_by: Crossing | None = None
        self._hears: Crossing | None = None

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        def receive(pcm: bytes, now: float) -> None:
            crossing = self._heard_by
            if crossing is None:
                sink(pcm, now)
            else:
                crossing.put(pcm, now)

        def give() -> bytes | None:
            crossing = self._hears
            return source() if crossing is None else crossing.take()

        self._media.start(receive, give)

    def hear(self, other: Crossing) -> None:
        """The peer hears the other leg; the agent still hears the peer."""
        self._hears = other

    def speak(self, other: Crossing) -> None:
        """The other leg hears the peer, and the agent no longer does."""
        self._heard_by = other

    def uncross(self) -> None:
        """Back to the agent. Idempotent."""
        self._heard_by = self._hears = None

    def clear(self) -> float:
        return self._media.clear()

    def unheard(self) -> float:
        return self._media.unheard()

    def statistics(self) -> MediaStatistics:
        return self._media.statistics()
