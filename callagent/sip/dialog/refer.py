"""Call transfer: REFER in both roles (RFC 3515, RFC 6665), and Replaces for attended transfers (RFC 3891, RFC 5589)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from callagent.sip.dialog.call_machine import CallMachine, ignore_response, send_in_dialog
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import Call, TransferProgressed, TransferRequested, TransferState
from callagent.sip.message import Address, Parameters, Request, Response, Uri, escape, reason_phrase
from callagent.sip.transaction_layer import ServerTransaction
from callagent.sip.transaction_machines import Timer

_FRAGMENT = re.compile(rb"\s*SIP/2\.0 ([1-6][0-9]{2}) ?([^\r\n]*)", re.IGNORECASE)


class TransferInput(Enum):
    ACCEPT = "accept"
    """The REFER has a 2xx."""
    REFUSE = "refuse"
    """The REFER has a final response other than 2xx."""
    NO_RESPONSE = "no response"
    NOTIFY_TRYING = "notify trying"
    NOTIFY_SUCCESS = "notify success"
    NOTIFY_FAILURE = "notify failure"
    TERMINATED = "terminated"
    """The subscription ended without a final status."""
    TIMEOUT = "timeout"


_S, _I = TransferState, TransferInput

# A NOTIFY may overtake the 202 (RFC 6665 §4.1.2.4), so REQUESTED has a row for each kind of NOTIFY.
TRANSFER_TABLE: dict[tuple[TransferState, TransferInput], TransferState] = {
    (_S.REQUESTED, _I.ACCEPT): _S.ACCEPTED,
    (_S.REQUESTED, _I.REFUSE): _S.REFUSED,
    (_S.REQUESTED, _I.NO_RESPONSE): _S.FAILED,
    (_S.REQUESTED, _I.NOTIFY_TRYING): _S.TRYING,
    (_S.REQUESTED, _I.NOTIFY_SUCCESS): _S.SUCCEEDED,
    (_S.REQUESTED, _I.NOTIFY_FAILURE): _S.FAILED,
    (_S.REQUESTED, _I.TERMINATED): _S.FAILED,
    (_S.REQUESTED, _I.TIMEOUT): _S.FAILED,
    (_S.ACCEPTED, _I.NOTIFY_TRYING): _S.TRYING,
    (_S.ACCEPTED, _I.NOTIFY_SUCCESS): _S.SUCCEEDED,
    (_S.ACCEPTED, _I.NOTIFY_FAILURE): _S.FAILED,
    (_S.ACCEPTED, _I.TERMINATED): _S.FAILED,
    (_S.ACCEPTED, _I.TIMEOUT): _S.NO_ANSWER,
    (_S.TRYING, _I.REFUSE): _S.REFUSED,
    (_S.TRYING, _I.NOTIFY_TRYING): _S.TRYING,
    (_S.TRYING, _I.NOTIFY_SUCCESS): _S.SUCCEEDED,
    (_S.TRYING, _I.NOTIFY_FAILURE): _S.FAILED,
    (_S.TRYING, _I.TERMINATED): _S.FAILED,
    (_S.TRYING, _I.TIMEOUT): _S.NO_ANSWER,
}


class ReferSender:
    """The latest REFER that we sent, and the subscription to its outcome."""

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._cseq = 0
        """The CSeq number of the latest REFER."""
        self._deadline = 0.0
        self.state: TransferState | None = None
        """None until the first REFER."""

    def send(self, call: CallMachine, dialog: Dialog, target: Uri, headers: Mapping[str, str], now: float) -> None:
        """Ask the peer to call `target`. Raises `ValueError` while an earlier transfer has no outcome."""
        if self.state is not None and not self.state.is_final:
            raise ValueError("A transfer is under way: wait for its outcome")
        request = dialog.request("REFER")
        request.headers.add("Refer-To", f"<{target}>")
        request.headers.add("Referred-By", f"<{dialog.local.uri}>")
        for name, value in headers.items():
            request.headers.add(name, value)
        self.state = TransferState.REQUESTED
        self._cseq = request.cseq.number
        self._deadline = now + call.core.settings.transfer_limit
        self._start_timer(call, self._deadline)
        send_in_dialog(call, request, lambda response, at: self._receive(call, response, at), now)

    def receive_notify(self, call: CallMachine, request: Request, now: float) -> bool:
        """Apply a NOTIFY of the peer; False if it belongs to no subscription of ours."""
        event, _, parameters = (request.headers.get("Event") or "").lower().partition(";")
        if self.state is None or event.strip() != "refer":
            return False
        if self._is_for_earlier_refer(parameters):
            return True
        fragment = _FRAGMENT.match(request.body)
        subscription = (request.headers.get("Subscription-State") or "").partition(";")[0].strip().lower()
        # A final status is the outcome, even if Subscription-State still says `active`.
        if fragment is not None and fragment[1] >= b"200":
            status = int(fragment[1])
            succeeded = status < 300
            outcome = TransferInput.NOTIFY_SUCCESS if succeeded else TransferInput.NOTIFY_FAILURE
            self._apply(call, outcome, status, fragment[2].decode("utf-8", "replace"), now)
        elif subscription == "terminated":
            self._apply(call, TransferInput.TERMINATED, 0, "the peer ended it without an outcome", now)
        else:
            self._apply(call, TransferInput.NOTIFY_TRYING, int(fragment[1]) if fragment else 100, "Trying", now)
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _receive(self, call: CallMachine, response: Response | None, now: float) -> None:
        """Handle a response to the REFER."""
        if response is None:
            self._apply(call, TransferInput.NO_RESPONSE, 408, reason_phrase(408), now)
        elif response.status >= 300:
            self._apply(call, TransferInput.REFUSE, response.status, response.reason, now)
            if response.status == 481:
                call.lose(now)
        elif response.status >= 200:
            self._apply(call, TransferInput.ACCEPT, response.status, response.reason, now)

    def _apply(self, call: CallMachine, event: TransferInput, status: int, reason: str, now: float) -> None:
        """Apply one input to the table, set the deadline of the new state, and emit the progress."""
        old = self.state
        state = None if old is None else TRANSFER_TABLE.get((old, event))
        if state is None:
            return
        self.state = state
        # One timer runs at a time: `notify_limit` until the first NOTIFY, then the limit of the whole transfer.
        if state is not old:
            self.close()
        if state is TransferState.ACCEPTED:
            self._start_timer(call, min(now + call.core.settings.notify_limit, self._deadline))
        elif state is TransferState.TRYING and old is not state:
            self._start_timer(call, self._deadline)
        call.core.events.append(TransferProgressed(call, state, status, reason))

    def _is_for_earlier_refer(self, parameters: str) -> bool:
        """Whether the event's `id` is the CSeq of an earlier REFER (RFC 3515 §2.4.6); many peers send none."""
        number = re.search(r"(?:^|;)\s*id\s*=\s*([0-9]{1,10})\s*(?:;|$)", parameters)
        return number is not None and int(number[1]) < self._cseq

    def _start_timer(self, call: CallMachine, deadline: float) -> None:
        def expire(at: float) -> None:
            self._apply(call, TransferInput.TIMEOUT, 408, "the peer reported no outcome in time", at)

        self._timer = call.core.timers.at(deadline, expire)


class ReferReceiver:
    """The latest REFER of the peer; the owner of the call calls the target and reports the outcome."""

    def __init__(self) -> None:
        self._pending = False
        self._is_silent = False
        """Whether the peer asked not to be notified (Refer-Sub: false, RFC 4488)."""

    def receive(self, call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        """Respond to a REFER, and emit `TransferRequested` if it is accepted."""
        request = transaction.request
        target = _refer_to(request)
        if target is None:
            call.core.respond(transaction, dialog, 400, now)
        elif self._pending:
            call.core.respond(transaction, dialog, 491, now)
        else:
            self._pending = True
            self._is_silent = (request.headers.get("Refer-Sub") or "").strip().lower().startswith("false")
            response = call.core.make_response(request, dialog, 202)
            if self._is_silent:
                response.headers.add("Refer-Sub", "false")
            transaction.respond(response, now)
            # The first NOTIFY must follow at once (RFC 3515 §2.4.4).
            self._notify(call, dialog, 100, "active;expires=60", now)
            call.core.events.append(TransferRequested(call, target, request.headers))

    def report(self, call: CallMachine, dialog: Dialog, status: int, now: float) -> None:
        """Notify the peer of the outcome; a status below 200 is progress."""
        if not self._pending:
            return
        final = status >= 200
        self._pending = not final
        self._notify(call, dialog, status, "terminated;reason=noresource" if final else "active;expires=60", now)

    def _notify(self, call: CallMachine, dialog: Dialog, status: int, subscription: str, now: float) -> None:
        if self._is_silent:
            return
        request = dialog.request("NOTIFY")
        request.headers.add("Event", "refer")
        request.headers.add("Subscription-State", subscription)
        request.headers.add("Content-Type", "message/sipfrag;version=2.0")
        request.body = f"SIP/2.0 {status} {reason_phrase(status)}\r\n".encode()
        call.core.send_request(request, dialog.next_hop(), ignore_response, now)


def _refer_to(request: Request) -> Uri | None:
    """Return the URI of Refer-To; None unless there is exactly one (RFC 3515 §2.4.2)."""
    values = request.headers.values("Refer-To")
    try:
        return Address.parse(values[0]).uri if len(values) == 1 else None
    except ValueError:
        return None


_UNESCAPED = "-_.!~*'()"
"""Characters that a header of a URI holds as they are, besides letters and digits (RFC 3261 §25.1, `unreserved`)."""


@dataclass(frozen=True, slots=True)
class Replaces:
    """The Replaces header field: the dialog that a new call takes the place of (RFC 3891 §6.1)."""

    call_id: str
    to_tag: str
    """The tag of the side that receives the header field."""
    from_tag: str
    early_only: bool = False

    @classmethod
    def parse_single(cls, values: Sequence[str]) -> Replaces:
        """Parse the only value that a request may have (RFC 3891 §3). Raises `ValueError`."""
        if len(values) != 1:
            raise ValueError("Replaces occurs more than once")
        call_id, separator, rest = values[0].strip().partition(";")
        parameters = Parameters.parse(separator + rest)
        to_tag, from_tag = parameters.get("to-tag"), parameters.get("from-tag")
        if not call_id or to_tag is None or from_tag is None:
            raise ValueError("Replaces is not valid")
        return cls(call_id.strip(), to_tag, from_tag, "early-only" in parameters)

    @classmethod
    def of(cls, dialog: Dialog) -> Replaces:
        """Return the field with which a third party takes our place in this dialog."""
        return cls(dialog.call_id, dialog.remote.tag or "", dialog.local.tag or "")

    def __str__(self) -> str:
        flag = ";early-only" if self.early_only else ""
        return f"{self.call_id};to-tag={self.to_tag};from-tag={self.from_tag}{flag}"

    @property
    def uri_header(self) -> str:
        """The field as a header of a Refer-To URI (RFC 5589 §7)."""
        return f"Replaces={escape(str(self), _UNESCAPED)}"


def attended_target(consultation: Call, target: Uri) -> Uri:
    """Return the Refer-To of an attended transfer, which replaces our call with the target (RFC 5589 §7.1)."""
    if consultation.dialog is None or not consultation.is_established:
        raise ValueError("The call with the transfer target is not established")
    return replace(target, headers=Replaces.of(consultation.dialog).uri_header)
