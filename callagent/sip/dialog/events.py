"""The events of the user agent, and the interface of the calls that the events refer to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from callagent.sip.dialog.dialog import Dialog
from callagent.sip.message import Headers, Request, Uri
from callagent.sip.transaction_layer import ServerTransaction

NO_HEADERS: Mapping[str, str] = {}


class Call(Protocol):
    """A call as its owner and the user agent see it; `SipCall` implements it.

    A command that does not fit the state does nothing, but `refer` raises `ValueError`.
    """

    invite: Request
    """The INVITE that began the call: the one received, or the last one sent."""
    outgoing: bool
    dialog: Dialog | None
    """None until the peer of an outgoing call has answered."""
    peer_host: str
    """IP address that the INVITE came from, or was sent to first."""
    attempts_spent: bool
    """Whether an outgoing call failed because `max_attempts` servers or users had been tried."""

    @property
    def is_established(self) -> bool: ...

    # Commands of the owner

    def ring(self, now: float, body: bytes = b"") -> None: ...

    def answer(self, body: bytes, now: float) -> None: ...

    def hang_up(self, now: float, *, status: int = 480, headers: Mapping[str, str] = NO_HEADERS) -> None: ...

    def refer(
        self, target: Uri, now: float, headers: Mapping[str, str] = NO_HEADERS, to: Call | None = None
    ) -> None: ...

    def report_transfer(self, status: int, now: float) -> None: ...

    def reoffer(self, body: bytes, now: float) -> None: ...

    def accept_offer(self, body: bytes, now: float) -> None: ...

    def refuse_offer(self, now: float, status: int = 488) -> None: ...

    def send_digit(self, digit: str, now: float) -> None: ...

    # Calls by the user agent

    def receive_ack(self, ack: Request, now: float) -> None: ...

    def receive_request(self, transaction: ServerTransaction, now: float) -> None: ...


class EndCause(Enum):
    """Why a call ended."""

    LOCAL = "local"
    """Our side hung up, refused the call or gave it up."""
    REMOTE = "remote"
    """The peer sent BYE."""
    CANCELLED = "cancelled"
    """The caller gave up before our answer reached it."""
    REFUSED = "refused"
    """The peer answered our INVITE with 3xx to 6xx."""
    TIMEOUT = "timeout"
    """The peer did not answer our INVITE, or did not acknowledge our 2xx."""
    LOST = "lost"
    """The peer of an established call vanished, or no longer knows the dialog."""


class TransferState(Enum):
    """The progress of a REFER of ours."""

    REQUESTED = "requested"
    ACCEPTED = "accepted"
    TRYING = "trying"
    SUCCEEDED = "succeeded"
    REFUSED = "refused"
    """The REFER itself was refused."""
    FAILED = "failed"
    """The peer called the target and did not reach it."""
    NO_ANSWER = "no answer"
    """The peer accepted the REFER and never reported the outcome."""

    @property
    def is_final(self) -> bool:
        return self not in (TransferState.REQUESTED, TransferState.ACCEPTED, TransferState.TRYING)


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The peer answered our call; `body` is its answer to our offer."""

    call: Call
    body: bytes


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The last transaction of an ended call is over; it is the last event of the call."""

    call: Call


@dataclass(frozen=True, slots=True)
class CallConfirmed:
    """The ACK of our 200 arrived."""

    call: Call
    body: bytes
    """The peer's answer if the INVITE had no offer, otherwise empty."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call has ended. Emitted once per call; only `CallClosed` follows."""

    call: Call
    cause: EndCause
    status: int
    """Status of the final response that ended the call; 0 if none did."""
    reason: str
    headers: Headers
    """Header fields of the message that ended the call."""


@dataclass(frozen=True, slots=True)
class CallRinging:
    """A provisional response to our INVITE arrived."""

    call: Call
    status: int
    """101 to 199; a 100 makes no event."""
    body: bytes = b""
    """The peer's answer to our offer, if it sends early media."""


@dataclass(frozen=True, slots=True)
class CallReplaced:
    """The new call `by` replaces `call` (RFC 3891 §3): answer `by` with the media of `call`, then hang `call` up."""

    call: Call
    by: Call


@dataclass(frozen=True, slots=True)
class DigitReceived:
    """A DTMF digit arrived in an INFO (`application/dtmf-relay` or `application/dtmf`)."""

    call: Call
    digit: str


@dataclass(frozen=True, slots=True)
class InviteReceived:
    """A new INVITE arrived: answer it, or refuse it by `hang_up`."""

    call: Call
    trunk: str
    """The trunk of the peer, known from `admit` or from the digest account."""


@dataclass(frozen=True, slots=True)
class OfferAnswered:
    """The peer answered the offer of `reoffer`."""

    call: Call
    body: bytes


@dataclass(frozen=True, slots=True)
class OfferReceived:
    """The peer offers other media in a re-INVITE or UPDATE: call `accept_offer` or `refuse_offer`."""

    call: Call
    body: bytes
    """The offer; empty if the peer asks for an offer of ours."""


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """The peer refused the offer of `reoffer`; the media stays as it was."""

    call: Call
    status: int


@dataclass(frozen=True, slots=True)
class TransferProgressed:
    """The peer reported the progress of our REFER."""

    call: Call
    state: TransferState
    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransferRequested:
    """The peer sent a REFER: call `target`, and report the outcome by `report_transfer`."""

    call: Call
    target: Uri
    headers: Headers


Event = (
    CallAnswered
    | CallClosed
    | CallConfirmed
    | CallEnded
    | CallReplaced
    | CallRinging
    | DigitReceived
    | InviteReceived
    | OfferAnswered
    | OfferReceived
    | OfferRefused
    | TransferProgressed
    | TransferRequested
)
