"""The carrier's calls: what its webhooks and streams have to do with each other. No HTTP here."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from callagent.call_info import CallInfo, EndReason
from callagent.carriers.dialect import StreamStarted
from callagent.carriers.frame_clock import HALF_FRAME, FrameClock
from callagent.carriers.tokens import TokenTable, TooManyTokens
from callagent.carriers.twilio.dialect import TwilioDialect
from callagent.carriers.twilio.leg import CarrierLeg, CarrierLink
from callagent.carriers.twilio.rest import TwilioControl
from callagent.carriers.twilio.settings import TwilioSettings
from callagent.carriers.twilio.signature import SignatureChecker
from callagent.carriers.twilio.transfer import CarrierUrls
from callagent.carriers.twilio.twiml import HANG_UP, NOTHING, connect, reject
from callagent.errors import CallagentError
from callagent.legs import LegGone, TransferOutcome, TransferStatus
from callagent.log import get_logger
from callagent.web import ServerHooks

VOICE_PATH: Final = "/twilio/voice"
MEDIA_PATH: Final = "/twilio/media"
SMS_PATH: Final = "/twilio/sms"
TRANSFER_PATH: Final = "/twilio/transfer-status"
GREETING_PATH: Final = "/twilio/greeting"
MAX_ENDED: Final = 4096
_CALL_SID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIP_HEADER: Final = "SipHeader_"
# Twilio writes withheld numbers as words, or as the words' digits on a keypad.
_WITHHELD = frozenset(
    {"", "anonymous", "restricted", "blocked", "unknown", "unavailable"}
    | {"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"}
)
_DIAL_OUTCOMES: Final[Mapping[str, TransferStatus]] = {
    "completed": TransferStatus.SUCCEEDED,
    "answered": TransferStatus.SUCCEEDED,
    "busy": TransferStatus.REFUSED,
    "no-answer": TransferStatus.NO_ANSWER,
    "failed": TransferStatus.FAILED,
    "canceled": TransferStatus.CALLER_GONE,
}

log = get_logger(__name__)


class Refused(CallagentError):
    """The webhook or the stream is not one that we take."""


class Draining(CallagentError):
    """No new calls are taken: the server is about to stop."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """A call whose media stream is to come."""

    info: CallInfo
    over_sip: bool
    """The carrier has the caller on SIP, and can ask its system to call somebody else."""


class CarrierCalls:
    """One account's live calls by CallSid, with the tokens of the streams still to come."""

    def __init__(self, settings: TwilioSettings, hooks: ServerHooks, signatures: SignatureChecker) -> None:
        self._signatures = signatures
        self._settings = settings
        self._hooks = hooks
        self._control = TwilioControl(settings)
        self._clock = FrameClock(HALF_FRAME)
        self._tokens: TokenTable[_Expected] = TokenTable()
        self._legs: dict[str, CarrierLeg] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        """So that a replayed webhook or token of a call that is over opens nothing."""

    async def incoming(self, form: Mapping[str, str]) -> str:
        """What to do with a caller, as TwiML: a new call, or one whose stream ended. Raises `Refused`, `Draining`."""
        call_sid = self._call_sid(form, "CallSid")
        leg = self._legs.get(call_sid)
        if leg is not None:
            return leg.bring() if await leg.expect_return() else HANG_UP
        if call_sid in self._ended:
            return HANG_UP
        if self._hooks.draining():
            raise Draining("the server is about to stop")
        if not self._hooks.admit():
            log.warning("carrier_call_rejected", reason="limit")
            return reject()
        info = _call_info(call_sid, form)
        if not self._hooks.accepts(info):
            return reject()
        over_sip = form.get("From", "").lower().startswith(("sip:", "sips:")) or "SipCallId" in form
        return self._bring(_Expected(info, over_sip))

    def begin(self, started: StreamStarted, link: CarrierLink, dialect: TwilioDialect) -> CarrierLeg:
        """The leg that a stream belongs to, attached to it. Raises `Refused` before any audio is taken or sent."""
        if started.account_sid and started.account_sid != self._settings.account_sid:
            raise Refused("the stream is another account's")
        token = started.parameters.get("token", "")
        expected = self._tokens.redeem(token, started.call_sid, self._clock.now())
        if expected is None or started.call_sid in self._ended:
            raise Refused("the stream's token is not valid")
        known = self._legs.get(started.call_sid)
        leg = known or self._new_leg(expected, started.call_sid)
        try:
            leg.attach(link, dialect)
        except LegGone as error:
            raise Refused(str(error)) from None
        if known is None:
            self._hooks.on_carrier_call(leg)
        return leg

    def transfer_reported(self, form: Mapping[str, str], invited_by: str = "") -> str:
        """What to do, as TwiML, now that the dialled party answered or the dial is over. Raises `Refused`.

        `invited_by` is the CallSid of the caller who waits in a conference for the call that is reported.
        """
        if invited_by:
            return self._invited(form, invited_by)
        dialled = form.get("DialCallStatus") or form.get("ReferCallStatus")
        if dialled is None and "ReferSipResponseCode" not in form:
            leg = self._legs.get(self._call_sid(form, "ParentCallSid"))
            if leg and form.get("CallStatus") == "in-progress":
                leg.transfer_ended(TransferOutcome(TransferStatus.SUCCEEDED, "answered"))
            return NOTHING
        leg = self._legs.get(self._call_sid(form, "CallSid"))
        if leg is None:
            return HANG_UP
        gone = form.get("CallStatus") == "completed" and "DialCallStatus" in form
        status = TransferStatus.CALLER_GONE if gone else _DIAL_OUTCOMES.get(dialled or "", TransferStatus.FAILED)
        codes = ("DialSipResponseCode", "ReferSipResponseCode", "NotifySipResponseCode")
        detail = " ".join(filter(None, (dialled, *(form.get(name) for name in codes))))
        leg.dial_ended(TransferOutcome(status, detail))
        return HANG_UP if leg.closed else leg.bring()

    def _invited(self, form: Mapping[str, str], invited_by: str) -> str:
        self._call_sid(form, "CallSid")
        leg, status = self._legs.get(invited_by), form.get("CallStatus", "")
        if leg and status == "in-progress":
            leg.transfer_ended(TransferOutcome(TransferStatus.SUCCEEDED, "answered"))
        elif leg and status in _DIAL_OUTCOMES:
            failed = {"completed": TransferStatus.FAILED, "canceled": TransferStatus.NO_ANSWER}
            leg.transfer_ended(TransferOutcome(failed.get(status, _DIAL_OUTCOMES[status]), status))
        return NOTHING

    def greeting(self, form: Mapping[str, str]) -> str:
        """What a person who was dialled hears first, as TwiML. Raises `Refused`."""
        leg = self._legs.get(self._call_sid(form, "ParentCallSid"))
        return HANG_UP if leg is None else leg.greeting(form.get("Digits"), self._signatures.url(GREETING_PATH))

    def stop(self) -> None:
        """End every leg that is still there."""
        for leg in tuple(self._legs.values()):
            leg.fail("the server stops", EndReason.DRAIN)

    async def close(self) -> None:
        await self._control.close()

    def _call_sid(self, form: Mapping[str, str], name: str) -> str:
        call_sid = form.get(name, "")
        if not _CALL_SID.fullmatch(call_sid):
            raise Refused(f"the webhook has no valid {name}")
        if form.get("AccountSid", self._settings.account_sid) != self._settings.account_sid:
            raise Refused("the webhook is another account's")
        return call_sid

    def _bring(self, expected: _Expected) -> str:
        """TwiML that opens a stream for the call. The token vouches for what we keep, not for what it carries."""
        info = expected.info
        try:
            token = self._tokens.issue(info.peer_call_id or "", expected, self._clock.now())
        except TooManyTokens as error:
            log.warning("carrier_call_rejected", reason=str(error))
            return reject()
        parameters = {"token": token, "from": info.caller or "", "to": info.callee or ""}
        return connect(self._signatures.stream_url(MEDIA_PATH), parameters, self._signatures.url(VOICE_PATH))

    def _new_leg(self, expected: _Expected, call_sid: str) -> CarrierLeg:
        urls = CarrierUrls(self._signatures.url(TRANSFER_PATH), self._signatures.url(GREETING_PATH))
        leg = CarrierLeg(expected.info, self._control, self._clock, urls, over_sip=expected.over_sip)
        leg.bring = lambda: self._bring(expected)
        leg.on_closed = lambda: self._forget(call_sid)
        self._legs[call_sid] = leg
        return leg

    def _forget(self, call_sid: str) -> None:
        self._legs.pop(call_sid, None)
        self._ended[call_sid] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)


def _call_info(call_sid: str, form: Mapping[str, str]) -> CallInfo:
    caller = _party(form.get("From", ""))
    return CallInfo(
        call_id=uuid4().hex,
        direction="inbound",
        caller=None if caller.lower() in _WITHHELD else caller,
        callee=_party(form.get("To", "")) or None,
        wire="twilio",
        started=datetime.now(UTC),
        headers={name.removeprefix(_SIP_HEADER): form[name] for name in form if name.startswith(_SIP_HEADER + "X-")},
        peer_call_id=call_sid,
    )


def _party(address: str) -> str:
    """The number, or the user part of a SIP URI."""
    scheme, colon, rest = address.strip().partition(":")
    if colon and scheme.lower() in ("sip", "sips"):
        return rest.partition("@")[0].partition(";")[0]
    return address.strip()
