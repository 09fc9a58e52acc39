"""A call leg over a carrier's media stream. The socket, the webhooks and the tokens are web's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol

from callagent.audio import dtmf_frames
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.carriers.dialect import DigitReceived, MarkReached, MediaReceived, StreamEvent, StreamStopped
from callagent.carriers.frame_clock import FrameClock
from callagent.carriers.media import CarrierMedia
from callagent.carriers.media_socket import NORMAL_CLOSURE
from callagent.carriers.twilio.dialect import TwilioDialect
from callagent.carriers.twilio.rest import CallEnded, ControlFailed, TwilioControl
from callagent.carriers.twilio.transfer import CarrierUrls, instructions, report_seconds, room_of
from callagent.carriers.twilio.twiml import HANG_UP, NOTHING, greet
from callagent.legs import (
    CallerHungUp,
    DigitPressed,
    LegFailed,
    LegGone,
    Listeners,
    Media,
    SwitchedMedia,
    TransferOutcome,
    TransferStatus,
    TransferTarget,
)
from callagent.log import get_logger

CUT_SECONDS: Final = 1.5
"""How long a call outlives its socket unless the carrier asks us what to do next."""
RETURN_SECONDS: Final = 10.0
"""How long it outlives it when the carrier was told to open another one."""
PING_SECONDS: Final = 10.0
SILENT_SECONDS: Final = 20.0

log = get_logger(__name__)


class CarrierLink(Protocol):
    """The socket of a media stream. Every method returns at once; failures come back as `CarrierLeg.cut`."""

    def send(self, text: str) -> None: ...

    def ping(self) -> None: ...

    def close(self, code: int) -> None: ...


class LegState(Enum):
    WAITING = "waiting"
    """For a media stream, until a deadline."""
    STREAMING = "streaming"
    TRANSFERRING = "transferring"
    CLOSED = "closed"


class LegInput(Enum):
    ATTACHED = "attached"
    STOPPED = "stopped"
    CUT = "cut"
    EXPIRED = "expired"
    TRANSFER = "transfer"
    KEPT = "kept"
    """The carrier did not take the redirect."""
    RETURNED = "returned"
    """Nobody answered the transfer: the carrier brings the caller back."""
    TAKEN_OVER = "taken over"
    CLOSE = "close"


TRANSITIONS: Final[Mapping[tuple[LegState, LegInput], LegState]] = {
    (LegState.WAITING, LegInput.ATTACHED): LegState.STREAMING,
    (LegState.WAITING, LegInput.EXPIRED): LegState.CLOSED,
    (LegState.WAITING, LegInput.CLOSE): LegState.CLOSED,
    (LegState.STREAMING, LegInput.STOPPED): LegState.CLOSED,
    (LegState.STREAMING, LegInput.CUT): LegState.WAITING,
    (LegState.STREAMING, LegInput.TRANSFER): LegState.TRANSFERRING,
    (LegState.STREAMING, LegInput.CLOSE): LegState.CLOSED,
    (LegState.TRANSFERRING, LegInput.STOPPED): LegState.TRANSFERRING,
    (LegState.TRANSFERRING, LegInput.CUT): LegState.TRANSFERRING,
    (LegState.TRANSFERRING, LegInput.KEPT): LegState.STREAMING,
    (LegState.TRANSFERRING, LegInput.RETURNED): LegState.WAITING,
    (LegState.TRANSFERRING, LegInput.TAKEN_OVER): LegState.CLOSED,
    (LegState.TRANSFERRING, LegInput.CLOSE): LegState.CLOSED,
}


class CarrierLeg:
    """Implements `legs.leg.CallLeg`; the methods below the line are for the server's HTTP side."""

    def __init__(
        self, info: CallInfo, control: TwilioControl, clock: FrameClock, urls: CarrierUrls, *, over_sip: bool = False
    ) -> None:
        self.info = info
        self.state = LegState.WAITING
        self.on_closed: Callable[[], None] = lambda: None
        self.bring: Callable[[], str] = lambda: HANG_UP
        """TwiML that brings the caller back to us."""
        self._control = control
        self._clock = clock
        self._urls = urls
        self._over_sip = over_sip
        self._target: TransferTarget | None = None
        self._media = CarrierMedia(clock.now)
        self._link: CarrierLink | None = None
        self._listeners = Listeners()
        self.listen = self._listeners.listen
        self._deadline = clock.now() + RETURN_SECONDS
        self._heard_at = self._pinged_at = clock.now()
        self._outcome: asyncio.Future[TransferOutcome] | None = None
        self._changed = asyncio.Event()
        clock.add(self)

    def ring(self) -> None:
        """The carrier answered before it opened the stream."""

    async def answer(self) -> Media:
        if self.closed:
            raise LegGone("the caller has hung up")
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if self.closed:
            return
        link = self._link
        self._advance(LegInput.CLOSE)
        try:
            await self._control.hang_up(self.info.peer_call_id or "")
        except CallEnded:
            pass
        except ControlFailed as error:
            # The closing socket makes the carrier ask us what to do next, and the answer is to hang up.
            log.warning("carrier_hang_up_failed", call=self.info.call_id, detail=str(error))
        finally:
            if link:
                link.close(NORMAL_CLOSURE)

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        if self.state is not LegState.STREAMING:
            return TransferOutcome(TransferStatus.CALLER_GONE, "the caller is not there")
        if target.method == "bye":
            await self.hang_up(EndReason.HANDOFF)
            return TransferOutcome(TransferStatus.SUCCEEDED, "hung up")
        try:
            twiml = instructions(target, self.info, self._urls, over_sip=self._over_sip)
        except ValueError as error:
            return TransferOutcome(TransferStatus.FAILED, str(error))
        self._target, self._outcome = target, asyncio.get_running_loop().create_future()
        self._advance(LegInput.TRANSFER)
        try:
            await self._control.redirect(self.info.peer_call_id or "", twiml)
        except CallEnded as error:
            self.transfer_ended(TransferOutcome(TransferStatus.CALLER_GONE, str(error)))
        except ControlFailed as error:
            return self._redirect_failed(str(error))
        return await (self._meet(target) if target.method == "attended" else self._dialled(target))

    async def _dialled(self, target: TransferTarget) -> TransferOutcome:
        assert self._outcome is not None, "a transfer is under way"
        await asyncio.wait({self._outcome}, timeout=report_seconds(target))
        # Nobody told of a refusal: the caller is with the target, and no longer with us.
        self.transfer_ended(TransferOutcome(TransferStatus.SUCCEEDED, "the carrier took the redirect"))
        return await self._returned(self._outcome.result())

    async def _meet(self, target: TransferTarget) -> TransferOutcome:
        """The caller waits in a conference that the target is called into; who does not come does not keep it there."""
        assert self._outcome is not None, "a transfer is under way"
        caller, ours = target.caller or self.info.callee or "", self.info.peer_call_id or ""
        report = f"{self._urls.report}?call={ours}"
        try:
            await self._control.invite(room_of(self.info), caller, target.uri, round(target.ring_seconds), report)
        except ControlFailed as error:
            self.transfer_ended(TransferOutcome(TransferStatus.FAILED, str(error)))
        await asyncio.wait({self._outcome}, timeout=report_seconds(target))
        self.transfer_ended(TransferOutcome(TransferStatus.NO_ANSWER, "nobody told of an answer"))
        outcome = self._outcome.result()
        if self.state is LegState.WAITING:
            try:
                await self._control.redirect(ours, self.bring())
            except ControlFailed as error:
                self.fail(str(error))
        return await self._returned(outcome)

    async def send_digits(self, digits: str) -> None:
        """As in-band tones; returns when they are sent. Raises `ValueError`, `LegGone`."""
        if self.closed:
            raise LegGone("the call is over")
        await self._media.play_tones(tuple(dtmf_frames(digits)))

    def expect_media(self, expected: bool) -> None:
        """Nothing: this wire carries media also of a silent peer."""

    # ---- for the server's HTTP side

    @property
    def closed(self) -> bool:
        return self.state is LegState.CLOSED

    def attach(self, link: CarrierLink, dialect: TwilioDialect) -> None:
        """A media stream for this call has started and proved who it is. Raises `LegGone`."""
        if (self.state, LegInput.ATTACHED) not in TRANSITIONS:
            raise LegGone(f"the leg is {self.state.value}")
        self._link = link
        self._media.attach(dialect, link.send)
        self.heard_from()
        self._advance(LegInput.ATTACHED)

    def listens_to(self, link: CarrierLink) -> bool:
        return link is self._link

    def heard_from(self) -> None:
        """Anything came through the socket: it is alive."""
        self._heard_at = self._pinged_at = self._clock.now()

    def receive(self, event: StreamEvent, link: CarrierLink) -> None:
        """What the stream says; a stream that was given up is not listened to."""
        if link is not self._link:
            return
        match event:
            case MediaReceived(payload):
                self._media.receive(payload, self._clock.now())
            case MarkReached(name):
                self._media.mark_reached(name, self._clock.now())
            case DigitReceived(digit):
                self._listeners.tell(DigitPressed(digit))
            case StreamStopped():
                self._detach()
                self._advance(LegInput.STOPPED)
                if self.closed:
                    self._listeners.tell(CallerHungUp(EndReason.CALLER_HANGUP))

    def cut(self, link: CarrierLink) -> None:
        """The socket ended without a stop."""
        if link is not self._link:
            return
        self._detach()
        self._deadline = self._clock.now() + CUT_SECONDS
        self._advance(LegInput.CUT)

    async def expect_return(self) -> bool:
        """The carrier asks what to do with a caller whose stream was cut; True: bring it back."""
        try:
            # The question may come in before the end of the socket does.
            async with asyncio.timeout(1.0):
                await self._leave(LegState.STREAMING)
        except TimeoutError:
            return False
        if self.state is not LegState.WAITING:
            return False
        self._deadline = self._clock.now() + RETURN_SECONDS
        return True

    def greeting(self, key: str | None, url: str) -> str:
        """What the dialled person hears, as TwiML; `key` is what they pressed, None before they were asked."""
        target = self._target
        if target is None or self.state is not LegState.TRANSFERRING:
            return HANG_UP
        if key is None:
            return greet(target.whisper, target.confirm, url)
        if key != target.confirm:
            return HANG_UP
        self.transfer_ended(TransferOutcome(TransferStatus.SUCCEEDED, "confirmed"))
        return NOTHING

    def dial_ended(self, outcome: TransferOutcome) -> None:
        """The carrier's dial is over; without the key that was asked for, an answer was none."""
        untaken = self._target is not None and self._target.confirm and outcome.status is TransferStatus.SUCCEEDED
        self.transfer_ended(TransferOutcome(TransferStatus.NO_ANSWER, "not confirmed") if untaken else outcome)

    def transfer_ended(self, outcome: TransferOutcome) -> None:
        """The carrier reports how the transfer went."""
        if self.state is not LegState.TRANSFERRING or self._outcome is None or self._outcome.done():
            return
        self._outcome.set_result(outcome)
        link = self._link
        self._detach()
        if link:
            link.close(NORMAL_CLOSURE)
        if outcome.status is TransferStatus.SUCCEEDED:
            self._advance(LegInput.TAKEN_OVER)
        elif outcome.status is TransferStatus.CALLER_GONE:
            self._advance(LegInput.CLOSE)
            self._listeners.tell(CallerHungUp(EndReason.CALLER_HANGUP))
        else:
            self._deadline = self._clock.now() + RETURN_SECONDS
            self._advance(LegInput.RETURNED)

    def tick(self, now: float, lateness: float) -> None:
        if self.state is LegState.WAITING and now >= self._deadline:
            self._advance(LegInput.EXPIRED)
            self._listeners.tell(CallerHungUp(EndReason.CALLER_HANGUP))
        elif self._link is not None:
            self._media.tick(now, lateness)
            self._watch(now)

    def fail(self, detail: str, reason: EndReason = EndReason.ERROR) -> None:
        """The leg cannot go on."""
        if self.closed:
            return
        link = self._link
        self._advance(LegInput.CLOSE)
        if link:
            link.close(NORMAL_CLOSURE)
        self._listeners.tell(LegFailed(reason, detail))

    def _watch(self, now: float) -> None:
        if now - self._heard_at >= SILENT_SECONDS:
            self.fail(f"nothing came from the carrier for {SILENT_SECONDS:.0f} s", EndReason.MEDIA_TIMEOUT)
        elif now - self._pinged_at >= PING_SECONDS and self._link:
            self._pinged_at = now
            self._link.ping()

    def _redirect_failed(self, detail: str) -> TransferOutcome:
        if self.state is LegState.TRANSFERRING:
            self._advance(LegInput.KEPT)
            if self._link is None:
                # The stream ended meanwhile.
                self._deadline = self._clock.now() + CUT_SECONDS
                self._advance(LegInput.CUT)
        return TransferOutcome(TransferStatus.FAILED, detail)

    async def _returned(self, outcome: TransferOutcome) -> TransferOutcome:
        """The outcome, once the caller is back with us or gone."""
        await self._leave(LegState.WAITING)
        gone = self.closed and outcome.status is not TransferStatus.SUCCEEDED
        return TransferOutcome(TransferStatus.CALLER_GONE, outcome.detail) if gone else outcome

    async def _leave(self, state: LegState) -> None:
        while self.state is state:
            self._changed.clear()
            await self._changed.wait()

    def _detach(self) -> None:
        self._link = None
        self._media.detach()

    def _advance(self, happened: LegInput) -> None:
        after = TRANSITIONS[self.state, happened]
        log.debug("carrier_leg", call=self.info.call_id, before=self.state.value, after=after.value)
        self.state = after
        self._changed.set()
        if after is not LegState.CLOSED:
            return
        self._link = None
        self._media.close()
        self._clock.remove(self)
        if self._outcome and not self._outcome.done():
            self._outcome.set_result(TransferOutcome(TransferStatus.CALLER_GONE, "the call is over"))
        self.on_closed()
