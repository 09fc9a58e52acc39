"""Sends a call's own requests, and finds the dialog of the peer's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent.sip.dialog import Dialog
from callagent.sip.digest import MAX_PROOFS, authorized
from callagent.sip.message import Request, Response
from callagent.sip.transaction_layer import OnResponse

if TYPE_CHECKING:
    from callagent.sip.call import SipCall


def send_within(call: SipCall, request: Request, on_response: OnResponse, now: float) -> None:
    """Send a request of the call's dialog. A call that we placed proves who we are, as its INVITE did."""
    dialog, wire = call.dialog, call.wire
    assert dialog is not None, "the request is its own"
    hop = dialog.next_hop()
    credentials = None if call.dialling is None else call.dialling.credentials_at(hop)

    def send(present: Request, proofs: int, at: float) -> None:
        wire.request(present, hop, lambda response, later: heard(present, proofs, response, later), at)

    def heard(present: Request, proofs: int, response: Response | None, at: float) -> None:
        again = None
        if response is not None and response.status in (401, 407) and credentials is not None and proofs:
            again = authorized(present, response, credentials)
        if again is None:
            on_response(response, at)
        else:
            dialog.local_cseq = max(dialog.local_cseq, again.cseq.number)
            send(again, proofs - 1, at)

    send(request, MAX_PROOFS, now)


def dialog_of(call: SipCall, request: Request) -> Dialog | None:
    """The dialog that a request of the peer is in: the call's, or one that a branch of our INVITE has begun."""
    if call.dialog is not None or call.dialling is None:
        return call.dialog
    return call.dialling.early.dialog_of(request)
