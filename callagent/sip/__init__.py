"""SIP signalling: a user agent without I/O, and its endpoint on UDP."""

from callagent.sip.address import Address
from callagent.sip.endpoint import Endpoint, EndpointCall, LookupFailed
from callagent.sip.events import (
    CallAnswered,
    CallClosed,
    CallConfirmed,
    CallEnded,
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
from callagent.sip.message import Headers, MalformedMessage, Request, Response, parse_message
from callagent.sip.negotiation import Agreement, Negotiation, NotAcceptable
from callagent.sip.timers import TimerSettings
from callagent.sip.transaction_layer import Hop
from callagent.sip.uri import Uri, escape_user, host_reference
from callagent.sip.user_agent import UserAgent
from callagent.sip.wire import UserAgentSettings

__all__ = [
    "Address",
    "Agreement",
    "CallAnswered",
    "CallClosed",
    "CallConfirmed",
    "CallEnded",
    "CallRinging",
    "DigitReceived",
    "EndCause",
    "Endpoint",
    "EndpointCall",
    "Event",
    "Headers",
    "Hop",
    "InviteReceived",
    "LookupFailed",
    "MalformedMessage",
    "Negotiation",
    "NotAcceptable",
    "OfferAnswered",
    "OfferReceived",
    "OfferRefused",
    "Request",
    "Response",
    "TimerSettings",
    "TransferProgressed",
    "TransferRequested",
    "TransferState",
    "Uri",
    "UserAgent",
    "UserAgentSettings",
    "escape_user",
    "host_reference",
    "parse_message",
]
