"""Transfers of a SIP leg's peer to somebody else: by BYE, REFER, attended REFER, or a bridge through us (INVITE)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.legs import leg as leg_contract
from callagent.legs.bridge import Bridge, TargetLeg, wait_for_answer
from callagent.legs.sip.identity import clean, target_uri
from callagent.sip import EndpointCall, TransferProgressed, TransferState


class TransferableLeg(TargetLeg, Protocol):
    """What a transfer uses of a leg: of the one that is transferred, and of the one to the target."""

    info: CallInfo

    @property
    def call(self) -> EndpointCall: ...

    async def confirmed(self) -> bytes:
        """Wait for the peer's answer, or its ACK of ours, and return the body. Raises `LegGone`."""

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None: ...

    def emit(self, event: leg_contract.LegEvent) -> None:
        """Deliver an event to the call of this leg."""


DialTarget = Callable[[TransferableLeg, leg_contract.TransferTarget], Awaitable[TransferableLeg]]
"""Call a target for the peer of a leg. Raises `ValueError`, `OSError` or `LegGone`."""

_OUTCOMES = {
    TransferState.SUCCEEDED: leg_contract.TransferStatus.SUCCEEDED,
    TransferState.REFUSED: leg_contract.TransferStatus.REFUSED,
    TransferState.FAILED: leg_contract.TransferStatus.FAILED,
    TransferState.NO_ANSWER: leg_contract.TransferStatus.NO_ANSWER,
}


class SipTransfer:
    """The transfers of one leg, one at a time.

    The leg is an argument, because it holds this object: a reference back would be a cycle.
    """

    def __init__(self, dial: DialTarget | None) -> None:
        self._dial = dial
        self._progress: asyncio.Future[leg_contract.TransferOutcome] | None = None
        self._bridge: Bridge | None = None
        self._is_running = False

    async def run(
        self, leg: TransferableLeg, target: leg_contract.TransferTarget, audio: leg_contract.SwitchedMedia | None
    ) -> leg_contract.TransferOutcome:
        """Give the peer of `leg` to `target`, and return when the outcome is known. A refusal is an outcome, too."""
        if self._is_running:
            return leg_contract.TransferOutcome(leg_contract.TransferStatus.FAILED, "a transfer is under way")
        self._is_running = True
        try:
            # Our request must not overtake our 200, which creates the peer's dialog; its ACK shows that it came.
            await leg.confirmed()
            return await self._transfer(leg, target, audio)
        except leg_contract.LegGone as gone:
            return leg_contract.TransferOutcome(leg_contract.TransferStatus.CALLER_GONE, str(gone))
        except ValueError as error:
            return leg_contract.failed_by(error)
        finally:
            self._is_running = False
            self._bridge = None

    def report_progress(self, event: TransferProgressed) -> None:
        """Note the progress of our REFER as its NOTIFYs report it (RFC 3515 §2.4.4); a final state is the outcome."""
        if event.state in _OUTCOMES:
            self._settle(
                leg_contract.TransferOutcome(_OUTCOMES[event.state], clean(f"{event.status} {event.reason}").strip())
            )

    def abandon(self, detail: str) -> None:
        """End the running transfer, because the peer has left."""
        self._settle(leg_contract.TransferOutcome(leg_contract.TransferStatus.CALLER_GONE, detail))

    def forward_digit(self, digit: str) -> bool:
        """Send a key of the peer to the target that it is bridged to; return False if there is none."""
        if self._bridge is None or not self._bridge.is_joined:
            return False
        self._bridge.forward_digit(digit)
        return True

    async def _transfer(
        self, leg: TransferableLeg, target: leg_contract.TransferTarget, audio: leg_contract.SwitchedMedia | None
    ) -> leg_contract.TransferOutcome:
        match target.method:
            case "bye":
                # The headers of the BYE tell a PBX or carrier where the call is to go next.
                await leg.hang_up(EndReason.HANDOFF, target.headers)
                return leg_contract.TransferOutcome(leg_contract.TransferStatus.SUCCEEDED, "BYE")
            case "refer":
                return await self._refer(leg, target)
            case "attended":
                return await self._attend(leg, target)
            case _:
                return await self._join(leg, target, audio)

    async def _refer(
        self, leg: TransferableLeg, target: leg_contract.TransferTarget, consultation: TransferableLeg | None = None
    ) -> leg_contract.TransferOutcome:
        # Made before the REFER is sent, because the outcome may come at any time.
        self._progress = asyncio.get_running_loop().create_future()
        try:
            if consultation is None:
                uri = target_uri(leg.call.core.dialog, target.uri)
                leg.call.refer(uri, target.headers)
            else:
                dialog = consultation.call.core.dialog
                assert dialog is not None, "an answered call has a dialog"
                leg.call.refer(dialog.remote_target, target.headers, to=consultation.call)
            outcome = await self._progress
        finally:
            self._progress = None
        # The peer speaks with the target now, and has both calls until this BYE (RFC 5589 §6.1).
        if outcome.status is leg_contract.TransferStatus.SUCCEEDED:
            await leg.hang_up(EndReason.HANDOFF)
        return outcome

    async def _attend(self, leg: TransferableLeg, target: leg_contract.TransferTarget) -> leg_contract.TransferOutcome:
        """Call the target first; once it has answered, the peer takes our place in that call (RFC 5589 §7)."""
        try:
            consultation = await self._dial_target(leg, target)
        except OSError as error:
            return leg_contract.TransferOutcome(leg_contract.TransferStatus.FAILED, str(error))
        try:
            _, refusal = await wait_for_answer(consultation, target.ring_seconds)
            return refusal or await self._refer(leg, target, consultation)
        finally:
            # After a success the target has ended this call itself, because the peer's INVITE replaced it.
            consultation.leave(EndReason.HANDOFF)

    async def _join(
        self, leg: TransferableLeg, target: leg_contract.TransferTarget, audio: leg_contract.SwitchedMedia | None
    ) -> leg_contract.TransferOutcome:
        if audio is None:
            return leg_contract.TransferOutcome(
                leg_contract.TransferStatus.FAILED, "the call has no audio that could be bridged"
            )
        self._bridge = Bridge(target, audio, leg.send_digits, lambda: leg.emit(leg_contract.PartiesJoined()))
        return await self._bridge.run(lambda dialled: self._dial_target(leg, dialled))

    async def _dial_target(self, leg: TransferableLeg, target: leg_contract.TransferTarget) -> TransferableLeg:
        if self._dial is None:
            raise ValueError("this leg cannot call targets: it was made without `dial_target`")
        return await self._dial(leg, target)

    def _settle(self, outcome: leg_contract.TransferOutcome) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(outcome)
