"""Changes of the media within a call: re-INVITE and UPDATE of the peer, re-INVITE of ours (RFC 3261 §14, 3311)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import OfferAnswered, OfferReceived, OfferRefused
from callagent.sip.dialog.requests import send_within
from callagent.sip.dialog.session_timer import crosses
from callagent.sip.dialog.uas import Answering
from callagent.sip.message import Request, Response, respond_to
from callagent.sip.transaction import ServerTransaction, Timer

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall


class Reoffers:
    """One offer at a time, from either side; the others are told to wait.

    Like the other parts of a call it is handed the call: a part that knew it would keep it from being freed at once.
    """

    def __init__(self) -> None:
        self._pending: ServerTransaction | None = None
        self._dialog: Dialog | None = None
        """Of `_pending`: the call's, or an early one of our INVITE."""
        self._answering: Answering | None = None
        self._own: Request | None = None
        self._retry: Timer | None = None
        self.last = b""
        """Our last description, for a refresh that changes nothing."""

    # The peer's

    def receive(self, call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        """A re-INVITE, or an UPDATE, in an established call."""
        request = transaction.request
        if request.method == "UPDATE" and not request.body:
            dialog.refresh_target(request)
            refreshed = call.wire.response(request, dialog, 200)
            call.session.agree(call, request, refreshed, now)
            transaction.respond(refreshed, now)
        elif self._own is not None or self._answering is not None:
            call.wire.respond(transaction, dialog, 491, now)
        elif self._pending is not None:
            response = respond_to(request, 500, tag=dialog.local.tag, headers=[("Retry-After", "2")])
            transaction.respond(call.wire.finish(response), now)
        else:
            self._pending, self._dialog = transaction, dialog
            transaction.on_cancel = lambda cancel, at: self.refuse(call, 487, at)
            call.wire.events.append(OfferReceived(call, request.body))

    def accept(self, call: SipCall, body: bytes, now: float) -> None:
        transaction, dialog = self._take(), self._dialog
        if transaction is None or dialog is None:
            return
        dialog.refresh_target(transaction.request)
        self.last = body
        response = call.wire.response(transaction.request, dialog, 200, body=body)
        call.session.agree(call, transaction.request, response, now)
        if transaction.request.method == "UPDATE":
            transaction.respond(response, now)
            return
        self._answering = Answering(call.wire, transaction, response, lambda at: self._no_ack(call, at))
        self._answering.start(now)

    def refuse(self, call: SipCall, status: int, now: float) -> None:
        transaction, dialog = self._take(), self._dialog
        if transaction is not None and dialog is not None:
            call.wire.respond(transaction, dialog, status, now)

    def _take(self) -> ServerTransaction | None:
        transaction, self._pending = self._pending, None
        if transaction is not None:
            transaction.on_cancel = None
        return transaction

    def acknowledge(self, call: SipCall, ack: Request) -> bool:
        """Whether the ACK belongs to a re-INVITE that we accepted."""
        if self._answering is None or self._answering.cseq != ack.cseq.number:
            return False
        self._answering.stop()
        self._answering = None
        if ack.body:
            call.wire.events.append(OfferAnswered(call, ack.body))
        return True

    def _no_ack(self, call: SipCall, now: float) -> None:
        self._answering = None
        call.hang_up(now)

    # Ours

    def send(self, call: SipCall, dialog: Dialog, body: bytes, now: float) -> None:
        """Offer `body`; the answer comes as an event. After 491 once more, when the peer's own change is over."""
        if self._own is not None or self._pending is not None or self._answering is not None:
            self._retry_later(call, dialog, body, now)
            return
        request = dialog.request("INVITE")
        request.headers.set("Content-Type", "application/sdp")
        request.headers.set("Allow", call.wire.allow)
        request.body = body
        call.session.renew(call, request)
        self.last = body
        self._own = request
        send_within(call, request, lambda response, at: self._heard(call, dialog, body, response, at), now)

    def repeat(self, call: SipCall, dialog: Dialog, now: float) -> None:
        """Refresh the session with what we said last; put off while another offer is under way."""
        if self.last:
            self.send(call, dialog, self.last, now)

    def close(self) -> None:
        if self._answering is not None:
            self._answering.stop()
        if self._retry is not None:
            self._retry.cancel()

    def _heard(self, call: SipCall, dialog: Dialog, body: bytes, response: Response | None, now: float) -> None:
        own = self._own
        if response is not None and response.status < 200:
            return
        if response is not None and response.status < 300:
            _confirm(call, dialog, response, now)
        if own is None:
            return
        self._own = None
        if response is None or response.status in (408, 481):
            call.lose(now)
        elif response.status < 300:
            self._retry = None
            call.session.accept(call, response, now)
            call.wire.events.append(OfferAnswered(call, response.body))
        elif response.status == 422 and call.session.lengthen(response):
            self.send(call, dialog, body, now)
        elif crosses(response) and self._retry is None:
            self._retry_later(call, dialog, body, now)
        else:
            self._retry = None
            call.wire.events.append(OfferRefused(call, response.status))

    def _retry_later(self, call: SipCall, dialog: Dialog, body: bytes, now: float) -> None:
        # Whoever chose the Call-ID waits longer, so that the two do not meet again (§14.1).
        low, high = (2.1, 4.0) if call.outgoing else (0.0, 2.0)
        delay = round(random.uniform(low, high), 2)
        self._retry = call.wire.timers.at(now + delay, lambda at: self._send_again(call, dialog, body, at))

    def _send_again(self, call: SipCall, dialog: Dialog, body: bytes, now: float) -> None:
        if call.established:
            self.send(call, dialog, body, now)


def _confirm(call: SipCall, dialog: Dialog, response: Response, now: float) -> None:
    dialog.refresh_target(response)
    call.wire.acknowledge(dialog.request("ACK", response.cseq.number), dialog.next_hop(), now)
