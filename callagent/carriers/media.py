"""The audio of a leg over a media stream: frames in both directions, what the caller has heard, and the clock of legs.

One timer serves all legs on WebSockets (`FrameClock`): a timer for each call would collapse at a thousand calls.
"""

from __future__ import annotations

import asyncio
import audioop
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, Protocol

from callagent.audio import FRAME_SAMPLES, FRAME_SECONDS
from callagent.call_info import MediaStatistics
from callagent.carriers.protocol import PCMU, AudioFormat, HeardLedger, MediaEncoder, Message
from callagent.legs import FrameSink, FrameSource, LegGone
from callagent.log import get_logger

LEAD: Final = 5 * FRAME_SECONDS
"""Seconds of audio that the carrier has in advance: a stall of ours that long is not heard."""
EARLY: Final = FRAME_SECONDS / 4
"""Further seconds that a frame may be sent ahead of its time: the tick after a late one comes early."""
MARK_FRAMES: Final = 5
"""Frames between two marks: the ledger is exact every 100 ms."""
MAX_PENDING_MARKS: Final = 1024
"""Marks that wait to be acknowledged; with more, the oldest is forgotten."""


class AudioCodec(NamedTuple):
    """How one frame of 16-bit PCM at 8 kHz is written in a format and read from it."""

    frame_bytes: int
    decode: Callable[[bytes], bytes]
    encode: Callable[[bytes], bytes]


CODECS: Final[Mapping[AudioFormat, AudioCodec]] = {
    PCMU: AudioCodec(FRAME_SAMPLES, lambda payload: audioop.ulaw2lin(payload, 2), lambda pcm: audioop.lin2ulaw(pcm, 2)),
}
"""The formats that a dialect may name; a carrier with another format adds a line."""


class CarrierMedia:
    """Implements `legs.Media`; the methods from `attach` on are for its leg.

    Times are the loop's monotonic seconds. `_sent` and `_heard` count seconds of audio since the leg began. The carrier
    plays what it has at its own pace. With `HeardLedger.MARKS`, `_heard` is what its marks acknowledge; between two
    marks it grows with the clock and never past the next mark. With `HeardLedger.CLOCK` no mark is pending, so the
    clock alone counts; with `HeardLedger.POSITION` each report corrects it.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._dialect: MediaEncoder | None = None
        self._send: Callable[[Message], None] | None = None
        self._inbound = self._outbound = CODECS[PCMU]
        self._sink: FrameSink | None = None
        self._source: FrameSource | None = None
        self._statistics = MediaStatistics(codec="PCMU/8000")
        self._received = bytearray()
        self._tones: deque[bytes] = deque()
        self._tones_sent: asyncio.Future[bool] | None = None
        self._playing_until = 0.0
        """When the carrier will have played everything that was sent."""
        self._sent = 0.0
        self._unplayed = 0.0
        """Seconds of `_sent` that the present stream does not play: sent before it started, or dropped by a clear."""
        self._heard = 0.0
        self._heard_at = 0.0
        self._frames_since_mark = 0
        self._marks = 0
        self._pending: deque[tuple[str, float]] = deque(maxlen=MAX_PENDING_MARKS)
        """Marks not yet acknowledged, with `_sent` at their place."""

    # legs.Media

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        assert self._sink is None, "media is started once"
        self._sink = sink
        self._source = source

    def clear(self) -> float:
        # Nothing is sent where all was heard: a clear would only cost the carrier a message.
        dropped = self.unheard()
        if self._dialect and self._send and (self._pending or dropped > 0):
            self._send_all(self._dialect.encode_clear())
            self._unplayed += dropped
        self._forget_sent()
        return dropped

    def unheard(self) -> float:
        # Between two marks the clock counts on, up to the next mark: only that proves that more was played.
        limit = self._pending[0][1] if self._pending else self._sent
        heard = min(self._heard + max(0.0, self._now() - self._heard_at), limit)
        return round(max(0.0, self._sent - heard), 6)

    def statistics(self) -> MediaStatistics:
        return replace(self._statistics)

    # For the leg

    def attach(self, dialect: MediaEncoder, send: Callable[[Message], None]) -> None:
        """Use a media stream that has started."""
        self._dialect = dialect
        self._send = send
        self._inbound, self._outbound = CODECS[dialect.inbound], CODECS[dialect.outbound]
        self._statistics.codec = f"{dialect.inbound.codec}/{dialect.inbound.rate}"
        self._unplayed = self._sent

    def detach(self) -> None:
        """Give the stream up, and with it what the carrier had not played."""
        self._dialect = self._send = None
        self._received.clear()
        self._forget_sent()

    def close(self) -> None:
        self.detach()
        # Sink and source belong to the call, which holds this object: the two would keep each other alive.
        self._sink = self._source = None
        self._tones.clear()
        if self._tones_sent and not self._tones_sent.done():
            self._tones_sent.set_result(False)

    def receive(self, payload: bytes, now: float) -> None:
        """Take audio of the carrier, of any length; the sink gets whole frames."""
        codec = self._inbound
        self._received += payload
        while len(self._received) >= codec.frame_bytes:
            frame = bytes(self._received[: codec.frame_bytes])
            del self._received[: codec.frame_bytes]
            self._statistics.packets_received += 1
            if self._sink:
                self._sink(codec.decode(frame), now)

    def reach_mark(self, name: str, now: float) -> None:
        """Count everything up to the mark as heard. Marks that a clear dropped are not pending and count nothing."""
        # Some carriers send the marks of audio that was cleared as if it had been played.
        if all(name != pending for pending, _ in self._pending):
            return
        while self._pending:
            pending, self._heard = self._pending.popleft()
            if pending == name:
                break
        self._heard_at = now

    def report_position(self, seconds: float, now: float) -> None:
        """Count as heard what the carrier says it has played since the stream started, never more than was sent."""
        self._heard = min(self._sent, self._unplayed + seconds)
        self._heard_at = now

    def tick(self, now: float, lateness: float) -> None:
        """Send what keeps the carrier `LEAD` ahead of its playing."""
        if self._send is None or (self._source is None and not self._tones):
            return
        self._statistics.send_lateness_max_ms = max(self._statistics.send_lateness_max_ms, lateness * 1000)
        # After a stall or a silence the carrier has nothing left to play: its lead is built up anew from now.
        self._playing_until = max(self._playing_until, now)
        while self._playing_until + FRAME_SECONDS <= now + LEAD + EARLY:
            frame = self._next_frame()
            if frame is None:
                # The end of an utterance has a mark of its own, so that it is acknowledged at once.
                self._send_mark()
                return
            self._send_frame(frame, now)

    async def play_tones(self, frames: Iterable[bytes]) -> None:
        """Play frames ahead of what the source has; return when the last one was sent. Raises `LegGone`."""
        self._tones.extend(frames)
        if not self._tones:
            return
        # Tones that are asked for while others are sent join them; all wait for the last one.
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
        # The source may have made the leg close itself.
        if self._dialect is None or self._send is None:
            return
        # If everything before was heard, the carrier begins to play with this frame.
        if self._heard >= self._sent:
            self._heard_at = now
        self._send_all(self._dialect.encode_media(self._outbound.encode(frame)))
        self._statistics.packets_sent += 1
        seconds = len(frame) / (2 * FRAME_SAMPLES) * FRAME_SECONDS
        self._sent += seconds
        self._playing_until += seconds
        self._frames_since_mark += 1
        if self._frames_since_mark >= MARK_FRAMES:
            self._send_mark()

    def _send_mark(self) -> None:
        if self._frames_since_mark == 0 or self._dialect is None or self._dialect.ledger is not HeardLedger.MARKS:
            return
        self._frames_since_mark = 0
        self._marks += 1
        name = f"m{self._marks}"
        self._pending.append((name, self._sent))
        self._send_all(self._dialect.encode_mark(name))

    def _send_all(self, messages: Iterable[Message]) -> None:
        for message in messages:
            # Sending may fail and close the leg between two messages.
            if self._send is not None:
                self._send(message)

    def _forget_sent(self) -> None:
        """Count everything that was sent as over: heard or dropped."""
        self._pending.clear()
        self._frames_since_mark = 0
        self._heard = self._sent
        self._heard_at = self._playing_until = self._now()


HALF_FRAME = FRAME_SECONDS / 2
"""The period for legs that send ahead of what is played: new audio waits for half a frame at most."""

log = get_logger(__name__)


class Ticking(Protocol):
    """A leg that a `FrameClock` ticks."""

    def tick(self, now: float, lateness: float) -> None:
        """Send and deliver the audio that is due; the tick comes `lateness` seconds late."""

    def fail(self, detail: str) -> None:
        """Close after a tick that raised an error; no other tick comes."""


class FrameClock:
    """A timer that ticks its members at absolute times while it has any; ticks whose time has passed are left out."""

    def __init__(self, period: float = FRAME_SECONDS) -> None:
        self._period = period
        self._loop = asyncio.get_running_loop()
        self._members: dict[int, Ticking] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def now(self) -> float:
        return self._loop.time()

    def add(self, member: Ticking) -> None:
        self._members[id(member)] = member
        if self._timer is None:
            self._schedule(self.now() + self._period)

    def remove(self, member: Ticking) -> None:
        self._members.pop(id(member), None)
        if not self._members and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self, due: float) -> None:
        self._due = due
        self._timer = self._loop.call_at(due, self._tick)

    def _tick(self) -> None:
        now = self.now()
        lateness = max(0.0, now - self._due)
        for member in tuple(self._members.values()):
            try:
                member.tick(now, lateness)
            except Exception:
                # An error in the audio of one call must not end other calls.
                log.exception("carrier_tick_failed")
                self.remove(member)
                member.fail("the audio of the call raised an error")
        if self._members:
            # The next tick is a whole number of periods after the last one: rounding and lateness do not add up.
            missed = int(max(0.0, self.now() - self._due) / self._period)
            self._schedule(self._due + (missed + 1) * self._period)
