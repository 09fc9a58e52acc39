"""The messages of carriers' media streams, whatever the carrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from callagent.errors import CallagentError

MAX_MESSAGE_BYTES: Final = 65536
Message = TypeVar("Message")


class DialectError(CallagentError):
    """The peer sent what the dialect does not allow; the stream cannot go on."""


@dataclass(frozen=True, slots=True)
class StreamConnected:
    protocol: str


@dataclass(frozen=True, slots=True)
class StreamStarted:
    stream_sid: str
    call_sid: str
    account_sid: str
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class MediaReceived:
    payload: bytes
    """μ-law at 8 kHz, one byte a sample; 20 ms from Twilio, any length from others."""


@dataclass(frozen=True, slots=True)
class MarkReached:
    """What was queued before the mark was played, or dropped by a clear."""

    name: str


@dataclass(frozen=True, slots=True)
class DigitReceived:
    digit: str


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The carrier ended the stream: the caller hung up, or the call was redirected."""


StreamEvent = StreamConnected | StreamStarted | MediaReceived | MarkReached | DigitReceived | StreamStopped


def read_message(decode: Callable[[str | bytes], Message], text: str | bytes) -> Message:
    """A text of the peer's, decoded. Raises `DialectError` only."""
    if len(text) > MAX_MESSAGE_BYTES:
        raise DialectError("the message is longer than 64 KiB")
    try:
        return decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise DialectError(f"the message cannot be read: {error}") from None
