"""A call leg over the page at `/phone`. The socket is web's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from callagent.audio import dtmf_frames
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.carriers.browser.dialect import BrowserDialect
from callagent.carriers.dialect import DigitReceived, MarkReached, MediaReceived, StreamEvent, StreamStopped
from callagent.carriers.frame_clock import FrameClock
from callagent.carriers.media import CarrierMedia
from callagent.carriers.media_socket import NORMAL_CLOSURE
from callagent.legs import (
    Bridge,
    CallerHungUp,
    Dial,
    DigitPressed,
    LegEvent,
    LegFailed,
    LegGone,
    Media,
    PartiesJoined,
    SwitchedMedia,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
)
from callagent.log import get_logger

SILENT_SECONDS: Final = 10.0
"""A page sends audio all the time; one that does not is asleep or gone."""

log = get_logger(__name__)


class PageLink(Protocol):
    """The socket of a page. Every method returns at once; failures come back as `BrowserLeg.cut`."""

    def send(self, text: str) -> None: ...

    def close(self, code: int, last_words: str = "") -> None: ...


class BrowserLeg:
    """Implements `legs.leg.CallLeg`; the methods below the line are for the server's HTTP side."""

    def __init__(self, info: CallInfo, link: PageLink, clock: FrameClock, dial: Dial | None = None) -> None:
        """`dial` calls the target of a transfer; None: nobody can be called."""
        self.info = info
        self.closed = False
        self._link = link
        self._dial = dial
        self._bridge: Bridge | None = None
        self._clock = clock
        self._dialect = BrowserDialect()
        self._media = CarrierMedia(clock.now)
        self._on_event: Callable[[LegEvent], None] | None = None
        self._early: list[LegEvent] = []
        self._heard_at = clock.now()
        clock.add(self)

    def listen(self, on_event: Callable[[LegEvent], None]) -> None:
        self._on_event = on_event
        early, self._early = self._early, []
        for event in early:
            on_event(event)

    def ring(self) -> None:
        self.tell("ringing")

    async def answer(self) -> Media:
        if self.closed:
            raise LegGone("the caller has hung up")
        self._media.attach(self._dialect, self._link.send)
        self.tell("answered", call=self.info.call_id)
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if self.closed:
            return
        self._close(reason)

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        """A page cannot be sent anywhere else: whatever the method, we call the target and stay in between."""
        if self.closed:
            return TransferOutcome(TransferStatus.CALLER_GONE, "the caller is not there")
        if target.method == "bye":
            return TransferOutcome(TransferStatus.FAILED, "nobody takes a browser over after a BYE")
        if self._dial is None or audio is None:
            return TransferOutcome(TransferStatus.FAILED, "a browser's call is bridged, and this server calls nobody")
        if self._bridge is not None:
            return TransferOutcome(TransferStatus.FAILED, "a transfer is under way")
        self._bridge = Bridge(target, audio, self.send_digits, lambda: self._emit(PartiesJoined()))
        try:
            return await self._bridge.run(self._dial)
        finally:
            self._bridge = None

    async def send_digits(self, digits: str) -> None:
        """As in-band tones; returns when they are sent. Raises `ValueError`, `LegGone`."""
        if self.closed:
            raise LegGone("the call is over")
        await self._media.play_tones(tuple(dtmf_frames(digits)))

    def expect_media(self, expected: bool) -> None:
        """Nothing: this wire carries media also of a silent peer."""

    # ---- for the server's HTTP side

    def take(self, text: str) -> None:
        """A message of the page. Raises `DialectError`."""
        event = self._dialect.receive(text)
        if event is not None:
            self._receive(event)
        elif (answer := self._dialect.reply()) is not None:
            self._link.send(answer)

    def heard_from(self) -> None:
        """Anything came through the socket: it is alive."""
        self._heard_at = self._clock.now()

    def tell(self, event: str, **data: object) -> None:
        """Something for the page to show."""
        if not self.closed:
            self._link.send(self._dialect.tell(event, **data))

    def cut(self) -> None:
        """The socket has ended."""
        if not self.closed:
            self._close(EndReason.CALLER_HANGUP)
            self._emit(CallerHungUp(EndReason.CALLER_HANGUP))

    def fail(self, detail: str, reason: EndReason = EndReason.ERROR) -> None:
        """The leg cannot go on."""
        if not self.closed:
            self._close(reason)
            self._emit(LegFailed(reason, detail))

    def tick(self, now: float, lateness: float) -> None:
        if now - self._heard_at >= SILENT_SECONDS:
            self.fail(f"nothing came from the page for {SILENT_SECONDS:.0f} s", EndReason.MEDIA_TIMEOUT)
        else:
            self._media.tick(now, lateness)

    def _receive(self, event: StreamEvent) -> None:
        match event:
            case MediaReceived(payload):
                self._media.receive(payload, self._clock.now())
            case MarkReached(name):
                self._media.mark_reached(name, self._clock.now())
            case DigitReceived(digit) if self._bridge is not None and self._bridge.joined:
                self._bridge.pressed(digit)
            case DigitReceived(digit):
                self._emit(DigitPressed(digit))
            case StreamStopped():
                self.cut()

    def _close(self, reason: EndReason) -> None:
        log.debug("browser_leg_closed", call=self.info.call_id)
        self.closed = True
        self._clock.remove(self)
        self._media.close()
        self._link.close(NORMAL_CLOSURE, self._dialect.tell("ended", reason=reason.value))

    def _emit(self, event: LegEvent) -> None:
        if self._on_event:
            self._on_event(event)
        else:
            self._early.append(event)
