"""Provisional responses that are acknowledged (RFC 3262), both roles."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from callagent.sip.dialog.core import Wire
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.session_timer import supports
from callagent.sip.message import CSeq, Request, Response, parse_integer
from callagent.sip.transaction import ServerTransaction, Timer

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall


_MAX_RSEQ = 2**31 - 1
_REQUIRE = "100rel"


class ReliableRinging:
    """Our 180 to a caller that requires it: repeated until PRACK comes; the call is refused when none does."""

    def __init__(self) -> None:
        self._rseq = 0
        self._timer: Timer | None = None

    def wanted(self, invite: Request) -> bool:
        return _REQUIRE in invite.headers.flags("Require")

    def send(self, call: SipCall, transaction: ServerTransaction, response: Response, now: float) -> None:
        """One at a time: while one is not acknowledged, another is not sent (RFC 3262 §3)."""
        if self._timer is not None:
            return
        self._rseq = self._rseq + 1 if self._rseq else secrets.randbelow(2**31 - 2**16) + 1
        response.headers.set("Require", _REQUIRE)
        response.headers.set("RSeq", str(self._rseq))
        transaction.respond(response, now)
        timers = call.wire.settings.timers
        self._arm(call, transaction, response, timers.t1, now, now + timers.timeout)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def receive_prack(self, call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        known = _rack(transaction.request) == (self._rseq, call.invite.cseq) and self._timer is not None
        if known:
            self.stop()
        call.wire.respond(transaction, dialog, 200 if known else 481, now)

    def _arm(
        self,
        call: SipCall,
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

        self._timer = call.wire.timers.at(min(now + interval, until), repeat)


class EarlyDialogs:
    """What the branches of our INVITE said before the answer, and our PRACKs to them."""

    def __init__(self, wire: Wire, call: SipCall) -> None:
        self._wire = wire
        self._call = call
        self._dialogs: dict[str, Dialog] = {}
        self._rseqs: dict[str, int] = {}
        self._bodies: dict[str, bytes] = {}

    def hear(self, response: Response, dialog: Dialog, now: float) -> bool:
        """Take a provisional response with a tag in; False when it is a repetition."""
        tag = response.recipient.tag or ""
        known = self._dialogs.setdefault(tag, dialog)
        self._wire.dialogs.setdefault(known.key, self._call)
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
        self._wire.request(prack, known.next_hop(), _unheard, now)
        return True

    def dialog_of(self, request: Request) -> Dialog | None:
        """The early dialog of a request of the peer."""
        return self._dialogs.get(request.sender.tag or "")

    def close(self) -> None:
        """The INVITE has its answer, or is over: what the other branches say is nobody's."""
        for dialog in self._dialogs.values():
            if self._wire.dialogs.get(dialog.key) is self._call:
                del self._wire.dialogs[dialog.key]

    def confirm(self, response: Response, dialog: Dialog) -> bytes:
        """Let the dialog of a 2xx go on counting where its early one was; the session description it has by now."""
        tag = response.recipient.tag or ""
        early = self._dialogs.get(tag)
        if early is not None:
            dialog.local_cseq = max(dialog.local_cseq, early.local_cseq)
        return response.body or self._bodies.get(tag, b"")


def _rseq(response: Response) -> int | None:
    value = response.headers.get("RSeq")
    if value is None or not supports(response, _REQUIRE):
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


def _unheard(response: Response | None, now: float) -> None:
    """A PRACK that fails leaves the peer repeating; the INVITE's own limits decide."""
