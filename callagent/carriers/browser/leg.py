"""A call leg over our own page at `/phone`, and the messages of its socket, which is served in `routes.py`.

Messages are JSON text with μ-law audio in base64. The page is a carrier like any other for the shared code, except that
it has no commands outside of its socket: nobody but us can transfer its caller, so the target is always called by us
and bridged.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import msgspec

from callagent import legs
from callagent.audio import DIGITS, dtmf_frames
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.carriers import protocol
from callagent.carriers.media import CarrierMedia, FrameClock
from callagent.log import get_logger

SILENT_SECONDS: Final = 10.0
"""A page without messages for so long is asleep or gone: it sends audio all the time."""

log = get_logger(__name__)


class PageLink(Protocol):
    """The socket of a page. Every method returns at once; failures come back as `BrowserLeg.cut`."""

    def send(self, message: protocol.Message) -> None: ...

    def close(self, code: int, last_words: str = "") -> None: ...


class BrowserLeg:
    """Implements `legs.CallLeg`; the methods below the line are for the socket of the page."""

    def __init__(self, info: CallInfo, link: PageLink, clock: FrameClock, dial: legs.Dial | None = None) -> None:
        """`dial` calls the target of a transfer; with None nobody can be called."""
        self.info = info
        self.closed = False
        self._link = link
        self._dial = dial
        self._bridge: legs.Bridge | None = None
        self._clock = clock
        self._dialect = BrowserDialect()
        self._media = CarrierMedia(clock.now)
        self._events = legs.LegEvents()
        self.listen = self._events.listen
        self._heard_at = clock.now()
        clock.add(self)

    def ring(self) -> None:
        self.notify_page("ringing")

    async def answer(self) -> legs.Media:
        if self.closed:
            raise legs.LegGone("the caller has hung up")
        self._media.attach(self._dialect, self._link.send)
        self.notify_page("answered", call=self.info.call_id)
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if self.closed:
            return
        self._close(reason)

    async def transfer(
        self, target: legs.TransferTarget, audio: legs.SwitchedMedia | None = None
    ) -> legs.TransferOutcome:
        """Call the target and stay in between, whatever the method: a page cannot be sent anywhere else."""
        if self.closed:
            return legs.TransferOutcome(legs.TransferStatus.CALLER_GONE, "the caller is not there")
        if target.method == "bye":
            return legs.TransferOutcome(legs.TransferStatus.FAILED, "a browser cannot be transferred by BYE")
        if self._dial is None or audio is None:
            return legs.TransferOutcome(
                legs.TransferStatus.FAILED, "a browser's call is transferred over SIP, which is switched off"
            )
        if self._bridge is not None:
            return legs.TransferOutcome(legs.TransferStatus.FAILED, "a transfer is under way")
        # The bridge exists before anybody is called: a second transfer meanwhile finds it and is refused.
        self._bridge = legs.Bridge(target, audio, self.send_digits, lambda: self._events.emit(legs.PartiesJoined()))
        try:
            return await self._bridge.run(self._dial)
        finally:
            self._bridge = None

    async def send_digits(self, digits: str) -> None:
        """Send digits as tones in the audio; return when they are sent. Raises `ValueError`, `LegGone`."""
        if self.closed:
            raise legs.LegGone("the call is over")
        await self._media.play_tones(tuple(dtmf_frames(digits)))

    def expect_media(self, expected: bool) -> None:
        """Do nothing: the page sends the audio of a silent caller as well."""

    # ---- for the page's socket

    def receive_message(self, message: protocol.Message) -> None:
        """Handle a message of the page. Raises `DialectError`."""
        for event in self._dialect.receive_message(message):
            self._receive(event)

    def note_life(self) -> None:
        """Note that something came through the socket, which puts off the deadline for silent pages."""
        self._heard_at = self._clock.now()

    def notify_page(self, event: str, **data: object) -> None:
        """Send the page something to show."""
        if not self.closed:
            self._link.send(self._dialect.encode_notice(event, **data))

    def cut(self) -> None:
        """Note that the socket has ended."""
        if not self.closed:
            self._close(EndReason.CALLER_HANGUP)
            self._events.emit(legs.CallerHungUp(EndReason.CALLER_HANGUP))

    def fail(self, detail: str, reason: EndReason = EndReason.ERROR) -> None:
        """Close a leg that cannot go on."""
        if not self.closed:
            self._close(reason)
            self._events.emit(legs.LegFailed(reason, detail))

    def tick(self, now: float, lateness: float) -> None:
        if now - self._heard_at >= SILENT_SECONDS:
            self.fail(f"nothing came from the page for {SILENT_SECONDS:.0f} s", EndReason.MEDIA_TIMEOUT)
        else:
            self._media.tick(now, lateness)

    def _receive(self, event: protocol.StreamEvent) -> None:
        match event:
            case protocol.MediaReceived(payload):
                self._media.receive(payload, self._clock.now())
            case protocol.MarkReached(name):
                self._media.reach_mark(name, self._clock.now())
            # While the caller talks to a target, keys are the target's: its menus ask for them.
            case protocol.DigitReceived(digit) if self._bridge is not None and self._bridge.is_joined:
                self._bridge.forward_digit(digit)
            case protocol.DigitReceived(digit):
                self._events.emit(legs.DigitPressed(digit))
            case protocol.ReplyDue(message):
                self._link.send(message)
            case protocol.StreamStopped():
                self.cut()

    def _close(self, reason: EndReason) -> None:
        # The leg is marked as closed first, because the link may call back while it is being closed.
        log.debug("browser_leg_closed", call=self.info.call_id)
        self.closed = True
        self._clock.remove(self)
        self._media.close()
        self._link.close(protocol.NORMAL_CLOSURE, self._dialect.encode_notice("ended", reason=reason.value))


_MARK = re.compile(r"[a-z0-9]{1,16}")
MAX_PAYLOAD: Final = 8000
"""Bytes of μ-law in one message: a second of audio."""


class _Fields(msgspec.Struct):
    event: str
    payload: bytes = b""
    name: str = ""
    digit: str = ""
    at: float = 0.0


_decode = msgspec.json.Decoder(_Fields).decode


class BrowserDialect:
    """Implements `CarrierDialect` for one page. The page measures its delay to us by a `ping` with its time in it."""

    inbound = outbound = protocol.PCMU
    ledger = protocol.HeardLedger.MARKS

    def receive_message(self, message: protocol.Message) -> Sequence[protocol.StreamEvent]:
        """Return the event of a message. Raises `DialectError` only."""
        fields = protocol.decode_json(_decode, message)
        match fields.event:
            case "media" if 0 < len(fields.payload) <= MAX_PAYLOAD:
                return (protocol.MediaReceived(fields.payload),)
            case "mark" if _MARK.fullmatch(fields.name):
                return (protocol.MarkReached(fields.name),)
            case "digit" if len(fields.digit) == 1 and fields.digit in DIGITS:
                return (protocol.DigitReceived(fields.digit),)
            case "stop":
                return (protocol.StreamStopped(),)
            case "ping":
                return (protocol.ReplyDue(self.encode_notice("pong", at=fields.at)),)
        raise protocol.DialectError(f"the message '{fields.event[:20]}' is not valid")

    def encode_media(self, payload: bytes) -> Sequence[protocol.Message]:
        return (f'{{"event":"media","payload":"{base64.b64encode(payload).decode("ascii")}"}}',)

    def encode_mark(self, name: str) -> Sequence[protocol.Message]:
        return (f'{{"event":"mark","name":"{name}"}}',)

    def encode_clear(self) -> Sequence[protocol.Message]:
        return ('{"event":"clear"}',)

    def encode_notice(self, event: str, **data: object) -> str:
        """Return a message with anything else that the page shows: that it rings, captions, the end."""
        return msgspec.json.encode({"event": event, **data}).decode()
