"""Session timers (RFC 4028): a call whose peer has vanished ends, although nobody says so."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.requests import send_within
from callagent.sip.message import Headers, Message, Parameters, Request, Response, parse_integer
from callagent.sip.transaction import Timer

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall


_LONGEST = 86_400


@dataclass(frozen=True, slots=True)
class SessionExpires:
    seconds: int
    refresher: str | None = None
    """`uac` or `uas`: of the request that set it."""

    @classmethod
    def parse(cls, value: str) -> SessionExpires:
        seconds, separator, rest = value.partition(";")
        refresher = Parameters.parse(separator + rest).get("refresher")
        return cls(parse_integer(seconds.strip(), 2**31), None if refresher is None else refresher.lower())

    @classmethod
    def of(cls, message: Message) -> SessionExpires | None:
        value = message.headers.get("Session-Expires")
        try:
            return None if value is None else cls.parse(value)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.seconds};refresher={self.refresher}" if self.refresher else str(self.seconds)


def too_short(request: Request, minimum: int) -> bool:
    """Whether the request wants to be refreshed more often than we take part in: 422."""
    wanted = SessionExpires.of(request)
    return wanted is not None and wanted.seconds < minimum and supports(request, "timer")


def crosses(response: Response) -> bool:
    """Whether the request met another one of the peer's and is to come again (RFC 3261 §14.2, RFC 3311 §5.2)."""
    return response.status == 491 or (response.status == 500 and "Retry-After" in response.headers)


def supports(message: Message, extension: str) -> bool:
    return extension in message.headers.flags("Supported") | message.headers.flags("Require")


class SessionTimer:
    """One call's: either we refresh at half time, or the peer does and we end the call when it does not."""

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._interval: SessionExpires | None = None
        self._shortest = 0
        """What the peer has asked for."""
        self._again: Timer | None = None
        self._peer_updates = False

    def ask(self, call: SipCall, headers: Headers) -> None:
        """Put our wish into an INVITE of ours."""
        headers.set("Session-Expires", str(call.wire.settings.session_seconds))
        headers.set("Min-SE", str(call.wire.settings.shortest_session))

    def agree(self, call: SipCall, request: Request, response: Response, now: float) -> None:
        """Complete our 2xx to an INVITE or UPDATE of the peer."""
        self._note(request)
        capable = supports(request, "timer")
        wanted = SessionExpires.of(request) or SessionExpires(call.wire.settings.session_seconds)
        seconds = max(min(wanted.seconds, _LONGEST), call.wire.settings.shortest_session)
        # A peer that knows nothing of timers is refreshed by us (RFC 4028 §9).
        refresher = (wanted.refresher or "uac") if capable else "uas"
        agreed = SessionExpires(seconds, refresher)
        response.headers.set("Session-Expires", str(agreed))
        if refresher == "uac":
            response.headers.add("Require", "timer")
        self._run(call, agreed, ours=refresher == "uas", now=now)

    def accept(self, call: SipCall, response: Response, now: float) -> None:
        """Follow the peer's 2xx to an INVITE or UPDATE of ours; without a word of it there is no timer."""
        self._note(response)
        agreed = SessionExpires.of(response)
        if agreed is None:
            self.stop()
        else:
            seconds = max(agreed.seconds, call.wire.settings.shortest_session)
            ours = (agreed.refresher or "uac") == "uac"
            self._run(call, SessionExpires(seconds, agreed.refresher), ours=ours, now=now)

    def stop(self) -> None:
        for timer in (self._timer, self._again):
            if timer is not None:
                timer.cancel()
        self._timer = self._again = None

    def _note(self, message: Message) -> None:
        if "Allow" in message.headers:
            self._peer_updates = "update" in message.headers.flags("Allow")

    def _run(self, call: SipCall, agreed: SessionExpires, *, ours: bool, now: float) -> None:
        self.stop()
        self._interval = agreed
        if ours:
            self._timer = call.wire.timers.at(now + agreed.seconds / 2, lambda at: self._refresh(call, at))
        else:
            margin = min(32.0, agreed.seconds / 3)
            self._timer = call.wire.timers.at(now + agreed.seconds - margin, call.lose)

    def _refresh(self, call: SipCall, now: float) -> None:
        dialog = call.dialog
        if dialog is None or not call.established or self._interval is None:
            return
        # Should the refresh be put off or refused, the session still ends in time.
        self._timer = call.wire.timers.at(now + self._interval.seconds / 2, call.lose)
        if self._peer_updates:
            self._update(call, dialog, now)
        else:
            call.reoffers.repeat(call, dialog, now)

    def _update(self, call: SipCall, dialog: Dialog, now: float) -> None:
        assert self._interval is not None
        request = dialog.request("UPDATE")
        self.renew(call, request)
        send_within(call, request, lambda response, at: self._heard(call, response, at), now)

    def renew(self, call: SipCall, request: Request) -> None:
        """Put the agreed interval into a request of ours within the call."""
        request.headers.set("Supported", "timer")
        if self._interval is not None:
            request.headers.set("Session-Expires", f"{self._interval.seconds};refresher=uac")
            request.headers.set("Min-SE", str(max(self._shortest, call.wire.settings.shortest_session)))

    def lengthen(self, response: Response) -> bool:
        """Whether a 422 to our refresh asks for a longer session than we thought of (RFC 4028 §7.3)."""
        try:
            seconds = parse_integer(response.headers.get("Min-SE") or "", _LONGEST)
        except ValueError:
            return False
        if self._interval is None or seconds <= self._interval.seconds:
            return False
        self._shortest = max(self._shortest, seconds)
        self._interval = replace(self._interval, seconds=seconds)
        return True

    def _heard(self, call: SipCall, response: Response | None, now: float) -> None:
        if response is None or response.status in (408, 481):
            call.lose(now)
        elif 200 <= response.status < 300:
            self.accept(call, response, now)
        elif response.status == 422 and self.lengthen(response):
            self._repeat(call, now)
        elif crosses(response) and self._again is None:
            # What is under way may restart the session, and stop this.
            self._again = call.wire.timers.at(now + random.uniform(2.1, 4.0), lambda at: self._repeat(call, at))

    def _repeat(self, call: SipCall, now: float) -> None:
        dialog = call.dialog
        if dialog is not None and call.established:
            self._update(call, dialog, now)
