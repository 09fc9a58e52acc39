"""Reliable provisional responses: PRACK, RSeq and RAck, in both roles (RFC 3262)."""

from __future__ import annotations

import secrets

from callagent.sip.dialog.call_machine import CallMachine
from callagent.sip.dialog.core import UserAgentCore
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import Call
from callagent.sip.dialog.requests import ignore_response
from callagent.sip.message import CSeq, Request, Response, parse_integer
from callagent.sip.transaction import ServerTransaction, Timer

_MAX_RSEQ = 2**31 - 1
OPTION_TAG = "100rel"


class ReliableProvisional:
    """A provisional response of ours to a caller that requires `100rel`.

    It is sent again until its PRACK arrives; if none does within 64*T1, the call is refused with 504 (RFC 3262 §3).
    """

    def __init__(self) -> None:
        self._rseq = 0
        self._timer: Timer | None = None

    def send(self, call: CallMachine, transaction: ServerTransaction, response: Response, now: float) -> None:
        """Send `response`, unless an earlier one is not acknowledged yet: only one may be under way (RFC 3262 §3)."""
        if self._timer is not None:
            return
        # The first number is random, below 2**31 so that the following ones fit as well.
        self._rseq = self._rseq + 1 if self._rseq else secrets.randbelow(2**31 - 2**16) + 1
        response.headers.set("Require", OPTION_TAG)
        response.headers.set("RSeq", str(self._rseq))
        transaction.respond(response, now)
        timers = call.core.settings.timers
        self._arm(call, transaction, response, timers.t1, now, now + timers.timeout)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def receive_prack(self, call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        """Respond to a PRACK: 200 if it acknowledges the response under way, otherwise 481."""
        matches = _rack(transaction.request) == (self._rseq, call.invite.cseq) and self._timer is not None
        if matches:
            self.stop()
        call.core.respond(transaction, dialog, 200 if matches else 481, now)

    def _arm(
        self,
        call: CallMachine,
        transaction: ServerTransaction,
        response: Response,
        interval: float,
        now: float,
        until: float,
    ) -> None:
        def repeat(at: float) -> None:
            if at >= until:
                self._timer = None
                call.hang_up(at, status=504)
            else:
                transaction.respond(response, at)
                self._arm(call, transaction, response, 2 * interval, at, until)

        self._timer = call.core.timers.at(min(now + interval, until), repeat)


class EarlyDialogs:
    """The early dialogs that the branches of our INVITE opened, and the PRACKs that we send in them."""

    def __init__(self, core: UserAgentCore, call: Call) -> None:
        self._core = core
        self._call = call
        self._dialogs: dict[str, Dialog] = {}
        """By the peer's tag, as are the next two."""
        self._rseqs: dict[str, int] = {}
        self._bodies: dict[str, bytes] = {}

    def receive(self, response: Response, dialog: Dialog, now: float) -> bool:
        """Take in a provisional response with a To tag. False if it is a retransmission, or out of order."""
        tag = response.recipient.tag or ""
        known = self._dialogs.setdefault(tag, dialog)
        self._core.dialogs.setdefault(known.key, self._call)
        if response.body:
            self._bodies.setdefault(tag, response.body)
        rseq = _rseq(response)
        if rseq is None:
            return True
        last = self._rseqs.get(tag)
        if last is not None and rseq != last + 1:
            return False
        self._rseqs[tag] = rseq
        prack = known.request("PRACK")
        prack.headers.add("RAck", f"{rseq} {response.cseq}")
        # A PRACK that fails leaves the peer repeating its response: the time limits of the INVITE end that.
        self._core.send_request(prack, known.next_hop(), ignore_response, now)
        return True

    def dialog_of(self, request: Request) -> Dialog | None:
        """Return the early dialog of a request from the peer."""
        return self._dialogs.get(request.sender.tag or "")

    def close(self) -> None:
        """Forget all early dialogs, because the INVITE has its final response."""
        for dialog in self._dialogs.values():
            if self._core.dialogs.get(dialog.key) is self._call:
                del self._core.dialogs[dialog.key]

    def confirm(self, response: Response, dialog: Dialog) -> bytes:
        """Let the dialog of a 2xx continue the CSeq of its early dialog, and return the answer to our offer.

        A reliable provisional response may have brought the answer; the 2xx then has no body (RFC 3262 §5).
        """
        tag = response.recipient.tag or ""
        early = self._dialogs.get(tag)
        if early is not None:
            dialog.local_cseq = max(dialog.local_cseq, early.local_cseq)
        return response.body or self._bodies.get(tag, b"")


def _rseq(response: Response) -> int | None:
    """Return the number of a reliable provisional response; None if it is not reliable."""
    value = response.headers.get("RSeq")
    if value is None or not response.headers.supports(OPTION_TAG):
        return None
    try:
        return parse_integer(value, _MAX_RSEQ)
    except ValueError:
        return None


def _rack(request: Request) -> tuple[int, CSeq] | None:
    number, _, rest = (request.headers.get("RAck") or "").strip().partition(" ")
    try:
        return parse_integer(number, _MAX_RSEQ), CSeq.parse(rest)
    except ValueError:
        return None
