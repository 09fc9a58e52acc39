"""Requests that we send within a call's dialog, repeated with a digest where the peer asks for one (RFC 3261 §22)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from callagent.sip.dialog.call_machine import CallMachine
from callagent.sip.dialog.core import UserAgentCore
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.message import MAX_PROOFS, Credentials, Hop, Request, Response, authorized
from callagent.sip.transaction import OnResponse


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request within a dialog and its repetitions; it does not refer to the call."""

    core: UserAgentCore
    dialog: Dialog
    hop: Hop
    credentials: Credentials | None
    on_response: OnResponse


def send_in_dialog(call: CallMachine, request: Request, on_response: OnResponse, now: float) -> None:
    """Send a request that the call's dialog made.

    A challenge (401 or 407) is answered with the credentials that the call's INVITE has proven, at most `MAX_PROOFS`
    times; `on_response` gets every other response, and None if none arrives in time.
    """
    dialog = call.dialog
    assert dialog is not None, "the request was made by the dialog"
    hop = dialog.next_hop()
    exchange = _Exchange(call.core, dialog, hop, call.credentials_for(hop), on_response)
    _send(exchange, request, MAX_PROOFS, now)


def ignore_response(response: Response | None, now: float) -> None:
    """Do nothing: for requests whose outcome changes nothing here."""


def _send(exchange: _Exchange, request: Request, proofs: int, now: float) -> None:
    # Not nested functions: two that refer to each other would be a cycle that only the garbage collector frees.
    on_response = partial(_receive, exchange, request, proofs)
    exchange.core.send_request(request, exchange.hop, on_response, now)


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
