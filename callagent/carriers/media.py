"""The audio of a carrier leg: frames to and from a media stream, and the ledger of what the caller has heard."""

from __future__ import annotations

import asyncio
import audioop
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, Protocol

from callagent.audio import FRAME_SAMPLES, FRAME_SECONDS
from callagent.call_info import MediaStatistics
from callagent.legs import FrameSink, FrameSource, LegGone

LEAD: Final = 5 * FRAME_SECONDS
"""Seconds that the carrier holds ahead of its playing: a stall of ours that long is not heard."""
EARLY: Final = FRAME_SECONDS / 4
"""Seconds of lead beyond that: a tick after a late one comes early."""
MARK_FRAMES: Final = 5
"""A mark after so many frames: the ledger is exact every 100 ms."""
MAX_PENDING_MARKS: Final = 1024


class MediaDialect(Protocol):
    """How audio is said on a carrier's wire; each gives the text to send."""

    def media(self, payload: bytes) -> str: ...

    def mark(self, name: str) -> str: ...

    def clear(self) -> str: ...


class CarrierMedia:
    """Implements `legs.leg.Media`; the rest is for its leg.

    Times are the loop's monotonic seconds. `sent` and `heard` count seconds of audio since the leg began. The carrier
    plays what it has at its own pace, so `heard` is what its marks acknowledge; between two marks it grows with the
    clock and never past the next mark.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._dialect: MediaDialect | None = None
        self._send: Callable[[str], None] | None = None
        self._sink: FrameSink | None = None
        self._source: FrameSource | None = None
        self._statistics = MediaStatistics(codec="PCMU/8000")
        self._received = bytearray()
        self._tones: deque[bytes] = deque()
        self._tones_sent: asyncio.Future[bool] | None = None
        self._playing_until = 0.0
        self._sent = 0.0
        self._heard = 0.0
        self._heard_at = 0.0
        self._unmarked = 0
        self._marks = 0
        self._pending: deque[tuple[str, float]] = deque(maxlen=MAX_PENDING_MARKS)
        """Marks not yet acknowledged, with `sent` at their place."""

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        assert self._sink is None, "media is started once"
        self._sink = sink
        self._source = source

    def clear(self) -> float:
        dropped = self.unheard()
        if self._dialect and self._send and (self._pending or dropped > 0):
            self._send(self._dialect.clear())
        self._forget()
        return dropped

    def unheard(self) -> float:
        limit = self._pending[0][1] if self._pending else self._sent
        heard = min(self._heard + max(0.0, self._now() - self._heard_at), limit)
        return round(max(0.0, self._sent - heard), 6)

    def statistics(self) -> MediaStatistics:
        return replace(self._statistics)

    def attach(self, dialect: MediaDialect, send: Callable[[str], None]) -> None:
        """A media stream is there to talk through."""
        self._dialect = dialect
        self._send = send

    def detach(self) -> None:
        """The stream is gone, and with it what it had not played."""
        self._dialect = self._send = None
        self._received.clear()
        self._forget()

    def close(self) -> None:
        self.detach()
        # What is called here belongs to the call, which holds this object.
        self._sink = self._source = None
        self._tones.clear()
        if self._tones_sent and not self._tones_sent.done():
            self._tones_sent.set_result(False)

    def receive(self, payload: bytes, now: float) -> None:
        """μ-law from the carrier, of any length; the sink gets whole frames."""
        self._received += payload
        while len(self._received) >= FRAME_SAMPLES:
            frame = bytes(self._received[:FRAME_SAMPLES])
            del self._received[:FRAME_SAMPLES]
            self._statistics.packets_received += 1
            if self._sink:
                self._sink(audioop.ulaw2lin(frame, 2), now)

    def mark_reached(self, name: str, now: float) -> None:
        """Everything up to the mark was played. Marks that a clear dropped are no longer pending and count nothing."""
        if all(name != pending for pending, _ in self._pending):
            return
        while self._pending:
            pending, self._heard = self._pending.popleft()
            if pending == name:
                break
        self._heard_at = now

    def tick(self, now: float, lateness: float) -> None:
        """Send what keeps the carrier `LEAD` ahead of its playing."""
        if self._send is None or (self._source is None and not self._tones):
            return
        self._statistics.send_lateness_max_ms = max(self._statistics.send_lateness_max_ms, lateness * 1000)
        # After a stall or a silence the carrier has run dry: its time starts anew.
        self._playing_until = max(self._playing_until, now)
        while self._playing_until + FRAME_SECONDS <= now + LEAD + EARLY:
            frame = self._next_frame()
            if frame is None:
                self._mark()
                return
            self._send_frame(frame, now)

    async def play_tones(self, frames: Iterable[bytes]) -> None:
        """Play frames ahead of what the source has; returns when the last one was sent. Raises `LegGone`."""
        self._tones.extend(frames)
        if not self._tones:
            return
        if self._tones_sent is None or self._tones_sent.done():
            self._tones_sent = asyncio.get_running_loop().create_future()
        if not await asyncio.shield(self._tones_sent):
            raise LegGone("the call ended before the tones were sent")

    def _next_frame(self) -> bytes | None:
        if not self._tones:
            return self._source() if self._source else None
        frame = self._tones.popleft()
        if not self._tones and self._tones_sent and not self._tones_sent.done():
            self._tones_sent.set_result(True)
        return frame

    def _send_frame(self, frame: bytes, now: float) -> None:
        # A source may have made the leg close itself.
        if self._dialect is None or self._send is None:
            return
        if self._heard >= self._sent:
            self._heard_at = now
        self._send(self._dialect.media(audioop.lin2ulaw(frame, 2)))
        self._statistics.packets_sent += 1
        seconds = len(frame) / (2 * FRAME_SAMPLES) * FRAME_SECONDS
        self._sent += seconds
        self._playing_until += seconds
        self._unmarked += 1
        if self._unmarked >= MARK_FRAMES:
            self._mark()

    def _mark(self) -> None:
        if self._unmarked == 0 or self._dialect is None or self._send is None:
            return
        self._unmarked = 0
        self._marks += 1
        name = f"m{self._marks}"
        self._pending.append((name, self._sent))
        self._send(self._dialect.mark(name))

    def _forget(self) -> None:
        self._pending.clear()
        self._unmarked = 0
        self._heard = self._sent
        self._heard_at = self._playing_until = self._now()
