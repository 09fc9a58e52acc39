"""A call leg over the page at `/phone`; its socket is served in `routes.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Protocol

from callagent.audio import dtmf_frames
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.carriers.browser.dialect import BrowserDialect
from callagent.carriers.dialect import (
    DigitReceived,
    MarkReached,
    MediaReceived,
    Message,
    ReplyDue,
    StreamEvent,
    StreamStopped,
)
from callagent.carriers.frame_clock import FrameClock
from callagent.carriers.media import CarrierMedia
from callagent.carriers.media_socket import NORMAL_CLOSURE
from callagent.legs import (
    Bridge,
    CallerHungUp,
    Dial,
    DigitPressed,
    LegFailed,
    LegGone,
    Listeners,
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

    def send(self, message: Message) -> None: ...

    def close(self, code: int, last_words: str = "") -> None: ...


class BrowserLeg:
    """Implements `legs.CallLeg`; the methods below the line are for the page's socket."""

    def __init__(self, info: CallInfo, link: PageLink, clock: FrameClock, dial: Dial | None = None) -> None:
        """`dial` calls the target of a transfer; with None nobody can be called."""
        self.info = info
        self.closed = False
        self._link = link
        self._dial = dial
        self._bridge: Bridge | None = None
        self._clock = clock
        self._dialect = BrowserDialect()
        self._media = CarrierMedia(clock.now)
        self._listeners = Listeners()
        self.listen = self._listeners.listen
        self._heard_at = clock.now()
        clock.add(self)

    def ring(self) -> None:
        self.notify_page("ringing")

    async def answer(self) -> Media:
        if self.closed:
            raise LegGone("the caller has hung up")
        self._media.attach(self._dialect, self._link.send)
        self.notify_page("answered", call=self.info.call_id)
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if self.closed:
            return
        self._close(reason)

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        """Call the target and stay in between, whatever the method: a page cannot be sent anywhere else."""
        if self.closed:
            return TransferOutcome(TransferStatus.CALLER_GONE, "the caller is not there")
        if target.method == "bye":
            return TransferOutcome(TransferStatus.FAILED, "nobody takes a browser over after a BYE")
        if self._dial is None or audio is None:
            return TransferOutcome(TransferStatus.FAILED, "a browser's call is bridged, and this server calls nobody")
        if self._bridge is not None:
            return TransferOutcome(TransferStatus.FAILED, "a transfer is under way")
        self._bridge = Bridge(target, audio, self.send_digits, lambda: self._listeners.tell(PartiesJoined()))
        try:
            return await self._bridge.run(self._dial)
        finally:
            self._bridge = None

    async def send_digits(self, digits: str) -> None:
        """Send digits as tones in the audio; return when they are sent. Raises `ValueError`, `LegGone`."""
        if self.closed:
            raise LegGone("the call is over")
        await self._media.play_tones(tuple(dtmf_frames(digits)))

    def expect_media(self, expected: bool) -> None:
        """Do nothing: this wire carries media also of a silent peer."""

    # ---- for the page's socket

    def receive_message(self, message: Message) -> None:
        """Take a message of the page. Raises `DialectError`."""
        for event in self._dialect.receive_message(message):
            self._receive(event)

    def note_life(self) -> None:
        """Put the deadline of a silent page off: something came through its socket."""
        self._heard_at = self._clock.now()

    def notify_page(self, event: str, **data: object) -> None:
        """Send the page something to show."""
        if not self.closed:
            self._link.send(self._dialect.encode_notice(event, **data))

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
        if now - self._heard_at >= SILENT_SECONDS:
            self.fail(f"nothing came from the page for {SILENT_SECONDS:.0f} s", EndReason.MEDIA_TIMEOUT)
        else:
            self._media.tick(now, lateness)

    def _receive(self, event: StreamEvent) -> None:
        match event:
            case MediaReceived(payload):
                self._media.receive(payload, self._clock.now())
            case MarkReached(name):
                self._media.reach_mark(name, self._clock.now())
            case DigitReceived(digit) if self._bridge is not None and self._bridge.joined:
                self._bridge.forward_digit(digit)
            case DigitReceived(digit):
                self._listeners.tell(DigitPressed(digit))
            case ReplyDue(message):
                self._link.send(message)
            case StreamStopped():
                self.cut()

    def _close(self, reason: EndReason) -> None:
        log.debug("browser_leg_closed", call=self.info.call_id)
        self.closed = True
        self._clock.remove(self)
        self._media.close()
        self._link.close(NORMAL_CLOSURE, self._dialect.encode_notice("ended", reason=reason.value))
