"""The audio of a session leg: what the client sends is heard at the pace of speech, what we send is slightly ahead."""

from __future__ import annotations

import audioop
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from callagent.audio import FRAME_BYTES, FRAME_SECONDS
from callagent.legs.leg import FrameSink, FrameSource, MediaStatistics

LEAD: Final = 0.06
"""Seconds of audio that the client has at least, while there is any; up to `MESSAGE_FRAMES` more."""
MESSAGE_FRAMES: Final = 5
PAUSE: Final = 0.3
"""Seconds without audio after which the client counts as silent; a gap that is shorter stretches nothing but time."""
BEHIND: Final = 0.2
"""Seconds of audio waiting, from which on silence is left out until the client is heard as it speaks."""
MOST_WAITING: Final = 60.0
"""Seconds of audio that a client may be ahead of speech."""
_QUIET: Final = 60
"""Loudness (RMS) up to which a frame says nothing."""
_SILENCE = bytes(FRAME_BYTES)


class AudioTooEarly(Exception):
    """The client sends audio so much faster than it is spoken that it is not kept any more."""


class SessionMedia:
    """Implements `legs.leg.Media`; the rest is for its leg. Times are the loop's monotonic seconds."""

    def __init__(self, now: Callable[[], float], send: Callable[[bytes], None]) -> None:
        self._now = now
        self._send = send
        self._sink: FrameSink | None = None
        self._source: FrameSource | None = None
        self._received = bytearray()
        self._statistics = MediaStatistics(codec="L16/8000")
        self._heard_from = now()
        self._playing_until = 0.0

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        assert self._sink is None, "media is started once"
        self._sink = sink
        self._source = source

    def clear(self) -> float:
        """What the client has cannot be taken back: it is told of an interruption, and drops it itself."""
        return 0.0

    def unheard(self) -> float:
        return round(max(0.0, self._playing_until - self._now()), 6)

    def statistics(self) -> MediaStatistics:
        return replace(self._statistics)

    def close(self) -> None:
        self._sink = self._source = None
        self._received.clear()

    def receive(self, pcm: bytes, now: float) -> None:
        """16-bit PCM at the call's rate, of any length. Raises `AudioTooEarly`."""
        if len(self._received) + len(pcm) > MOST_WAITING / FRAME_SECONDS * FRAME_BYTES:
            raise AudioTooEarly(f"audio is {MOST_WAITING:.0f} s ahead of its time; send it as it is spoken")
        self._received += pcm
        self._heard_from = now

    def tick(self, now: float, lateness: float) -> None:
        self._hear(now)
        self._speak(now, lateness)

    def _hear(self, now: float) -> None:
        if self._sink is None:
            return
        while len(self._received) > BEHIND / FRAME_SECONDS * FRAME_BYTES and self._is_quiet():
            del self._received[:FRAME_BYTES]
        if len(self._received) >= FRAME_BYTES:
            frame = bytes(self._received[:FRAME_BYTES])
            del self._received[:FRAME_BYTES]
            self._statistics.packets_received += 1
            self._sink(frame, now)
        elif now - self._heard_from > PAUSE:
            # Who sends nothing is silent: turns end and silences count all the same.
            self._sink(_SILENCE, now)

    def _is_quiet(self) -> bool:
        return audioop.rms(bytes(self._received[:FRAME_BYTES]), 2) <= _QUIET

    def _speak(self, now: float, lateness: float) -> None:
        if self._source is None or self._playing_until > now + LEAD:
            return
        self._statistics.send_lateness_max_ms = max(self._statistics.send_lateness_max_ms, lateness * 1000)
        frames: list[bytes] = []
        # What a source tells may close the leg.
        while len(frames) < MESSAGE_FRAMES and self._source is not None:
            frame = self._source()
            if frame is None:
                break
            frames.append(frame)
        if not frames:
            return
        self._playing_until = max(self._playing_until, now) + len(frames) * FRAME_SECONDS
        self._statistics.packets_sent += len(frames)
        self._send(b"".join(frames))
