"""Session timers (RFC 4028): a call whose peer has vanished without a BYE ends after the session interval."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from callagent.sip.dialog.call_machine import CallMachine, send_in_dialog
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.message import Headers, Message, Parameters, Request, Response, parse_integer
from callagent.sip.transaction_machines import Timer

_MAX_SECONDS = 86_400
"""Longest session interval that we agree to."""
_MAX_MARGIN = 32.0
"""How many seconds before its expiration a session without a refresh ends; at most a third of the interval (§10)."""
_GLARE_DELAY = (2.1, 4.0)
"""Seconds until a refresh that crossed a request of the peer is sent again (RFC 3261 §14.1)."""


@dataclass(frozen=True, slots=True)
class SessionExpires:
    """The Session-Expires header field."""

    seconds: int
    refresher: str | None = None
    """`uac` or `uas` of the request that set it."""

    @classmethod
    def parse(cls, value: str) -> SessionExpires:
        seconds, separator, rest = value.partition(";")
        refresher = Parameters.parse(separator + rest).get("refresher")
        return cls(parse_integer(seconds.strip(), 2**31), None if refresher is None else refresher.lower())

    @classmethod
    def of(cls, message: Message) -> SessionExpires | None:
        """Return the field of a message; None if it is absent or not valid."""
        value = message.headers.get("Session-Expires")
        try:
            return None if value is None else cls.parse(value)
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"{self.seconds};refresher={self.refresher}" if self.refresher else str(self.seconds)


def is_too_short(request: Request, minimum: int) -> bool:
    """Whether the request asks for a session interval below our Min-SE, which is answered 422 (RFC 4028 §9)."""
    requested = SessionExpires.of(request)
    return requested is not None and requested.seconds < minimum and request.headers.supports("timer")


def is_glare(response: Response) -> bool:
    """Whether our request crossed one of the peer and has to be sent again (RFC 3261 §14.2, RFC 3311 §5.2)."""
    return response.status == 491 or (response.status == 500 and "Retry-After" in response.headers)


class SessionTimer:
    """The session timer of one call: we refresh at half the interval, or end the call if the peer does not refresh."""

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._interval: SessionExpires | None = None
        self._min_se = 0
        """Seconds of the longest Min-SE that the peer has asked for."""
        self._retry: Timer | None = None
        self._peer_allows_update = False

    def request_interval(self, call: CallMachine, headers: Headers) -> None:
        """Write our session interval into an INVITE of ours."""
        headers.set("Session-Expires", str(call.core.settings.session_seconds))
        headers.set("Min-SE", str(call.core.settings.shortest_session))

    def agree(self, call: CallMachine, request: Request, response: Response, now: float) -> None:
        """Write the agreed interval into our 2xx to an INVITE or UPDATE of the peer, and start the timer (§9)."""
        self._note_allow(request)
        supports_timer = request.headers.supports("timer")
        requested = SessionExpires.of(request) or SessionExpires(call.core.settings.session_seconds)
        # The interval is bounded: with an interval of a year, a dead call would be kept for a year.
        seconds = max(min(requested.seconds, _MAX_SECONDS), call.core.settings.shortest_session)
        # A peer without session timers is refreshed by us (RFC 4028 §9).
        refresher = (requested.refresher or "uac") if supports_timer else "uas"
        agreed = SessionExpires(seconds, refresher)
        response.headers.set("Session-Expires", str(agreed))
        if refresher == "uac":
            response.headers.add("Require", "timer")
        self._start(call, agreed, ours=refresher == "uas", now=now)

    def accept(self, call: CallMachine, response: Response, now: float) -> None:
        """Start the timer with the interval of the peer's 2xx to our INVITE or UPDATE; stop it if there is none."""
        self._note_allow(response)
        agreed = SessionExpires.of(response)
        if agreed is None:
            self.stop()
        else:
            seconds = max(agreed.seconds, call.core.settings.shortest_session)
            ours = (agreed.refresher or "uac") == "uac"
            self._start(call, SessionExpires(seconds, agreed.refresher), ours=ours, now=now)

    def stop(self) -> None:
        for timer in (self._timer, self._retry):
            if timer is not None:
                timer.cancel()
        self._timer = self._retry = None

    def renew(self, call: CallMachine, request: Request) -> None:
        """Write the agreed interval into a request of ours within the call."""
        request.headers.set("Supported", "timer")
        if self._interval is not None:
            request.headers.set("Session-Expires", f"{self._interval.seconds};refresher=uac")
            request.headers.set("Min-SE", str(max(self._min_se, call.core.settings.shortest_session)))

    def lengthen(self, response: Response) -> bool:
        """Adopt the interval that a 422 to our refresh requires (§7.3); False if it is not longer than ours."""
        try:
            seconds = parse_integer(response.headers.get("Min-SE") or "", _MAX_SECONDS)
        except ValueError:
            return False
        if self._interval is None or seconds <= self._interval.seconds:
            return False
        self._min_se = max(self._min_se, seconds)
        self._interval = replace(self._interval, seconds=seconds)
        return True

    def _note_allow(self, message: Message) -> None:
        if "Allow" in message.headers:
            self._peer_allows_update = "update" in message.headers.flags("Allow")

    def _start(self, call: CallMachine, agreed: SessionExpires, *, ours: bool, now: float) -> None:
        """Start the timer anew. `ours` tells whether we are the refresher."""
        self.stop()
        self._interval = agreed
        if ours:
            self._timer = call.core.timers.at(now + agreed.seconds / 2, lambda at: self._refresh(call, at))
        else:
            # The side that waits for the refresh ends the session before its expiration, by this margin (§10).
            margin = min(_MAX_MARGIN, agreed.seconds / 3)
            self._timer = call.core.timers.at(now + agreed.seconds - margin, call.lose)

    def _refresh(self, call: CallMachine, now: float) -> None:
        if call.dialog is None or not call.is_established or self._interval is None:
            return
        # If the refresh is delayed or refused, the session still ends at the end of its interval.
        self._timer = call.core.timers.at(now + self._interval.seconds / 2, call.lose)
        if self._peer_allows_update:
            self._send_update(call, call.dialog, now)
        else:
            call.repeat_offer(now)

    def _send_update(self, call: CallMachine, dialog: Dialog, now: float) -> None:
        request = dialog.request("UPDATE")
        self.renew(call, request)
        send_in_dialog(call, request, lambda response, at: self._receive(call, response, at), now)

    def _receive(self, call: CallMachine, response: Response | None, now: float) -> None:
        """Handle the response to our UPDATE."""
        if response is None or response.status in (408, 481):
            call.lose(now)
        elif 200 <= response.status < 300:
            self.accept(call, response, now)
        elif response.status == 422 and self.lengthen(response):
            self._repeat(call, now)
        elif is_glare(response) and self._retry is None:
            # The request of the peer may refresh the session, which cancels this timer.
            self._retry = call.core.timers.at(now + random.uniform(*_GLARE_DELAY), lambda at: self._repeat(call, at))

    def _repeat(self, call: CallMachine, now: float) -> None:
        if call.dialog is not None and call.is_established:
            self._send_update(call, call.dialog, now)
