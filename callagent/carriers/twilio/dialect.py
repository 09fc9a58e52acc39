"""Twilio's media-stream dialect: JSON text with μ-law audio in base64.

Carriers that copied it (SignalWire, fonoster) speak the same messages.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final

import msgspec

from callagent.audio import DIGITS
from callagent.carriers import protocol as stream_protocol

# Identifiers are written back into messages and logs: nothing in them may need escaping.
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")


class StreamState(Enum):
    """Which message of the stream may come next."""

    OPENED = "opened"
    CONNECTED = "connected"
    STREAMING = "streaming"
    STOPPED = "stopped"


# (state, message) -> state. A missing pair is a protocol error; after `stop` nothing may come. Kinds of messages
# that occur in no pair are ignored, because Twilio adds new ones.
TRANSITIONS: Final[Mapping[tuple[StreamState, str], StreamState]] = {
    (StreamState.OPENED, "connected"): StreamState.CONNECTED,
    (StreamState.CONNECTED, "start"): StreamState.STREAMING,
    (StreamState.STREAMING, "media"): StreamState.STREAMING,
    (StreamState.STREAMING, "mark"): StreamState.STREAMING,
    (StreamState.STREAMING, "dtmf"): StreamState.STREAMING,
    (StreamState.STREAMING, "stop"): StreamState.STOPPED,
}
_MULAW = ("audio/x-mulaw", "8000", "1")
_KNOWN_EVENTS = frozenset(message for _, message in TRANSITIONS)


class _Format(msgspec.Struct):
    encoding: str = ""
    sampleRate: int | str = 0  # noqa: N815
    channels: int | str = 0


class _Start(msgspec.Struct):
    callSid: str  # noqa: N815
    accountSid: str = ""  # noqa: N815
    streamSid: str = ""  # noqa: N815
    customParameters: dict[str, str] = {}  # noqa: N815
    mediaFormat: _Format | None = None  # noqa: N815


class _Media(msgspec.Struct):
    payload: bytes
    track: str = "inbound"


class _Mark(msgspec.Struct):
    name: str


class _Digit(msgspec.Struct):
    digit: str


class _Fields(msgspec.Struct):
    event: str
    streamSid: str = ""  # noqa: N815
    protocol: str = ""
    start: _Start | None = None
    media: _Media | None = None
    mark: _Mark | None = None
    dtmf: _Digit | None = None


_decode = msgspec.json.Decoder(_Fields).decode


class TwilioDialect:
    """Implements `CarrierDialect` for one media stream, whose messages have to follow `TRANSITIONS`."""

    inbound = outbound = stream_protocol.PCMU
    ledger = stream_protocol.HeardLedger.MARKS

    def __init__(self) -> None:
        self.state = StreamState.OPENED
        self.stream_id = ""

    def receive_message(self, message: stream_protocol.Message) -> Sequence[stream_protocol.StreamEvent]:
        """Return the events of a message; unknown kinds of messages have none. Raises `DialectError` only."""
        fields = stream_protocol.decode_json(_decode, message)
        if fields.event not in _KNOWN_EVENTS:
            return ()
        self._advance(fields.event)
        if self.stream_id and fields.streamSid not in ("", self.stream_id):
            raise stream_protocol.DialectError("the message belongs to another stream")
        event = _READERS[fields.event](self, fields)
        return () if event is None else (event,)

    def encode_media(self, payload: bytes) -> Sequence[stream_protocol.Message]:
        encoded = base64.b64encode(payload).decode("ascii")
        return (f'{{"event":"media","streamSid":"{self.stream_id}","media":{{"payload":"{encoded}"}}}}',)

    def encode_mark(self, name: str) -> Sequence[stream_protocol.Message]:
        # The name is ours: plain characters, nothing to escape.
        return (f'{{"event":"mark","streamSid":"{self.stream_id}","mark":{{"name":"{name}"}}}}',)

    def encode_clear(self) -> Sequence[stream_protocol.Message]:
        # Twilio returns the marks of what it drops at once, as if it had been played: CarrierMedia forgets them first.
        return (f'{{"event":"clear","streamSid":"{self.stream_id}"}}',)

    def _advance(self, event: str) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise stream_protocol.DialectError(f"'{event}' may not come while the stream is {self.state.value}")
        self.state = after

    def _read_start(self, fields: _Fields) -> stream_protocol.StreamEvent:
        start = fields.start
        if start is None:
            raise stream_protocol.DialectError("'start' without its contents")
        stream_id = start.streamSid or fields.streamSid
        for identifier in (stream_id, start.callSid):
            if not _IDENTIFIER.fullmatch(identifier):
                raise stream_protocol.DialectError("'start' without valid streamSid and callSid")
        media = start.mediaFormat
        if media and (media.encoding, str(media.sampleRate), str(media.channels)) != _MULAW:
            raise stream_protocol.DialectError("the stream is not μ-law at 8000 Hz with one channel")
        self.stream_id = stream_id
        return stream_protocol.StreamStarted(stream_id, start.callSid, start.accountSid, start.customParameters)

    def _read_media(self, fields: _Fields) -> stream_protocol.StreamEvent | None:
        if fields.media is None:
            raise stream_protocol.DialectError("'media' without its contents")
        # A stream of both tracks would tell us our own audio as well.
        if fields.media.track != "inbound":
            return None
        return stream_protocol.MediaReceived(fields.media.payload)

    def _read_mark(self, fields: _Fields) -> stream_protocol.StreamEvent:
        if fields.mark is None:
            raise stream_protocol.DialectError("'mark' without its contents")
        return stream_protocol.MarkReached(fields.mark.name)

    def _read_digit(self, fields: _Fields) -> stream_protocol.StreamEvent:
        if fields.dtmf is None or len(fields.dtmf.digit) != 1 or fields.dtmf.digit not in DIGITS:
            raise stream_protocol.DialectError("'dtmf' without a valid digit")
        return stream_protocol.DigitReceived(fields.dtmf.digit)


_READERS: Final[Mapping[str, Callable[[TwilioDialect, _Fields], stream_protocol.StreamEvent | None]]] = {
    "connected": lambda _, fields: stream_protocol.StreamConnected(fields.protocol),
    "start": TwilioDialect._read_start,
    "media": TwilioDialect._read_media,
    "mark": TwilioDialect._read_mark,
    "dtmf": TwilioDialect._read_digit,
    "stop": lambda _, __: stream_protocol.StreamStopped(),
}
