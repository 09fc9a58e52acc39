"""The three protocols of a carrier, which are all that the shared code knows of it, and their data types.

`CarrierDialect`: the messages of a media stream, without I/O. A dialect is made for one stream; it turns the messages
of the socket into events, and audio to be played into messages. It sends nothing itself and reads no clock, so that a
test can replay any stream.

`CallControl`: the commands about one call outside of its stream, such as hanging up and transferring.

`Markup`: the documents that answer a carrier's webhooks; a carrier that takes commands only by our requests needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol, TypeVar

import msgspec

from callagent.errors import CallagentError
from callagent.legs import TransferTarget

MAX_MESSAGE_BYTES: Final = 65536
"""Bytes of one message of a stream; 20 ms of μ-law in base64 are 216."""

# Close codes of RFC 6455 §7.4.1.
NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
POLICY_VIOLATION: Final = 1008
SERVER_ERROR: Final = 1011

Message = str | bytes
"""One message of a stream's socket; carriers that send audio in binary use both kinds."""
T = TypeVar("T")


class DialectError(CallagentError):
    """The peer sent what the dialect does not allow; the stream cannot go on."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """The encoding of a stream's audio in one direction; there is one channel."""

    codec: str
    """Its name in RTP (RFC 3551), such as `PCMU`."""
    rate: int
    """Samples per second."""


PCMU: Final = AudioFormat("PCMU", 8000)


class HeardLedger(Enum):
    """How a stream tells what the caller has heard of our audio."""

    MARKS = "marks"
    """A mark that we send comes back when the audio before it was played."""
    CLOCK = "clock"
    """The carrier tells nothing: what we sent counts as heard as time passes."""
    POSITION = "position"
    """The carrier reports from time to time how many seconds it has played."""


@dataclass(frozen=True, slots=True)
class StreamConnected:
    """The carrier's greeting; which call the stream belongs to comes with `StreamStarted`."""

    protocol: str


@dataclass(frozen=True, slots=True)
class StreamStarted:
    """The stream says which call it belongs to. It is not trusted before its token is checked."""

    stream_id: str
    call_id: str
    """The carrier's identifier of the call, as its webhooks name it."""
    account_id: str
    """Empty where the carrier does not say it."""
    parameters: Mapping[str, str]
    """What we gave the carrier for this stream, the token among it."""


@dataclass(frozen=True, slots=True)
class MediaReceived:
    """Audio of the caller."""

    payload: bytes
    """In the dialect's inbound format, of any length."""


@dataclass(frozen=True, slots=True)
class MarkReached:
    """The audio before the mark was played, or it was dropped by a clear."""

    name: str


@dataclass(frozen=True, slots=True)
class PlaybackReported:
    """The carrier has played so many seconds of our audio since the stream started."""

    seconds: float


@dataclass(frozen=True, slots=True)
class DigitReceived:
    """The caller pressed a key."""

    digit: str


@dataclass(frozen=True, slots=True)
class ReplyDue:
    """The peer expects an answer at once, such as a pong; `message` is to be sent as it is."""

    message: Message


@dataclass(frozen=True, slots=True)
class StreamStopped:
    """The carrier has ended the stream: the caller hung up, or the call was redirected."""


StreamEvent = (
    StreamConnected
    | StreamStarted
    | MediaReceived
    | MarkReached
    | PlaybackReported
    | DigitReceived
    | ReplyDue
    | StreamStopped
)


class MediaEncoder(Protocol):
    """The half of a dialect that `CarrierMedia` uses. Each `encode_…` returns the messages to send, in their order."""

    @property
    def inbound(self) -> AudioFormat:
        """The format of the caller's audio; known when the stream has started."""

    @property
    def outbound(self) -> AudioFormat:
        """The format of our audio, which need not be the caller's."""

    @property
    def ledger(self) -> HeardLedger:
        """How it is known what the caller has heard."""

    def encode_media(self, payload: bytes) -> Sequence[Message]:
        """Queue audio in the outbound format at the carrier; no message while a larger one is being collected."""

    def encode_mark(self, name: str) -> Sequence[Message]:
        """Ask for a `MarkReached` when the audio so far was played. Called only with `HeardLedger.MARKS`."""

    def encode_clear(self) -> Sequence[Message]:
        """Drop what is queued at the carrier."""


class CarrierDialect(MediaEncoder, Protocol):
    """The messages of one media stream, in both directions."""

    def receive_message(self, message: Message) -> Sequence[StreamEvent]:
        """Return the events of a message, none for what does not concern us. Raises `DialectError` only."""


def decode_json(decode: Callable[[str], T], message: Message) -> T:
    """Return a text message as decoded by `decode`, a decoder of `msgspec`. Raises `DialectError` only."""
    if isinstance(message, bytes):
        raise DialectError("the peer sent a binary message; text is expected")
    # The socket bounds messages as well; a dialect does not depend on it.
    if len(message) > MAX_MESSAGE_BYTES:
        raise DialectError("the message is longer than 64 KiB")
    try:
        return decode(message)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise DialectError(f"the message cannot be read: {error}") from None


class ControlFailed(CallagentError):
    """The carrier refused the command or could not be reached."""


class CallEnded(ControlFailed):
    """The call is over already."""


class TargetNotCalled(ControlFailed):
    """The carrier has taken the caller off our stream, but did not call the target of the transfer."""


class CallControl(Protocol):
    """The commands about one call. Every method is bounded in time; its leg calls them one after the other.

    A carrier reports how a transfer goes to its webhooks, which tell the leg by `CarrierLeg.end_transfer`.
    """

    async def hang_up(self) -> None:
        """End the call; one that is over already is no error. Raises `ControlFailed`."""

    async def transfer(self, target: TransferTarget) -> None:
        """Begin to give the caller to `target`; return when the carrier has accepted the command.

        Raises `ValueError` for a target that this carrier cannot call, `CallEnded` when the caller is gone,
        `TargetNotCalled` when the caller waits in vain, and `ControlFailed` when nothing has changed.
        """

    async def take_back(self) -> None:
        """Bring the caller of a transfer that failed back to a media stream. Raises `ControlFailed`.

        It does nothing where the carrier asks a webhook what to do next: the answer to that brings the caller back.
        """


class Verdict(Enum):
    """An answer without further data."""

    HANG_UP = "hang up"
    REJECT = "reject"
    """Refuse the call before it is answered: the caller hears busy and pays nothing."""
    CARRY_ON = "carry on"
    """Leave the call as it is."""


@dataclass(frozen=True, slots=True)
class ConnectStream:
    """Open a media stream for the call."""

    token: str
    """Proof, which counts once, that the stream belongs to this call."""
    caller: str
    callee: str


@dataclass(frozen=True, slots=True)
class Greet:
    """Say some words to the person who was called, before the caller is joined to them."""

    text: str
    """Empty: nothing is said."""
    confirm_key: str
    """The key by which the person takes the call; empty: the answer alone counts."""


Answer = Verdict | ConnectStream | Greet


class Markup(Protocol):
    """The XML documents with which one carrier's webhooks are answered."""

    content_type: str

    def write_document(self, answer: Answer) -> str:
        """Return the whole document; text from outside is escaped."""
