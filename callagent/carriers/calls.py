"""The live calls of one carrier account: which webhook, which media stream and which leg belong together.

A call begins with a signed webhook. Its answer gives the carrier a one-time token, with which the media stream proves
that it is the one of that call. Every further webhook and stream of the call is joined to the same leg.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Generic, TypeVar

from callagent.call_info import CallInfo, EndReason
from callagent.carriers.leg import CarrierLeg, CarrierLink
from callagent.carriers.media import HALF_FRAME, FrameClock
from callagent.carriers.protocol import Answer, CallControl, CarrierDialect, ConnectStream, StreamStarted, Verdict
from callagent.errors import CallagentError
from callagent.legs import LegGone
from callagent.log import get_logger
from callagent.web import ServerHooks

MAX_ENDED: Final = 4096
"""Ended calls whose identifiers are remembered."""

log = get_logger(__name__)


class Refused(CallagentError):
    """The webhook or the media stream is not accepted."""


class Draining(CallagentError):
    """No new calls are taken: the server is about to stop."""


@dataclass(frozen=True, slots=True)
class _ExpectedStream:
    """The call of a media stream that is still to come."""

    info: CallInfo
    control: CallControl


class CarrierCalls:
    """The live legs by the carrier's identifier (`CallInfo.peer_call_id`), and the tokens of streams to come."""

    def __init__(self, account_id: str, hooks: ServerHooks) -> None:
        self._account_id = account_id
        self._hooks = hooks
        self._clock = FrameClock(HALF_FRAME)
        self._tokens: TokenTable[_ExpectedStream] = TokenTable()
        self._legs: dict[str, CarrierLeg] = {}
        # Kept so that a replayed webhook or token of a call that is over opens nothing.
        self._ended: OrderedDict[str, None] = OrderedDict()

    def leg(self, call_id: str) -> CarrierLeg | None:
        """Return the live leg of the carrier's call; None before its stream has started, and after its end."""
        return self._legs.get(call_id)

    async def take_call(self, info: CallInfo, control: CallControl) -> Answer:
        """Decide what to do with a caller: a new call, or one whose stream has ended. Raises `Draining`."""
        call_id = info.peer_call_id or ""
        leg = self._legs.get(call_id)
        # The carrier asks again when the stream of a call has ended: the caller is back from a transfer, or was cut
        # off.
        if leg is not None:
            return self.expect_stream(leg.info, leg.control) if await leg.expect_return() else Verdict.HANG_UP
        if call_id in self._ended:
            return Verdict.HANG_UP
        if self._hooks.draining():
            raise Draining("the server is about to stop")
        if not self._hooks.admit():
            log.warning("carrier_call_rejected", reason="limit")
            return Verdict.REJECT
        if not self._hooks.accepts(info):
            return Verdict.REJECT
        return self.expect_stream(info, control)

    def expect_stream(self, info: CallInfo, control: CallControl) -> Answer:
        """Issue a token for a media stream of the call. With it we keep the call's data, which no stream can change."""
        try:
            token = self._tokens.issue(info.peer_call_id or "", _ExpectedStream(info, control), self._clock.now())
        except TooManyTokens as error:
            log.warning("carrier_call_rejected", reason=str(error))
            return Verdict.REJECT
        return ConnectStream(token, info.caller or "", info.callee or "")

    def attach_stream(self, started: StreamStarted, link: CarrierLink, dialect: CarrierDialect) -> CarrierLeg:
        """Give the stream to its leg. Raises `Refused` before any audio is taken or sent."""
        if started.account_id and started.account_id != self._account_id:
            raise Refused("the stream belongs to another account")
        token = started.parameters.get("token", "")
        expected = self._tokens.redeem(token, started.call_id, self._clock.now())
        if expected is None or started.call_id in self._ended:
            raise Refused("the stream's token is not valid")
        # A call that has a leg already goes on over the new stream, after a failed transfer or a lost connection.
        existing = self._legs.get(started.call_id)
        leg = existing or self._new_leg(expected, started.call_id)
        try:
            leg.attach(link, dialect)
        except LegGone as error:
            raise Refused(str(error)) from None
        if existing is None:
            self._hooks.on_carrier_call(leg)
        return leg

    def stop(self) -> None:
        """End every leg that is still there."""
        for leg in tuple(self._legs.values()):
            leg.fail("the server stops", EndReason.DRAIN)

    def _new_leg(self, expected: _ExpectedStream, call_id: str) -> CarrierLeg:
        leg = CarrierLeg(expected.info, expected.control, self._clock)
        leg.on_closed = lambda: self._forget(call_id)
        self._legs[call_id] = leg
        return leg

    def _forget(self, call_id: str) -> None:
        self._legs.pop(call_id, None)
        self._ended[call_id] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)


LIFETIME: Final = 60.0
"""Seconds that may pass between the webhook's answer and the stream's start."""
MAX_TOKENS: Final = 4096
"""Tokens that may wait for their streams."""

T = TypeVar("T")


class TooManyTokens(CallagentError):
    """As many tokens as may be issued are waiting for their streams."""


@dataclass(frozen=True, slots=True)
class _Issued(Generic[T]):
    call_id: str
    expires: float
    value: T


class TokenTable(Generic[T]):
    """One-time tokens that were issued and not yet used, each with a value that is kept for its stream."""

    def __init__(self, lifetime: float = LIFETIME, capacity: int = MAX_TOKENS) -> None:
        self._lifetime = lifetime
        self._capacity = capacity
        # Keyed by digest, so that the time of a look-up tells nothing about the token itself. The oldest come first.
        self._issued: OrderedDict[bytes, _Issued[T]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._issued)

    def issue(self, call_id: str, value: T, now: float) -> str:
        """Return a new token for one stream of this call. Raises `TooManyTokens`."""
        self._expire(now)
        if len(self._issued) >= self._capacity:
            raise TooManyTokens(f"{self._capacity} tokens are waiting for their streams")
        token = secrets.token_urlsafe(32)
        self._issued[_digest(token)] = _Issued(call_id, now + self._lifetime, value)
        return token

    def redeem(self, token: str, call_id: str, now: float) -> T | None:
        """Use the token up and return its value; None for one that is unknown, used, expired or of another call."""
        # Any attempt uses the token up, even one for another call: a token that others have seen proves nothing.
        issued = self._issued.pop(_digest(token), None)
        if issued is None or now >= issued.expires:
            return None
        if not hmac.compare_digest(issued.call_id.encode(), call_id.encode("utf-8", "surrogatepass")):
            return None
        return issued.value

    def _expire(self, now: float) -> None:
        while self._issued and next(iter(self._issued.values())).expires <= now:
            self._issued.popitem(last=False)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogatepass")).digest()
