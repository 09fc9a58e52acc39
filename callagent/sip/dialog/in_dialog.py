"""What the peer may ask within a call's dialog (RFC 3261 §12.2.2, §14.2, §15.1.2; RFC 3311, 6086, 6665)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from callagent.sip.dialog.call_states import CallState
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import DigitReceived
from callagent.sip.dialog.info_dtmf import DTMF_TYPES, parse_digit
from callagent.sip.dialog.requests import dialog_of, send_within
from callagent.sip.message import Response, respond_to
from callagent.sip.transaction import ServerTransaction

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall


def receive_in_dialog(call: SipCall, transaction: ServerTransaction, now: float) -> None:
    """A request in the call's dialog, of a method that we allow."""
    dialog = dialog_of(call, transaction.request)
    if dialog is None:
        call.wire.reply(transaction, 481, now)
        return
    if not dialog.is_in_order(transaction.request):
        call.wire.respond(transaction, dialog, 500, now)
        return
    dialog.peer = transaction.source
    handler = _HANDLERS.get(transaction.request.method)
    if handler is None:
        # OPTIONS, as a sign of life.
        call.wire.respond(transaction, dialog, 200, now)
    else:
        handler(call, dialog, transaction, now)


def send_digit(call: SipCall, digit: str, now: float) -> None:
    """Tell a key press by INFO, for peers without telephone events."""
    if call.dialog is None or not call.established:
        return
    info = call.dialog.request("INFO")
    info.headers.add("Content-Type", DTMF_TYPES[0])
    info.body = f"Signal={digit}\r\nDuration=160\r\n".encode()

    def heard(response: Response | None, at: float) -> None:
        # A digit that the peer does not take is nobody's business, but a call that it does not know is over.
        if response is not None and response.status == 481:
            call.lose(at)

    send_within(call, info, heard, now)


def _receive_bye(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    bye = transaction.request
    call.wire.respond(transaction, dialog, 200, now)
    call.receive_bye(bye, now)


def _receive_offer(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    if call.established:
        call.reoffers.receive(call, dialog, transaction, now)
    elif call.state in (CallState.LEAVING, CallState.ENDED):
        call.wire.respond(transaction, dialog, 481, now)
    elif transaction.request.method == "UPDATE" and (call.outgoing or not transaction.request.body):
        call.reoffers.receive(call, dialog, transaction, now)
    elif transaction.request.method == "UPDATE" and call.state is CallState.INCOMING:
        # The INVITE's own offer has no answer yet (RFC 3311 §5.2).
        response = respond_to(transaction.request, 500, tag=dialog.local.tag, headers=[("Retry-After", "2")])
        transaction.respond(call.wire.finish(response), now)
    else:
        # Before its ACK the first offer and answer are not over (RFC 3261 §14.2).
        call.wire.respond(transaction, dialog, 491, now)


def _receive_info(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    request = transaction.request
    kind = request.content_type or ""
    if request.body and kind not in DTMF_TYPES:
        response = respond_to(request, 415, tag=dialog.local.tag, headers=[("Accept", ", ".join(DTMF_TYPES))])
        transaction.respond(call.wire.finish(response), now)
        return
    call.wire.respond(transaction, dialog, 200, now)
    digit = parse_digit(kind, request.body) if request.body else None
    if digit is not None:
        call.wire.events.append(DigitReceived(call, digit))


def _receive_notify(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    known = call.transfer.notify(call, transaction.request, now)
    call.wire.respond(transaction, dialog, 200 if known else 481, now)


def _receive_refer(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    if call.established:
        call.transfer_request.receive(call, dialog, transaction, now)
    else:
        call.wire.respond(transaction, dialog, 603, now)


def _receive_prack(call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
    call.ringing.receive_prack(call, dialog, transaction, now)


_HANDLERS: dict[str, Callable[[SipCall, Dialog, ServerTransaction, float], None]] = {
    "BYE": _receive_bye,
    "INFO": _receive_info,
    "INVITE": _receive_offer,
    "NOTIFY": _receive_notify,
    "PRACK": _receive_prack,
    "REFER": _receive_refer,
    "UPDATE": _receive_offer,
}
