"""DTMF digits in INFO requests (RFC 6086), in the two body formats that gateways use."""

from __future__ import annotations

import re

from callagent.sip.dialog.call_machine import CallMachine
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import DigitReceived
from callagent.sip.dialog.requests import send_in_dialog
from callagent.sip.message import Response, respond_to
from callagent.sip.transaction import ServerTransaction

DTMF_TYPES = ("application/dtmf-relay", "application/dtmf")
DIGIT_MILLISECONDS = 160
_RELAY = re.compile(rb"\s*Signal\s*=\s*(\d{1,2}|[A-Da-d*#])\s*(?:\r?\n.*)?", re.IGNORECASE | re.DOTALL)
_PLAIN = re.compile(rb"\s*(\d{1,2}|[A-Da-d*#])\s*")
# Some gateways send the event codes of RFC 4733 §3.2 in place of the characters.
_EVENT_CODES = {"10": "*", "11": "#", "12": "A", "13": "B", "14": "C", "15": "D"}


def send_digit(call: CallMachine, digit: str, now: float) -> None:
    """Send a digit to a peer that has no telephone events; without an established call nothing is sent."""
    if call.dialog is None or not call.established:
        return
    info = call.dialog.request("INFO")
    info.headers.add("Content-Type", DTMF_TYPES[0])
    info.body = f"Signal={digit}\r\nDuration={DIGIT_MILLISECONDS}\r\n".encode()

    def on_response(response: Response | None, at: float) -> None:
        # A peer may refuse a digit without harm; only 481 says that it does not know the dialog (RFC 5057 §5.1).
        if response is not None and response.status == 481:
            call.lose(at)

    send_in_dialog(call, info, on_response, now)


def receive_info(call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    """Respond to an INFO of the peer, and emit `DigitReceived` if its body holds a digit."""
    request = transaction.request
    content_type = request.content_type or ""
    if request.body and content_type not in DTMF_TYPES:
        response = respond_to(request, 415, tag=dialog.local.tag, headers=[("Accept", ", ".join(DTMF_TYPES))])
        transaction.respond(call.core.add_common_headers(response), now)
        return
    call.core.respond(transaction, dialog, 200, now)
    digit = parse_digit(content_type, request.body) if request.body else None
    if digit is not None:
        call.core.events.append(DigitReceived(call, digit))


def parse_digit(content_type: str, body: bytes) -> str | None:
    """Return the digit, one of `0123456789*#ABCD`, or None for another signal such as a hook flash."""
    form = _RELAY if content_type == "application/dtmf-relay" else _PLAIN
    match = form.fullmatch(body)
    if match is None:
        return None
    signal = match[1].decode().upper()
    return _EVENT_CODES.get(signal, signal if len(signal) == 1 else None)
