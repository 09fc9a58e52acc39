"""Offers within a call: re-INVITE and UPDATE of the peer, and our re-INVITE (RFC 3261 §14, RFC 3311)."""

from __future__ import annotations

import random
from dataclasses import dataclass

from callagent.sip.dialog.call_machine import CallMachine, send_in_dialog
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import OfferAnswered, OfferReceived, OfferRefused
from callagent.sip.dialog.invite import AnswerRetransmission
from callagent.sip.dialog.session_timer import SessionTimer, is_glare
from callagent.sip.message import Request, Response, respond_to
from callagent.sip.transaction_layer import ServerTransaction
from callagent.sip.transaction_machines import Timer

_OWNER_GLARE_DELAY = (2.1, 4.0)
_OTHER_GLARE_DELAY = (0.0, 2.0)
"""Seconds until a re-INVITE that crossed one of the peer is sent again, by the owner of the Call-ID and by the other
side. The ranges differ, so that the two do not cross again (§14.1)."""


@dataclass(eq=False, slots=True)
class _Offer:
    """An offer of ours, until its outcome."""

    body: bytes | None = None
    """None: the description in force when it is sent, which refreshes the session without changes."""
    refreshes: bool = False
    """Whether the session is to be refreshed, also if this offer is refused."""
    repeated: bool = False
    """Whether it crossed a request of the peer once already."""
    written: bytes = b""
    """The description in its request."""


class Renegotiation:
    """The offers within one call. Only one may be under way, from either side; others have to wait."""

    def __init__(self, session_timer: SessionTimer) -> None:
        self._session_timer = session_timer
        self._received: ServerTransaction | None = None
        """The peer's offer, until the owner accepts or refuses it."""
        self._dialog: Dialog | None = None
        """The dialog of `_received`: the call's, or an early one of our INVITE."""
        self._answer: AnswerRetransmission | None = None
        self._sent: _Offer | None = None
        """Our offer in a re-INVITE, until its final response."""
        self._waiting: _Offer | None = None
        """Our newest offer, until it can be sent; `_retry` then sends it."""
        self._retry: Timer | None = None

    # Offers of the peer

    def receive(self, call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        """Handle a re-INVITE or UPDATE of the peer: emit `OfferReceived`, or respond at once."""
        request = transaction.request
        if request.method == "UPDATE" and not request.body:
            # Without an offer it refreshes the session and the target only.
            dialog.refresh_target(request)
            refreshed = call.core.make_response(request, dialog, 200)
            self._session_timer.agree(call, request, refreshed, now)
            transaction.respond(refreshed, now)
        elif self._sent is not None or self._answer is not None:
            call.core.respond(transaction, dialog, 491, now)
        elif self._received is not None:
            # A second offer before the first has its answer (§14.2).
            response = respond_to(request, 500, tag=dialog.local.tag, headers=[("Retry-After", "2")])
            transaction.respond(call.core.add_common_headers(response), now)
        else:
            self._received, self._dialog = transaction, dialog
            transaction.on_cancel = lambda cancel, at: self.refuse(call, 487, at)
            call.core.events.append(OfferReceived(call, request.body))

    def accept(self, call: CallMachine, body: bytes, now: float) -> None:
        """Answer the peer's offer with `body`."""
        transaction, dialog = self._take_received(), self._dialog
        if transaction is None or dialog is None:
            return
        dialog.refresh_target(transaction.request)
        call.last_description = body
        response = call.core.make_response(transaction.request, dialog, 200, body=body)
        self._session_timer.agree(call, transaction.request, response, now)
        # An UPDATE has no ACK, so its 200 is repeated by the transaction alone (RFC 3311 §5.2).
        if transaction.request.method == "UPDATE":
            transaction.respond(response, now)
            return
        self._answer = AnswerRetransmission(call.core, transaction, response, lambda at: self._hang_up(call, at))
        self._answer.start(now)

    def refuse(self, call: CallMachine, status: int, now: float) -> None:
        """Refuse the peer's offer."""
        transaction, dialog = self._take_received(), self._dialog
        if transaction is not None and dialog is not None:
            call.core.respond(transaction, dialog, status, now)

    def receive_ack(self, call: CallMachine, ack: Request) -> None:
        """Handle the ACK of a re-INVITE that we accepted; its body answers our offer, if our 200 made one."""
        if self._answer is None or self._answer.cseq != ack.cseq.number:
            return
        self._answer.stop()
        self._answer = None
        if ack.body:
            call.core.events.append(OfferAnswered(call, ack.body))

    def _take_received(self) -> ServerTransaction | None:
        transaction, self._received = self._received, None
        if transaction is not None:
            transaction.on_cancel = None
        return transaction

    def _hang_up(self, call: CallMachine, now: float) -> None:
        self._answer = None
        call.hang_up(now)

    # Our offers

    def send(self, call: CallMachine, dialog: Dialog, body: bytes, now: float) -> None:
        """Offer `body` in a re-INVITE, later if an offer is under way; the outcome is an event.

        It takes the place of an offer that still waits, which then has no outcome of its own.
        """
        if self._waiting is None:
            self._send(call, dialog, _Offer(body), now)
        else:
            self._waiting = _Offer(body, self._waiting.refreshes)

    def repeat(self, call: CallMachine, dialog: Dialog, now: float) -> None:
        """Refresh the session with the description that is in force when an offer can be sent."""
        # An offer that is accepted refreshes the session as well (RFC 4028 §7.4): none is sent beside it.
        offer = self._waiting or self._sent
        if offer is not None:
            offer.refreshes = True
        elif call.last_description:
            self._send(call, dialog, _Offer(refreshes=True), now)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.stop()
        if self._retry is not None:
            self._retry.cancel()

    def _send(self, call: CallMachine, dialog: Dialog, offer: _Offer, now: float) -> None:
        if self._sent is not None or self._received is not None or self._answer is not None:
            self._send_later(call, dialog, offer, now)
            return
        request = dialog.request("INVITE")
        request.headers.set("Content-Type", "application/sdp")
        request.headers.set("Allow", call.core.allow)
        request.body = offer.written = call.last_description if offer.body is None else offer.body
        self._session_timer.renew(call, request)
        self._sent = offer
        send_in_dialog(call, request, lambda response, at: self._receive(call, dialog, offer, response, at), now)

    def _receive(self, call: CallMachine, dialog: Dialog, offer: _Offer, response: Response | None, now: float) -> None:
        """Handle a response to our re-INVITE."""
        if response is not None and response.status < 200:
            return
        if response is not None and response.status < 300:
            dialog.refresh_target(response)
            call.core.send_ack(dialog.request("ACK", response.cseq.number), dialog.next_hop(), now)
        if self._sent is not offer:
            # This 2xx was a retransmission, which only needs the ACK.
            return
        self._sent = None
        if response is None or response.status in (408, 481):
            call.lose(now)
        elif response.status < 300:
            call.last_description = offer.written
            self._session_timer.accept(call, response, now)
            call.core.events.append(OfferAnswered(call, response.body))
        elif response.status == 422 and self._session_timer.lengthen(response):
            self._send(call, dialog, offer, now)
        elif is_glare(response) and (self._waiting is not None or not offer.repeated):
            offer.repeated = True
            self._send_later(call, dialog, offer, now)
        else:
            call.core.events.append(OfferRefused(call, response.status))
            if offer.refreshes and offer.body is not None:
                self.repeat(call, dialog, now)

    def _send_later(self, call: CallMachine, dialog: Dialog, offer: _Offer, now: float) -> None:
        if self._waiting is None:
            self._waiting = offer
        else:
            # The one that waits is newer and is sent in the place of this one.
            self._waiting.refreshes |= offer.refreshes
        if self._retry is not None:
            self._retry.cancel()
        low, high = _OWNER_GLARE_DELAY if call.outgoing else _OTHER_GLARE_DELAY
        delay = round(random.uniform(low, high), 2)
        self._retry = call.core.timers.at(now + delay, lambda at: self._send_waiting(call, dialog, at))

    def _send_waiting(self, call: CallMachine, dialog: Dialog, now: float) -> None:
        offer, self._waiting, self._retry = self._waiting, None, None
        if offer is not None and call.is_established:
            self._send(call, dialog, offer, now)
