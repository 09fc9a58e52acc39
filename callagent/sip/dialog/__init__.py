"""Dialogs and calls (RFC 3261 §12 to §15)."""

from callagent.sip.dialog.call import SipCall
from callagent.sip.dialog.core import EXTENSIONS, UNPROVEN, UserAgentCore, UserAgentSettings
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import (
    NO_HEADERS,
    Call,
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
from callagent.sip.dialog.invite import CallPath
from callagent.sip.dialog.refer import Replaces
from callagent.sip.dialog.session_timer import is_too_short

__all__ = [
    "EXTENSIONS",
    "NO_HEADERS",
    "UNPROVEN",
    "Call",
    "CallAnswered",
    "CallClosed",
    "CallConfirmed",
    "CallEnded",
    "CallPath",
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
    "UserAgentCore",
    "UserAgentSettings",
    "is_too_short",
]
