"""SIP signalling: a user agent without I/O, and its endpoint on UDP."""

from callagent.sip.accepting import accept_connections
from callagent.sip.address import Address
from callagent.sip.authenticator import Account, DigestSettings
from callagent.sip.certificate import certificate_end
from callagent.sip.connections import StreamLimits
from callagent.sip.dialling import Way
from callagent.sip.dialog import Dialog, transport_of
from callagent.sip.digest import Credentials
from callagent.sip.endpoint import Endpoint
from callagent.sip.endpoint_call import EndpointCall
from callagent.sip.events import (
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
from callagent.sip.headers import Headers
from callagent.sip.lookup import Lookup, LookupFailed
from callagent.sip.media_policy import Encryption, MediaPolicy, NotAcceptable
from callagent.sip.message import MalformedMessage, Request, Response, parse_message
from callagent.sip.negotiation import FRAME_TIME, Agreement, Negotiation
from callagent.sip.passport import Passport
from callagent.sip.rate_limit import RateLimit
from callagent.sip.reason import Reason, parse_reasons
from callagent.sip.timers import TimerSettings
from callagent.sip.tls import TlsContexts, TlsSettings
from callagent.sip.trace import Trace, TracedMessage
from callagent.sip.transaction_layer import Hop
from callagent.sip.trunks import Trunks, TrunkSettings, trunk_metrics
from callagent.sip.udp import route_to
from callagent.sip.uri import Uri, escape_user, host_reference
from callagent.sip.user_agent import UserAgent
from callagent.sip.wire import UNPROVEN, UserAgentSettings

__all__ = [
    "FRAME_TIME",
    "UNPROVEN",
    "Account",
    "Address",
    "Agreement",
    "CallAnswered",
    "CallClosed",
    "CallConfirmed",
    "CallEnded",
    "CallReplaced",
    "CallRinging",
    "Credentials",
    "Dialog",
    "DigestSettings",
    "DigitReceived",
    "Encryption",
    "EndCause",
    "Endpoint",
    "EndpointCall",
    "Event",
    "Headers",
    "Hop",
    "InviteReceived",
    "Lookup",
    "LookupFailed",
    "MalformedMessage",
    "MediaPolicy",
    "Negotiation",
    "NotAcceptable",
    "OfferAnswered",
    "OfferReceived",
    "OfferRefused",
    "Passport",
    "RateLimit",
    "Reason",
    "Request",
    "Response",
    "StreamLimits",
    "TimerSettings",
    "TlsContexts",
    "TlsSettings",
    "Trace",
    "TracedMessage",
    "TransferProgressed",
    "TransferRequested",
    "TransferState",
    "TrunkSettings",
    "Trunks",
    "Uri",
    "UserAgent",
    "UserAgentSettings",
    "Way",
    "accept_connections",
    "certificate_end",
    "escape_user",
    "host_reference",
    "parse_message",
    "parse_reasons",
    "route_to",
    "transport_of",
    "trunk_metrics",
]
