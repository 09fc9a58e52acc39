"""How a SIP leg gives its peer to somebody else: BYE, REFER, attended REFER, or a bridge by INVITE."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from callagent.call_info import EndReason
from callagent.legs.bridge import Bridge, ring
from callagent.legs.leg import LegGone, PartiesJoined, TransferOutcome, TransferStatus, TransferTarget, failed_by
from callagent.legs.media import SwitchedMedia
from callagent.legs.sip.identity import clean, target_uri
from callagent.sip import TransferProgressed, TransferState

if TYPE_CHECKING:
    from callagent.legs.sip.leg import SipLeg

DialTarget = Callable[["SipLeg", TransferTarget], Awaitable["SipLeg"]]
"""Call a target for the peer of a leg. Raises `ValueError`, `OSError` or `LegGone`."""

_OUTCOMES = {
    TransferState.SUCCEEDED: TransferStatus.SUCCEEDED,
    TransferState.REFUSED: TransferStatus.REFUSED,
    TransferState.FAILED: TransferStatus.FAILED,
    TransferState.NO_ANSWER: TransferStatus.NO_ANSWER,
}


class SipTransfer:
    """One at a time."""

    def __init__(self, dial: DialTarget | None) -> None:
        self._dial = dial
        self._progress: asyncio.Future[TransferOutcome] | None = None
        self._bridge: Bridge | None = None
        self._busy = False

    async def run(self, leg: SipLeg, target: TransferTarget, audio: SwitchedMedia | None) -> TransferOutcome:
        if self._busy:
            return TransferOutcome(TransferStatus.FAILED, "a transfer is under way")
        self._busy = True
        try:
            # Nothing may overtake the ACK of our answer.
            await leg.confirmed()
            return await self._methods(leg, target, audio)
        except LegGone as gone:
            return TransferOutcome(TransferStatus.CALLER_GONE, str(gone))
        except ValueError as error:
            return failed_by(error)
        finally:
            self._busy = False
            self._bridge = None

    def heard(self, event: TransferProgressed) -> None:
        if event.state in _OUTCOMES:
            self._settle(TransferOutcome(_OUTCOMES[event.state], clean(f"{event.status} {event.reason}").strip()))

    def caller_gone(self, detail: str) -> None:
        self._settle(TransferOutcome(TransferStatus.CALLER_GONE, detail))

    def pressed(self, digit: str) -> bool:
        """Whether a key of the caller was for somebody else than the agent."""
        if self._bridge is None or not self._bridge.joined:
            return False
        self._bridge.pressed(digit)
        return True

    async def _methods(self, leg: SipLeg, target: TransferTarget, audio: SwitchedMedia | None) -> TransferOutcome:
        match target.method:
            case "bye":
                await leg.hang_up(EndReason.HANDOFF, target.headers)
                return TransferOutcome(TransferStatus.SUCCEEDED, "BYE")
            case "refer":
                return await self._refer(leg, target)
            case "attended":
                return await self._attend(leg, target)
            case _:
                return await self._join(leg, target, audio)

    async def _refer(self, leg: SipLeg, target: TransferTarget, consulted: SipLeg | None = None) -> TransferOutcome:
        self._progress = asyncio.get_running_loop().create_future()
        try:
            if consulted is None:
                uri = target_uri(leg.call.core.dialog, target.uri)
                leg.call.refer(uri, target.headers)
            else:
                dialog = consulted.call.core.dialog
                assert dialog is not None, "an answered call has one"
                leg.call.refer(dialog.remote_target, target.headers, to=consulted.call)
            outcome = await self._progress
        finally:
            self._progress = None
        if outcome.status is TransferStatus.SUCCEEDED:
            await leg.hang_up(EndReason.HANDOFF)
        return outcome

    async def _attend(self, leg: SipLeg, target: TransferTarget) -> TransferOutcome:
        """Call the target first; once it has answered, the peer takes our place in that call (RFC 5589 §7)."""
        try:
            consulted = await self._dialled(leg, target)
        except OSError as error:
            return TransferOutcome(TransferStatus.FAILED, str(error))
        try:
            _, refusal = await ring(consulted, target.ring_seconds)
            return refusal or await self._refer(leg, target, consulted)
        finally:
            consulted.leave(EndReason.HANDOFF)

    async def _join(self, leg: SipLeg, target: TransferTarget, audio: SwitchedMedia | None) -> TransferOutcome:
        if audio is None:
            return TransferOutcome(TransferStatus.FAILED, "there is no audio to bridge")
        self._bridge = Bridge(target, audio, leg.send_digits, lambda: leg.tell(PartiesJoined()))
        return await self._bridge.run(lambda dialled: self._dialled(leg, dialled))

    async def _dialled(self, leg: SipLeg, target: TransferTarget) -> SipLeg:
        if self._dial is None:
            raise ValueError("this server cannot call targets")
        return await self._dial(leg, target)

    def _settle(self, outcome: TransferOutcome) -> None:
        if self._progress is not None and not self._progress.done():
            self._progress.set_result(outcome)
