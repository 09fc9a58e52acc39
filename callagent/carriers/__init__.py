"""Media-stream carriers: their dialects, signatures and call control. Twilio's, and that of our own page."""

from callagent.carriers.browser import BrowserDialect
from callagent.carriers.control import CallEnded, ControlFailed, TwilioControl, TwilioSettings
from callagent.carriers.signature import SIGNATURE_HEADER, SignatureChecker
from callagent.carriers.tokens import TokenTable, TooManyTokens
from callagent.carriers.twilio import (
    MAX_MESSAGE_BYTES,
    DialectError,
    DigitReceived,
    MarkReached,
    MediaReceived,
    StreamConnected,
    StreamEvent,
    StreamStarted,
    StreamState,
    StreamStopped,
    TwilioDialect,
)
from callagent.carriers.twiml import HANG_UP, NOTHING, DialTarget, conference, connect, dial, greet, refer, reject

__all__ = [
    "HANG_UP",
    "MAX_MESSAGE_BYTES",
    "NOTHING",
    "SIGNATURE_HEADER",
    "BrowserDialect",
    "CallEnded",
    "ControlFailed",
    "DialTarget",
    "DialectError",
    "DigitReceived",
    "MarkReached",
    "MediaReceived",
    "SignatureChecker",
    "StreamConnected",
    "StreamEvent",
    "StreamStarted",
    "StreamState",
    "StreamStopped",
    "TokenTable",
    "TooManyTokens",
    "TwilioControl",
    "TwilioDialect",
    "TwilioSettings",
    "conference",
    "connect",
    "dial",
    "greet",
    "refer",
    "reject",
]
