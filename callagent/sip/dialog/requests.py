"""Sends a call's own requests, and finds the dialog of the peer's."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from callagent.sip.dialog.core import Wire
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.message import MAX_PROOFS, Credentials, Request, Response, authorized
from callagent.sip.transaction import OnResponse
from callagent.sip.transport import Hop

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall


@dataclass(frozen=True, slots=True)
class _Exchange:
    """A request within a dialog, with its repetitions that prove who we are."""

    wire: Wire
    dialog: Dialog
    hop: Hop
    credentials: Credentials | None
    on_response: OnResponse


def send_within(call: SipCall, request: Request, on_response: OnResponse, now: float) -> None:
    """Send a request of the call's dialog. A call that we placed proves who we are, as its INVITE did."""
    dialog, wire = call.dialog, call.wire
    assert dialog is not None, "the request is its own"
    hop = dialog.next_hop()
    credentials = None if call.dialling is None else call.dialling.credentials_at(hop)
    _send(_Exchange(wire, dialog, hop, credentials, on_response), request, MAX_PROOFS, now)


def _send(exchange: _Exchange, request: Request, proofs: int, now: float) -> None:
    # No nested functions that know each other: they would wait for the collector with all that they refer to.
    on_response = partial(_receive, exchange, request, proofs)
    exchange.wire.request(request, exchange.hop, on_response, now)


def _receive(exchange: _Exchange, request: Request, proofs: int, response: Response | None, now: float) -> None:
    again = None
    if response is not None and response.status in (401, 407) and exchange.credentials is not None and proofs:
        again = authorized(request, response, exchange.credentials)
    if again is None:
        exchange.on_response(response, now)
    else:
        dialog = exchange.dialog
        dialog.local_cseq = max(dialog.local_cseq, again.cseq.number)
        _send(exchange, again, proofs - 1, now)


def dialog_of(call: SipCall, request: Request) -> Dialog | None:
    """The dialog that a request of the peer is in: the call's, or one that a branch of our INVITE has begun."""
    if call.dialog is not None or call.dialling is None:
        return call.dialog
    return call.dialling.early.dialog_of(request)
