"""A leg's media between two users: the agent, and another leg while the two are bridged."""

from __future__ import annotations

from collections import deque

from callagent.legs.leg import FrameSink, FrameSource, Media, MediaStatistics

CROSSING_FRAMES = 10
"""200 ms: more than that a bridge does not delay anybody; what is older is dropped."""
_PREFILL = 2


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
