"""A call leg over a session with audio: the client is heard at the pace of speech, and we send slightly ahead of it."""

from __future__ import annotations

import audioop
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from callagent.audio import DIGITS, FRAME_BYTES, FRAME_SECONDS
from callagent.call_info import NO_HEADERS, CallInfo, EndReason, MediaStatistics
from callagent.carriers import FrameClock
from callagent.legs import (
    CallerHungUp,
    DigitPressed,
    FrameSink,
    FrameSource,
    LegFailed,
    LegGone,
    Listeners,
    Media,
    SwitchedMedia,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
    WordsWritten,
)
from callagent.log import get_logger

log = get_logger(__name__)


class SessionLink(Protocol):
    """The client's socket. Every method returns at once; failures come back as `SessionLeg.cut`."""

    def send_audio(self, pcm: bytes) -> None:
        """Send 16-bit PCM at the call's rate."""

    def close(self, reason: EndReason) -> None:
        """Tell the client how the call ended, and close the socket."""


class SessionLeg:
    """Implements `legs.CallLeg`; the methods below the line are for the client's socket."""

    def __init__(self, info: CallInfo, link: SessionLink, clock: FrameClock) -> None:
        self.info = info
        self.closed = False
        self._link = link
        self._clock = clock
        self._media = SessionMedia(clock.now, link.send_audio)
        self._listeners = Listeners()
        self.listen = self._listeners.listen
        clock.add(self)

    def ring(self) -> None:
        """Do nothing: a client that has connected hears no ringing."""

    async def answer(self) -> Media:
        if self.closed:
            raise LegGone("the client has gone")
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if not self.closed:
            self._close(reason)

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        """Refuse: the end of its session tells the client where to go, nobody else can send it there."""
        return TransferOutcome(TransferStatus.FAILED, "a session ends, and its client goes on elsewhere")

    async def send_digits(self, digits: str) -> None:
        raise ValueError("a session's client takes no keys")

    def expect_media(self, expected: bool) -> None:
        """Do nothing: silence is part of this wire's media."""

    # ---- for the client's socket

    def receive_audio(self, pcm: bytes) -> None:
        """Take the client's audio, 16-bit PCM at the call's rate. Raises `AudioTooEarly`."""
        if not self.closed:
            self._media.receive(pcm, self._clock.now())

    def press_keys(self, digits: str) -> None:
        """Take keys of the client, one after the other; characters that are no key are left out."""
        for digit in digits:
            if digit in DIGITS:
                self._listeners.tell(DigitPressed(digit))

    def write_text(self, text: str) -> None:
        """Take a text of the client, which is a whole turn."""
        self._listeners.tell(WordsWritten(text))

    def cut(self) -> None:
        """Note that the socket has ended."""
        if not self.closed:
            self._close(EndReason.CALLER_HANGUP)
            self._listeners.tell(CallerHungUp(EndReason.CALLER_HANGUP))

    def fail(self, detail: str, reason: EndReason = EndReason.ERROR) -> None:
        """Close a leg that cannot go on."""
        if not self.closed:
            self._close(reason)
            self._listeners.tell(LegFailed(reason, detail))

    def tick(self, now: float, lateness: float) -> None:
        self._media.tick(now, lateness)

    def _close(self, reason: EndReason) -> None:
        log.debug("session_leg_closed", call=self.info.call_id)
        self.closed = True
        self._clock.remove(self)
        self._media.close()
        self._link.close(reason)


LEAD: Final = 0.06
"""Seconds of audio that the client holds at least while the agent speaks; up to `MESSAGE_FRAMES` more."""
MESSAGE_FRAMES: Final = 5
PAUSE: Final = 0.3
"""Seconds without audio after which the client counts as silent; after a shorter gap its audio goes on where it was."""
BEHIND: Final = 0.2
"""Seconds of waiting audio from which on silent frames are left out, until the client is heard as it speaks."""
MAX_WAITING: Final = 60.0
"""Seconds of audio that a client may be ahead of speech."""
_QUIET: Final = 60
"""Loudness (RMS) up to which a frame counts as silent."""
_SILENCE = bytes(FRAME_BYTES)


class AudioTooEarly(Exception):
    """The client sent more than `MAX_WAITING` seconds of audio ahead of its time."""


class SessionMedia:
    """Implements `legs.Media`; the rest is for its leg. Times are the loop's monotonic seconds."""

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
        """Drop nothing: the client has the audio. It is told of the interruption and drops it itself."""
        return 0.0

    def unheard(self) -> float:
        return round(max(0.0, self._playing_until - self._now()), 6)

    def statistics(self) -> MediaStatistics:
        return replace(self._statistics)

    def close(self) -> None:
        self._sink = self._source = None
        self._received.clear()

    def receive(self, pcm: bytes, now: float) -> None:
        """Keep 16-bit PCM of any length for the ticks to come. Raises `AudioTooEarly`."""
        if len(self._received) + len(pcm) > MAX_WAITING / FRAME_SECONDS * FRAME_BYTES:
            raise AudioTooEarly(f"audio is {MAX_WAITING:.0f} s ahead of its time; send it as it is spoken")
        self._received += pcm
        self._heard_from = now

    def tick(self, now: float, lateness: float) -> None:
        self._deliver_frame(now)
        self._send_frames(now, lateness)

    def _deliver_frame(self, now: float) -> None:
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
            # A client that sends nothing is silent: turns end and silences count all the same.
            self._sink(_SILENCE, now)

    def _is_quiet(self) -> bool:
        return audioop.rms(bytes(self._received[:FRAME_BYTES]), 2) <= _QUIET

    def _send_frames(self, now: float, lateness: float) -> None:
        if self._source is None or self._playing_until > now + LEAD:
            return
        self._statistics.send_lateness_max_ms = max(self._statistics.send_lateness_max_ms, lateness * 1000)
        frames: list[bytes] = []
        # The source may make the leg close itself.
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
