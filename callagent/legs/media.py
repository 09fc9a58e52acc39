"""The audio of a leg: the contract, and the switch between the agent and another leg while two are bridged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from callagent.call_info import MediaStatistics

MAX_CROSSING_FRAMES = 10
"""Frames that wait in one direction of a bridge, 200 ms; the oldest ones are dropped."""
_PREFILL = 2
"""Frames that have to wait after a gap before the first one is taken."""


FrameSink = Callable[[bytes, float], None]
"""Called on the event loop with each 20 ms frame of the peer and the monotonic time of its arrival. Never blocks."""

FrameSource = Callable[[], bytes | None]
"""Asked for a frame every 20 ms, for RTP by the thread of the pump. None: the agent is silent, and so is the leg."""


class Media(Protocol):
    """The audio of an answered leg."""

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        """Begin to deliver frames to `sink` and to ask `source`. Called once."""

    def clear(self) -> float:
        """Drop what was taken from the source and is not yet played; return its seconds (0.0 on RTP)."""

    def unheard(self) -> float:
        """Return the seconds taken from the source that the peer has not played yet, as the wire tells (0.0 on RTP)."""

    def statistics(self) -> MediaStatistics: ...


class Crossing:
    """One direction of a bridge: the event loop puts frames of one leg in, the pump thread takes them for the other."""

    def __init__(self) -> None:
        # Two threads without a lock: append and popleft of a deque are atomic. The bound drops the oldest frame.
        self._frames: deque[bytes] = deque(maxlen=MAX_CROSSING_FRAMES)
        self._flowing = False

    def put(self, pcm: bytes, now: float) -> None:
        self._frames.append(pcm)

    def take(self) -> bytes | None:
        """Return the next frame; after a gap only when two wait, so that jitter between the two clocks is not heard."""
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
    """Implements `Media`: passes frames between the leg and the agent, or crosses them with another leg."""

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
        """Let the peer hear the other leg instead of the agent; the agent still hears the peer."""
        self._hears = other

    def speak(self, other: Crossing) -> None:
        """Let the other leg hear the peer instead of the agent."""
        self._heard_by = other

    def uncross(self) -> None:
        """Join the peer to the agent again. Idempotent."""
        self._heard_by = self._hears = None

    def clear(self) -> float:
        return self._media.clear()

    def unheard(self) -> float:
        return self._media.unheard()

    def statistics(self) -> MediaStatistics:
        return self._media.statistics()
