"""Twilio's media-stream dialect, without I/O: text in, events out; verbs give the text to send.

Carriers that copied it (SignalWire, fonoster) speak the same messages.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final

import msgspec

from callagent.audio import DIGITS
from callagent.carriers.dialect import (
    DialectError,
    DigitReceived,
    MarkReached,
    MediaReceived,
    StreamConnected,
    StreamEvent,
    StreamStarted,
    StreamStopped,
    read_message,
)

# Identifiers are written back into messages and logs: nothing in them may need escaping.
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]{1,64}")


class StreamState(Enum):
    OPENED = "opened"
    CONNECTED = "connected"
    STREAMING = "streaming"
    STOPPED = "stopped"


# (state, message) -> state. What is not here is a protocol error; after `stop` nothing may come.
TRANSITIONS: Final[Mapping[tuple[StreamState, str], StreamState]] = {
    (StreamState.OPENED, "connected"): StreamState.CONNECTED,
    (StreamState.CONNECTED, "start"): StreamState.STREAMING,
    (StreamState.STREAMING, "media"): StreamState.STREAMING,
    (StreamState.STREAMING, "mark"): StreamState.STREAMING,
    (StreamState.STREAMING, "dtmf"): StreamState.STREAMING,
    (StreamState.STREAMING, "stop"): StreamState.STOPPED,
}
_MULAW = ("audio/x-mulaw", "8000", "1")
_KNOWN = frozenset(message for _, message in TRANSITIONS)


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


class _Message(msgspec.Struct):
    event: str
    streamSid: str = ""  # noqa: N815
    protocol: str = ""
    start: _Start | None = None
    media: _Media | None = None
    mark: _Mark | None = None
    dtmf: _Digit | None = None


_decode = msgspec.json.Decoder(_Message).decode


class TwilioDialect:
    """One media stream's messages, in their order."""

    def __init__(self) -> None:
        self.state = StreamState.OPENED
        self.stream_sid = ""

    def receive(self, text: str | bytes) -> StreamEvent | None:
        """The event that a message tells; None for messages that say nothing to us. Raises `DialectError` only."""
        message = read_message(_decode, text)
        if message.event not in _KNOWN:
            return None
        self._advance(message.event)
        if self.stream_sid and message.streamSid not in ("", self.stream_sid):
            raise DialectError("the message belongs to another stream")
        return _READERS[message.event](self, message)

    def _advance(self, event: str) -> None:
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            raise DialectError(f"'{event}' may not come while the stream is {self.state.value}")
        self.state = after

    def _started(self, message: _Message) -> StreamEvent:
        start = message.start
        if start is None:
            raise DialectError("'start' without its contents")
        stream_sid = start.streamSid or message.streamSid
        for identifier in (stream_sid, start.callSid):
            if not _IDENTIFIER.fullmatch(identifier):
                raise DialectError("'start' without valid streamSid and callSid")
        media = start.mediaFormat
        if media and (media.encoding, str(media.sampleRate), str(media.channels)) != _MULAW:
            raise DialectError("the stream is not μ-law at 8000 Hz with one channel")
        self.stream_sid = stream_sid
        return StreamStarted(stream_sid, start.callSid, start.accountSid, start.customParameters)

    def _media(self, message: _Message) -> StreamEvent | None:
        if message.media is None:
            raise DialectError("'media' without its contents")
        if message.media.track != "inbound":
            return None
        return MediaReceived(message.media.payload)

    def _mark(self, message: _Message) -> StreamEvent:
        if message.mark is None:
            raise DialectError("'mark' without its contents")
        return MarkReached(message.mark.name)

    def _digit(self, message: _Message) -> StreamEvent:
        if message.dtmf is None or len(message.dtmf.digit) != 1 or message.dtmf.digit not in DIGITS:
            raise DialectError("'dtmf' without a valid digit")
        return DigitReceived(message.dtmf.digit)

    def media(self, payload: bytes) -> str:
        """Queue μ-law audio at the carrier."""
        encoded = base64.b64encode(payload).decode("ascii")
        return f'{{"event":"media","streamSid":"{self.stream_sid}","media":{{"payload":"{encoded}"}}}}'

    def mark(self, name: str) -> str:
        """Ask to be told when what was queued so far has been played. `name` is ours, plain characters."""
        return f'{{"event":"mark","streamSid":"{self.stream_sid}","mark":{{"name":"{name}"}}}}'

    def clear(self) -> str:
        """Drop what is queued; its marks come back at once."""
        return f'{{"event":"clear","streamSid":"{self.stream_sid}"}}'


_READERS: Final[Mapping[str, Callable[[TwilioDialect, _Message], StreamEvent | None]]] = {
    "connected": lambda _, message: StreamConnected(message.protocol),
    "start": TwilioDialect._started,
    "media": TwilioDialect._media,
    "mark": TwilioDialect._mark,
    "dtmf": TwilioDialect._digit,
    "stop": lambda _, __: StreamStopped(),
}
