"""The dialect of our own page at `/phone`: JSON text with μ-law audio in base64."""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from callagent.audio import DIGITS
from callagent.carriers.dialect import (
    PCMU,
    DialectError,
    DigitReceived,
    HeardLedger,
    MarkReached,
    MediaReceived,
    Message,
    ReplyDue,
    StreamEvent,
    StreamStopped,
    decode_json,
)

_MARK = re.compile(r"[a-z0-9]{1,16}")
MAX_PAYLOAD: Final = 8000
"""Bytes of μ-law in one message: a second of audio."""


class _Fields(msgspec.Struct):
    event: str
    payload: bytes = b""
    name: str = ""
    digit: str = ""
    at: float = 0.0


_decode = msgspec.json.Decoder(_Fields).decode


class BrowserDialect:
    """Implements `CarrierDialect` for one page. The page measures the delay to us by a `ping` with its own time."""

    inbound = outbound = PCMU
    ledger = HeardLedger.MARKS

    def receive_message(self, message: Message) -> Sequence[StreamEvent]:
        """Return the event of a message. Raises `DialectError` only."""
        fields = decode_json(_decode, message)
        match fields.event:
            case "media" if 0 < len(fields.payload) <= MAX_PAYLOAD:
                return (MediaReceived(fields.payload),)
            case "mark" if _MARK.fullmatch(fields.name):
                return (MarkReached(fields.name),)
            case "digit" if len(fields.digit) == 1 and fields.digit in DIGITS:
                return (DigitReceived(fields.digit),)
            case "stop":
                return (StreamStopped(),)
            case "ping":
                return (ReplyDue(self.encode_notice("pong", at=fields.at)),)
        raise DialectError(f"'{fields.event[:20]}' is not valid")

    def encode_media(self, payload: bytes) -> Sequence[Message]:
        return (f'{{"event":"media","payload":"{base64.b64encode(payload).decode("ascii")}"}}',)

    def encode_mark(self, name: str) -> Sequence[Message]:
        return (f'{{"event":"mark","name":"{name}"}}',)

    def encode_clear(self) -> Sequence[Message]:
        return ('{"event":"clear"}',)

    def encode_notice(self, event: str, **data: Any) -> str:
        """Write anything else that the page shows: that it rings, captions, the end."""
        return msgspec.json.encode({"event": event, **data}).decode()
