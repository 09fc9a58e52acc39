"""Dialogs and calls (RFC 3261 §12 to §15)."""

from callagent.sip.dialog.call import NO_HEADERS, SipCall
from callagent.sip.dialog.core import EXTENSIONS, UNPROVEN, UserAgentSettings, Wire
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import (
    CallAnswered,
    CallClosed,
    CallConfirmed,
    CallEnded,
    CallReplaced,
    CallRinging,
    DigitReceived,
    EndCause,
    Event,
    InviteReceived,
    OfferAnswered,
    OfferReceived,
    OfferRefused,
    TransferProgressed,
    TransferRequested,
    TransferState,
)
from callagent.sip.dialog.in_dialog import receive_in_dialog, send_digit
from callagent.sip.dialog.refer import Replaces
from callagent.sip.dialog.session_timer import too_short
from callagent.sip.dialog.uac import Way

__all__ = [
    "EXTENSIONS",
    "NO_HEADERS",
    "UNPROVEN",
    "CallAnswered",
    "CallClosed",
    "CallConfirmed",
    "CallEnded",
    "CallReplaced",
    "CallRinging",
    "Dialog",
    "DigitReceived",
    "EndCause",
    "Event",
    "InviteReceived",
    "OfferAnswered",
    "OfferReceived",
    "OfferRefused",
    "Replaces",
    "SipCall",
    "TransferProgressed",
    "TransferRequested",
    "TransferState",
    "UserAgentSettings",
    "Way",
    "Wire",
    "receive_in_dialog",
    "send_digit",
    "too_short",
]
