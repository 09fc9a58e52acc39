"""A call leg over a carrier's media stream: its states, its transfer, and what happens when the stream ends.

A stream may end while the caller is still there: the carrier redirects the call for a transfer, or a connection is
lost. The leg then waits for the carrier to open another stream for the same call, and the call goes on over that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, Protocol

from callagent import legs
from callagent.audio import dtmf_frames
from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.carriers import protocol
from callagent.carriers.media import CarrierMedia, FrameClock
from callagent.log import get_logger

CUT_SECONDS: Final = 1.5
"""Time for which a call outlives a lost socket, unless the carrier asks us what to do next."""
RETURN_SECONDS: Final = 10.0
"""Time for which a call outlives its socket when the carrier was told to open another one."""
ASK_SECONDS: Final = 1.0
"""Time for the end of the socket to arrive after the carrier's question what to do next."""
PING_SECONDS: Final = 10.0
"""A socket without messages for so long is pinged."""
SILENT_SECONDS: Final = 20.0
"""A socket without messages for so long is dead: carriers send audio all the time."""
REPORT_SECONDS: Final = 10.0
"""Time for the carrier's report of a transfer, beyond the time of ringing."""
CONFIRM_SECONDS: Final = 30.0
"""Further time where a person has to hear a text and press a key to take the call."""

log = get_logger(__name__)


class CarrierLink(Protocol):
    """The socket of a media stream. Every method returns at once; failures come back as `CarrierLeg.cut`."""

    def send(self, message: protocol.Message) -> None: ...

    def ping(self) -> None: ...

    def close(self, code: int) -> None: ...


class LegState(Enum):
    """What connects the leg with its caller."""

    WAITING = "waiting"
    """Nothing: a media stream is awaited, until a deadline."""
    STREAMING = "streaming"
    TRANSFERRING = "transferring"
    CLOSED = "closed"


class LegInput(Enum):
    """What may happen to the leg."""

    ATTACHED = "attached"
    """A media stream of the call has started."""
    STOPPED = "stopped"
    """The carrier ended the stream: the caller has hung up, or the call was redirected."""
    CUT = "cut"
    """The socket ended without a stop."""
    EXPIRED = "expired"
    """No stream came in time."""
    TRANSFER = "transfer"
    """The carrier is asked to give the caller away."""
    KEPT = "kept"
    """The carrier did not accept the transfer: the caller stays on the stream."""
    RETURNED = "returned"
    """Nobody answered the transfer: the carrier brings the caller back."""
    TAKEN_OVER = "taken over"
    """The target has the caller."""
    CLOSE = "close"
    """We end the call, or it cannot go on."""


# (state, input) -> state. A stream may end during a transfer: the outcome decides what becomes of the caller.
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
    """Implements `legs.CallLeg`; the methods below the line are for the webhooks and the socket of the carrier."""

    def __init__(self, info: CallInfo, control: protocol.CallControl, clock: FrameClock) -> None:
        self.info = info
        self.control = control
        self.state = LegState.WAITING
        self.on_closed: Callable[[], None] = lambda: None
        self._clock = clock
        self._target: legs.TransferTarget | None = None
        self._media = CarrierMedia(clock.now)
        self._link: CarrierLink | None = None
        self._events = legs.LegEvents()
        self.listen = self._events.listen
        self._deadline = clock.now() + RETURN_SECONDS
        self._heard_at = self._pinged_at = clock.now()
        self._outcome: asyncio.Future[legs.TransferOutcome] | None = None
        self._changed = asyncio.Event()
        clock.add(self)

    def ring(self) -> None:
        """Do nothing: the carrier answered before it opened the stream."""

    async def answer(self) -> legs.Media:
        if self.closed:
            raise legs.LegGone("the caller has hung up")
        return self._media

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        if self.closed:
            return
        # The leg closes before the carrier is told, so the carrier's own report of the end finds no leg any more.
        link = self._link
        self._advance(LegInput.CLOSE)
        try:
            await self.control.hang_up()
        except protocol.ControlFailed as error:
            # The closing socket makes the carrier ask us what to do next, and the answer is to hang up.
            log.warning("carrier_hang_up_failed", call=self.info.call_id, detail=str(error))
        finally:
            if link:
                link.close(protocol.NORMAL_CLOSURE)

    async def transfer(
        self, target: legs.TransferTarget, audio: legs.SwitchedMedia | None = None
    ) -> legs.TransferOutcome:
        if self.state is not LegState.STREAMING:
            return legs.TransferOutcome(legs.TransferStatus.CALLER_GONE, "the caller is not there")
        if target.method == "bye":
            await self.hang_up(EndReason.HANDOFF)
            return legs.TransferOutcome(legs.TransferStatus.SUCCEEDED, "hung up")
        # The state changes before the carrier is asked, so that its end of the stream is not taken for a hang-up.
        self._target, self._outcome = target, asyncio.get_running_loop().create_future()
        self._advance(LegInput.TRANSFER)
        try:
            await self.control.transfer(target)
        except protocol.CallEnded as error:
            self.end_transfer(legs.TransferOutcome(legs.TransferStatus.CALLER_GONE, str(error)))
        except protocol.TargetNotCalled as error:
            self.end_transfer(legs.TransferOutcome(legs.TransferStatus.FAILED, str(error)))
        except (protocol.ControlFailed, ValueError) as error:
            return self._keep_caller(str(error))
        return await self._await_report(target, self._outcome)

    async def _await_report(
        self, target: legs.TransferTarget, outcome: asyncio.Future[legs.TransferOutcome]
    ) -> legs.TransferOutcome:
        """Wait until the carrier has reported, or its time is up, and until a caller who was refused is back."""
        await asyncio.wait({outcome}, timeout=report_seconds(target))
        # Without a report in time: an attended transfer has the caller waiting, so nobody has answered; any other one
        # has sent the caller away, so they are with the target.
        if target.method == "attended":
            self.end_transfer(legs.TransferOutcome(legs.TransferStatus.NO_ANSWER, "the carrier reported no answer"))
        else:
            self.end_transfer(legs.TransferOutcome(legs.TransferStatus.SUCCEEDED, "the carrier accepted the redirect"))
        # The target has not taken the caller: the carrier is to open a media stream for them again.
        if self.state is LegState.WAITING:
            try:
                await self.control.take_back()
            except protocol.ControlFailed as error:
                self.fail(str(error))
        await self._wait_to_leave(LegState.WAITING)
        ended = outcome.result()
        gone = self.closed and ended.status is not legs.TransferStatus.SUCCEEDED
        return legs.TransferOutcome(legs.TransferStatus.CALLER_GONE, ended.detail) if gone else ended

    async def send_digits(self, digits: str) -> None:
        """Send digits as tones in the audio; return when they are sent. Raises `ValueError`, `LegGone`."""
        if self.closed:
            raise legs.LegGone("the call is over")
        await self._media.play_tones(tuple(dtmf_frames(digits)))

    def expect_media(self, expected: bool) -> None:
        """Do nothing: carriers send the audio of silent callers as well."""

    # ---- for the carrier's webhooks and socket

    @property
    def closed(self) -> bool:
        return self.state is LegState.CLOSED

    def attach(self, link: CarrierLink, dialect: protocol.CarrierDialect) -> None:
        """Use a media stream that has started and proved to be of this call. Raises `LegGone`."""
        if (self.state, LegInput.ATTACHED) not in TRANSITIONS:
            raise legs.LegGone(f"the leg is {self.state.value}")
        self._link = link
        self._media.attach(dialect, link.send)
        self.note_life()
        self._advance(LegInput.ATTACHED)

    def listens_to(self, link: CarrierLink) -> bool:
        return link is self._link

    def note_life(self) -> None:
        """Note that something came through the socket, which puts off the deadline for silent ones."""
        self._heard_at = self._pinged_at = self._clock.now()

    def receive(self, event: protocol.StreamEvent, link: CarrierLink) -> None:
        """Handle an event of a stream; events of a stream that was given up are ignored."""
        if link is not self._link:
            return
        match event:
            case protocol.MediaReceived(payload):
                self._media.receive(payload, self._clock.now())
            case protocol.MarkReached(name):
                self._media.reach_mark(name, self._clock.now())
            case protocol.PlaybackReported(seconds):
                self._media.report_position(seconds, self._clock.now())
            case protocol.DigitReceived(digit):
                self._events.emit(legs.DigitPressed(digit))
            case protocol.ReplyDue(message):
                link.send(message)
            case protocol.StreamStopped():
                self._detach()
                self._advance(LegInput.STOPPED)
                if self.closed:
                    self._events.emit(legs.CallerHungUp(EndReason.CALLER_HANGUP))

    def cut(self, link: CarrierLink) -> None:
        """Note that the socket has ended without a stop."""
        if link is not self._link:
            return
        self._detach()
        self._deadline = self._clock.now() + CUT_SECONDS
        self._advance(LegInput.CUT)

    async def expect_return(self) -> bool:
        """Return whether the caller's stream was cut and is to be opened again. The carrier asks what to do next."""
        try:
            # The question may come in before the end of the socket does.
            async with asyncio.timeout(ASK_SECONDS):
                await self._wait_to_leave(LegState.STREAMING)
        except TimeoutError:
            return False
        if self.state is not LegState.WAITING:
            return False
        self._deadline = self._clock.now() + RETURN_SECONDS
        return True

    def answer_target(self, key: str | None) -> protocol.Answer:
        """Return what the dialled person hears; `key` is what they pressed, None before they were asked."""
        target = self._target
        if target is None or self.state is not LegState.TRANSFERRING:
            return protocol.Verdict.HANG_UP
        if key is None:
            return protocol.Greet(target.whisper, target.confirm)
        if key != target.confirm:
            return protocol.Verdict.HANG_UP
        self.end_transfer(legs.TransferOutcome(legs.TransferStatus.SUCCEEDED, "confirmed"))
        return protocol.Verdict.CARRY_ON

    def end_dial(self, outcome: legs.TransferOutcome) -> None:
        """Handle the carrier's report that its dial is over.

        Where the target had to press a key, being connected alone means that a machine, or nobody, took the call.
        """
        if self._target is not None and self._target.confirm and outcome.status is legs.TransferStatus.SUCCEEDED:
            outcome = legs.TransferOutcome(legs.TransferStatus.NO_ANSWER, "not confirmed")
        self.end_transfer(outcome)

    def end_transfer(self, outcome: legs.TransferOutcome) -> None:
        """Handle the outcome of the transfer that is under way; the first one counts."""
        if self.state is not LegState.TRANSFERRING or self._outcome is None or self._outcome.done():
            return
        # The call leaves the present stream, if there still is one; a caller who comes back does so on another one.
        self._outcome.set_result(outcome)
        link = self._link
        self._detach()
        if link:
            link.close(protocol.NORMAL_CLOSURE)
        if outcome.status is legs.TransferStatus.SUCCEEDED:
            self._advance(LegInput.TAKEN_OVER)
        elif outcome.status is legs.TransferStatus.CALLER_GONE:
            self._advance(LegInput.CLOSE)
            self._events.emit(legs.CallerHungUp(EndReason.CALLER_HANGUP))
        else:
            self._deadline = self._clock.now() + RETURN_SECONDS
            self._advance(LegInput.RETURNED)

    def tick(self, now: float, lateness: float) -> None:
        if self.state is LegState.WAITING and now >= self._deadline:
            self._advance(LegInput.EXPIRED)
            self._events.emit(legs.CallerHungUp(EndReason.CALLER_HANGUP))
        elif self._link is not None:
            self._media.tick(now, lateness)
            self._watch(now)

    def fail(self, detail: str, reason: EndReason = EndReason.ERROR) -> None:
        """Close a leg that cannot go on."""
        if self.closed:
            return
        link = self._link
        self._advance(LegInput.CLOSE)
        if link:
            link.close(protocol.NORMAL_CLOSURE)
        self._events.emit(legs.LegFailed(reason, detail))

    def _watch(self, now: float) -> None:
        if now - self._heard_at >= SILENT_SECONDS:
            self.fail(f"nothing came from the carrier for {SILENT_SECONDS:.0f} s", EndReason.MEDIA_TIMEOUT)
        elif now - self._pinged_at >= PING_SECONDS and self._link:
            self._pinged_at = now
            self._link.ping()

    def _keep_caller(self, detail: str) -> legs.TransferOutcome:
        """Go on with the caller after a transfer that the carrier did not accept."""
        if self.state is LegState.TRANSFERRING:
            self._advance(LegInput.KEPT)
            if self._link is None:
                # The stream ended meanwhile.
                self._deadline = self._clock.now() + CUT_SECONDS
                self._advance(LegInput.CUT)
        return legs.TransferOutcome(legs.TransferStatus.FAILED, detail)

    async def _wait_to_leave(self, state: LegState) -> None:
        """Wait until the leg is in another state."""
        while self.state is state:
            self._changed.clear()
            await self._changed.wait()

    def _detach(self) -> None:
        self._link = None
        self._media.detach()

    def _advance(self, leg_input: LegInput) -> None:
        after = TRANSITIONS[self.state, leg_input]
        log.debug("carrier_leg_changed", call=self.info.call_id, before=self.state.value, after=after.value)
        self.state = after
        self._changed.set()
        if after is not LegState.CLOSED:
            return
        self._link = None
        self._media.close()
        self._clock.remove(self)
        if self._outcome and not self._outcome.done():
            self._outcome.set_result(legs.TransferOutcome(legs.TransferStatus.CALLER_GONE, "the call is over"))
        self.on_closed()


def report_seconds(target: legs.TransferTarget) -> float:
    """Return how long the carrier's report of a transfer is awaited."""
    return target.ring_seconds + REPORT_SECONDS + (CONFIRM_SECONDS if target.confirm else 0.0)
