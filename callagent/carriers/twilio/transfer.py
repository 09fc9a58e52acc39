"""How Twilio gives a caller away: by `<Refer>`, by `<Dial>`, or in a conference that the target is called into."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

from callagent.call_info import CallInfo
from callagent.carriers.control import CallEnded, ControlFailed, TargetNotCalled
from callagent.carriers.twilio.rest import TwilioApi
from callagent.carriers.twilio.twiml import DialTarget, conference, dial, refer
from callagent.legs import TransferTarget


@dataclass(frozen=True, slots=True)
class TransferUrls:
    """Where Twilio reaches us about a transfer."""

    report: str
    """Told how the transfer goes."""
    greeting: str = ""
    """Asked what the person hears who was dialled."""


class TwilioCallControl:
    """Implements `CallControl` for one call."""

    def __init__(
        self,
        api: TwilioApi,
        info: CallInfo,
        urls: TransferUrls,
        write_connect: Callable[[], str],
        *,
        over_sip: bool = False,
    ) -> None:
        """`write_connect` writes TwiML that opens a new stream; `over_sip` as `forms.is_over_sip`."""
        self._api = api
        self._info = info
        self._call_sid = info.peer_call_id or ""
        self._urls = urls
        self._write_connect = write_connect
        self._over_sip = over_sip
        self._waits_in_conference = False

    async def hang_up(self) -> None:
        try:
            await self._api.hang_up(self._call_sid)
        except CallEnded:
            pass

    async def transfer(self, target: TransferTarget) -> None:
        self._waits_in_conference = target.method == "attended"
        twiml = self._transfer_document(target)
        await self._api.redirect(self._call_sid, twiml)
        if self._waits_in_conference:
            await self._invite(target)

    async def take_back(self) -> None:
        # After <Dial> and <Refer> Twilio asks what to do next, but nobody leaves a conference unless redirected.
        if self._waits_in_conference:
            await self._api.redirect(self._call_sid, self._write_connect())

    async def _invite(self, target: TransferTarget) -> None:
        """Call the target into the conference in which the caller waits; who does not come does not keep it there."""
        shown = target.caller or self._info.callee or ""
        report = f"{self._urls.report}?call={self._call_sid}"
        try:
            await self._api.invite(conference_of(self._info), shown, target.uri, round(target.ring_seconds), report)
        except ControlFailed as error:
            raise TargetNotCalled(str(error)) from None

    def _transfer_document(self, target: TransferTarget) -> str:
        """Write the TwiML that begins the transfer. Raises `ValueError` for a target that cannot be called."""
        greeting = self._urls.greeting if target.whisper or target.confirm else ""
        wanted = DialTarget(target.uri, target.headers, target.caller, greeting, confirmed=bool(target.confirm))
        # <Refer> needs a caller and a target on SIP; all others are dialled.
        if target.method == "refer" and self._over_sip and ":" in target.uri:
            return refer(wanted, self._urls.report)
        if target.method == "attended":
            # A target that cannot be called is told before the caller is put anywhere.
            wanted.element(self._urls.report)
            return conference(conference_of(self._info), self._urls.report)
        return dial(wanted, self._urls.report, ceil(target.ring_seconds))


def conference_of(info: CallInfo) -> str:
    """Return the name of the conference in which this call's caller waits for a target."""
    return f"callagent-{info.call_id}"
