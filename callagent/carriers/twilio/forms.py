"""What the fields of Twilio's webhooks say: who calls whom, and how a transfer went."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from callagent.call_info import CallInfo
from callagent.carriers.calls import Refused
from callagent.legs import TransferOutcome, TransferStatus

Form = Mapping[str, str]

_CALL_SID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIP_HEADER: Final = "SipHeader_"
# Twilio writes withheld numbers as words, or as the words' digits on a keypad.
_WITHHELD = frozenset(
    {"", "anonymous", "restricted", "blocked", "unknown", "unavailable"}
    | {"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"}
)
_STATUSES: Final[Mapping[str, TransferStatus]] = {
    "completed": TransferStatus.SUCCEEDED,
    "answered": TransferStatus.SUCCEEDED,
    "busy": TransferStatus.REFUSED,
    "no-answer": TransferStatus.NO_ANSWER,
    "failed": TransferStatus.FAILED,
    "canceled": TransferStatus.CALLER_GONE,
}
# Of a call that we placed into a conference: one that ended without an answer has not failed by the caller's leaving.
_INVITED_STATUSES: Final[Mapping[str, TransferStatus]] = {
    **_STATUSES,
    "completed": TransferStatus.FAILED,
    "canceled": TransferStatus.NO_ANSWER,
}


def read_call_sid(form: Form, field: str, account_sid: str) -> str:
    """Return the identifier of the call in a field. Raises `Refused` also for a webhook of another account."""
    call_sid = form.get(field, "")
    if not _CALL_SID.fullmatch(call_sid):
        raise Refused(f"the webhook has no valid {field}")
    if form.get("AccountSid", account_sid) != account_sid:
        raise Refused("the webhook is another account's")
    return call_sid


def read_call_info(call_sid: str, form: Form) -> CallInfo:
    """Return who calls whom; a withheld number is None."""
    caller = _party(form.get("From", ""))
    return CallInfo(
        call_id=uuid4().hex,
        direction="inbound",
        caller=None if caller.lower() in _WITHHELD else caller,
        callee=_party(form.get("To", "")) or None,
        wire="twilio",
        started=datetime.now(UTC),
        headers={name.removeprefix(_SIP_HEADER): form[name] for name in form if name.startswith(_SIP_HEADER + "X-")},
        peer_call_id=call_sid,
    )


def is_over_sip(form: Form) -> bool:
    """Whether Twilio has the caller on SIP, and can ask the caller's own system to call somebody else."""
    return form.get("From", "").lower().startswith(("sip:", "sips:")) or "SipCallId" in form


def is_end_of_dial(form: Form) -> bool:
    """Whether the report is of the end of `<Dial>` or `<Refer>`; otherwise it is of the dialled party's own call."""
    dialled = form.get("DialCallStatus") or form.get("ReferCallStatus")
    return dialled is not None or "ReferSipResponseCode" in form


def read_dial_outcome(form: Form) -> TransferOutcome:
    """Return what the end of `<Dial>` or `<Refer>` means for the caller."""
    dialled = form.get("DialCallStatus") or form.get("ReferCallStatus") or ""
    # The caller's own call is over: they have hung up while it rang, or when the two had spoken.
    gone = form.get("CallStatus") == "completed" and "DialCallStatus" in form
    status = TransferStatus.CALLER_GONE if gone else _STATUSES.get(dialled, TransferStatus.FAILED)
    codes = ("DialSipResponseCode", "ReferSipResponseCode", "NotifySipResponseCode")
    return TransferOutcome(status, " ".join(filter(None, (dialled, *(form.get(field) for field in codes)))))


def read_invited_outcome(form: Form) -> TransferOutcome | None:
    """Return what became of a call into a conference; None: it is still ringing."""
    status = form.get("CallStatus", "")
    if status == "in-progress":
        return TransferOutcome(TransferStatus.SUCCEEDED, "answered")
    found = _INVITED_STATUSES.get(status)
    return None if found is None else TransferOutcome(found, status)


def _party(address: str) -> str:
    """The number, or the user part of a SIP URI."""
    scheme, colon, rest = address.strip().partition(":")
    if colon and scheme.lower() in ("sip", "sips"):
        return rest.partition("@")[0].partition(";")[0]
    return address.strip()
