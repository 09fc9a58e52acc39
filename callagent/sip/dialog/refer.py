"""Call transfer: REFER in both roles (RFC 3515, RFC 6665), and Replaces for attended transfers (RFC 3891, RFC 5589)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING

from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import TransferProgressed, TransferRequested, TransferState
from callagent.sip.dialog.requests import send_within
from callagent.sip.message import Address, Request, Response, Uri, reason_phrase
from callagent.sip.transaction import ServerTransaction, Timer

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall
from collections.abc import Sequence
from dataclasses import dataclass

from callagent.sip.message import Parameters, escape

_FRAGMENT = re.compile(rb"\s*SIP/2\.0 ([1-6][0-9]{2}) ?([^\r\n]*)", re.IGNORECASE)


class TransferInput(Enum):
    ACCEPT = "accept"
    """2xx to the REFER."""
    REFUSE = "refuse"
    NO_RESPONSE = "no response"
    NOTIFY_TRYING = "notify trying"
    NOTIFY_SUCCESS = "notify success"
    NOTIFY_FAILURE = "notify failure"
    TERMINATED = "terminated"
    """The subscription ended without a final status."""
    TIMEOUT = "timeout"


_S, _I = TransferState, TransferInput

# A NOTIFY may overtake the 202 (RFC 6665 §4.1.2.4), so REQUESTED takes all of them.
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


class TransferSender:
    """Our REFER and its implicit subscription."""

    def __init__(self) -> None:
        self._timer: Timer | None = None
        self._number = 0
        """CSeq of the REFER."""
        self._deadline = 0.0
        self.state: TransferState | None = None
        """None: nobody was referred yet."""

    def send(self, call: SipCall, dialog: Dialog, target: Uri, headers: Mapping[str, str], now: float) -> None:
        """Ask the peer to call `target`. A transfer that is under way has to end first."""
        if self.state is not None and not self.state.is_final:
            raise ValueError("A transfer is under way")
        request = dialog.request("REFER")
        request.headers.add("Refer-To", f"<{target}>")
        request.headers.add("Referred-By", f"<{dialog.local.uri}>")
        for name, value in headers.items():
            request.headers.add(name, value)
        self.state = TransferState.REQUESTED
        self._number = request.cseq.number
        self._deadline = now + call.wire.settings.transfer_limit
        self._limit(call, self._deadline)
        send_within(call, request, lambda response, at: self._heard(call, response, at), now)

    def notify(self, call: SipCall, request: Request, now: float) -> bool:
        """Take a NOTIFY in; False when nothing of ours is subscribed to."""
        event, _, parameters = (request.headers.get("Event") or "").lower().partition(";")
        if self.state is None or event.strip() != "refer":
            return False
        if self._is_of_another(parameters):
            return True
        fragment = _FRAGMENT.match(request.body)
        state = (request.headers.get("Subscription-State") or "").partition(";")[0].strip().lower()
        if fragment is not None and fragment[1] >= b"200":
            status = int(fragment[1])
            succeeded = status < 300
            outcome = TransferInput.NOTIFY_SUCCESS if succeeded else TransferInput.NOTIFY_FAILURE
            self._apply(call, outcome, status, fragment[2].decode("utf-8", "replace"), now)
        elif state == "terminated":
            self._apply(call, TransferInput.TERMINATED, 0, "the peer stopped telling", now)
        else:
            self._apply(call, TransferInput.NOTIFY_TRYING, int(fragment[1]) if fragment else 100, "Trying", now)
        return True

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _heard(self, call: SipCall, response: Response | None, now: float) -> None:
        if response is None:
            self._apply(call, TransferInput.NO_RESPONSE, 408, reason_phrase(408), now)
        elif response.status >= 300:
            self._apply(call, TransferInput.REFUSE, response.status, response.reason, now)
            if response.status == 481:
                call.lose(now)
        elif response.status >= 200:
            self._apply(call, TransferInput.ACCEPT, response.status, response.reason, now)

    def _apply(self, call: SipCall, event: TransferInput, status: int, reason: str, now: float) -> None:
        old = self.state
        state = None if old is None else TRANSFER_TABLE.get((old, event))
        if state is None:
            return
        self.state = state
        if state is not old:
            self.close()
        if state is TransferState.ACCEPTED:
            self._limit(call, min(now + call.wire.settings.notify_limit, self._deadline))
        elif state is TransferState.TRYING and old is not state:
            self._limit(call, self._deadline)
        call.wire.events.append(TransferProgressed(call, state, status, reason))

    def _is_of_another(self, parameters: str) -> bool:
        """Whether the event's `id` is that of an earlier REFER (RFC 3515 §2.4.6); many peers give none."""
        given = re.search(r"(?:^|;)\s*id\s*=\s*([0-9]{1,10})\s*(?:;|$)", parameters)
        return given is not None and int(given[1]) < self._number

    def _limit(self, call: SipCall, deadline: float) -> None:
        self._timer = call.wire.timers.at(
            deadline, lambda at: self._apply(call, TransferInput.TIMEOUT, 408, "no outcome was told", at)
        )


class TransferReceiver:
    """A REFER of the peer: accepted for the owner, who calls and tells the outcome."""

    def __init__(self) -> None:
        self._pending = False
        self._silent = False

    def receive(self, call: SipCall, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        request = transaction.request
        target = _refer_to(request)
        if target is None:
            call.wire.respond(transaction, dialog, 400, now)
        elif self._pending:
            call.wire.respond(transaction, dialog, 491, now)
        else:
            self._pending = True
            self._silent = (request.headers.get("Refer-Sub") or "").strip().lower().startswith("false")
            response = call.wire.response(request, dialog, 202)
            if self._silent:
                response.headers.add("Refer-Sub", "false")
            transaction.respond(response, now)
            self._notify(call, dialog, 100, "active;expires=60", now)
            call.wire.events.append(TransferRequested(call, target, request.headers))

    def report(self, call: SipCall, dialog: Dialog, status: int, now: float) -> None:
        """Tell the peer how it went; below 200 is progress."""
        if not self._pending:
            return
        final = status >= 200
        self._pending = not final
        self._notify(call, dialog, status, "terminated;reason=noresource" if final else "active;expires=60", now)

    def _notify(self, call: SipCall, dialog: Dialog, status: int, state: str, now: float) -> None:
        if self._silent:
            # The peer asked not to be told (RFC 4488).
            return
        request = dialog.request("NOTIFY")
        request.headers.add("Event", "refer")
        request.headers.add("Subscription-State", state)
        request.headers.add("Content-Type", "message/sipfrag;version=2.0")
        request.body = f"SIP/2.0 {status} {reason_phrase(status)}\r\n".encode()
        call.wire.request(request, dialog.next_hop(), _unheard, now)


def instead_of(call: SipCall, target: Uri) -> Uri:
    """The Refer-To of an attended transfer: `target` is asked for its call with us (RFC 5589 §7.1)."""
    if call.dialog is None or not call.established:
        raise ValueError("The other call is not established")
    return replace(target, headers=Replaces.of(call.dialog).uri_header)


def _refer_to(request: Request) -> Uri | None:
    values = request.headers.values("Refer-To")
    try:
        return Address.parse(values[0]).uri if len(values) == 1 else None
    except ValueError:
        return None


def _unheard(response: Response | None, now: float) -> None:
    """The outcome of a NOTIFY changes nothing here."""


_PLAIN = "-_.!~*'()"


@dataclass(frozen=True, slots=True)
class Replaces:
    call_id: str
    to_tag: str
    """Of the side that receives the header."""
    from_tag: str
    early_only: bool = False

    @classmethod
    def parse_single(cls, values: Sequence[str]) -> Replaces:
        """There may be one only (RFC 3891 §3)."""
        if len(values) != 1:
            raise ValueError("Replaces is not valid")
        call_id, separator, rest = values[0].strip().partition(";")
        parameters = Parameters.parse(separator + rest)
        to_tag, from_tag = parameters.get("to-tag"), parameters.get("from-tag")
        if not call_id or to_tag is None or from_tag is None:
            raise ValueError("Replaces is not valid")
        return cls(call_id.strip(), to_tag, from_tag, "early-only" in parameters)

    @classmethod
    def of(cls, dialog: Dialog) -> Replaces:
        """What takes our place in this dialog, as its peer reads it."""
        return cls(dialog.call_id, dialog.remote.tag or "", dialog.local.tag or "")

    def __str__(self) -> str:
        flag = ";early-only" if self.early_only else ""
        return f"{self.call_id};to-tag={self.to_tag};from-tag={self.from_tag}{flag}"

    @property
    def uri_header(self) -> str:
        """For the question-mark part of a Refer-To URI (RFC 5589 §7)."""
        return f"Replaces={escape(str(self), _PLAIN)}"
