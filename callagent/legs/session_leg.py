"""A call leg over a session of the Session API with audio. The socket, and how audio is written on it, are web's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from callagent.audio import DIGITS
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.legs.carrier_clock import CarrierClock
from callagent.legs.leg import (
    CallerHungUp,
    DigitPressed,
    LegFailed,
    LegGone,
    Listeners,
    Media,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
    WordsWritten,
)
from callagent.legs.session_media import SessionMedia
from callagent.legs.switched_media import SwitchedMedia
from callagent.log import get_logger

log = get_logger(__name__)


class SessionLink(Protocol):
    """The client's socket. Every method returns at once; failures come back as `SessionLeg.cut`."""

    def send_audio(self, pcm: bytes) -> None:
        """16-bit PCM at the call's rate."""

    def close(self, reason: EndReason) -> None:
        """Say how it ended, and goodbye."""


class SessionLeg:
    """Implements `legs.leg.CallLeg`; the methods below the line are for the server's HTTP side."""

    def __init__(self, info: CallInfo, link: SessionLink, clock: CarrierClock) -> None:
        self.info = info
        self.closed = False
        self._link = link
        self._clock = clock
        self._media = SessionMedia(clock.now, link.send_audio)
        self._listeners = Listeners()
        self.listen = self._listeners.listen
        clock.add(self)

    def ring(self) -> None:
        """A client waits for nothing: it has connected."""

    async def answer(self) -> Media:
        if self.closed:
            raise LegGone("the client has gone")
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if not self.closed:
            self._close(reason)

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        """The client is told where to go at the end of its session; nobody else can send it there."""
        return TransferOutcome(TransferStatus.FAILED, "a session ends, and its client goes on elsewhere")

    async def send_digits(self, digits: str) -> None:
        raise ValueError("a session's client takes no keys")

    def expect_media(self, expected: bool) -> None:
        """Nothing: this wire carries media also of a silent peer."""

    # ---- for the server's HTTP side

    def hear(self, pcm: bytes) -> None:
        """The client's audio, 16-bit PCM at the call's rate. Raises `AudioTooEarly`."""
        if not self.closed:
            self._media.receive(pcm, self._clock.now())

    def press(self, digits: str) -> None:
        """Keys of the client's, one after the other; what is no key is left out."""
        for digit in digits:
            if digit in DIGITS:
                self._listeners.tell(DigitPressed(digit))

    def write(self, text: str) -> None:
        """Words of the client's: a whole turn."""
        self._listeners.tell(WordsWritten(text))

    def cut(self) -> None:
        """The socket has ended."""
        if not self.closed:
            self._close(EndReason.CALLER_HANGUP)
            self._listeners.tell(CallerHungUp(EndReason.CALLER_HANGUP))

    def fail(self, detail: str, reason: EndReason = EndReason.ERROR) -> None:
        """The leg cannot go on."""
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
