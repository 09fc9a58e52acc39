"""What the user agent tells its owner."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from callagent.sip.message import Headers, Uri

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall


class EndCause(Enum):
    LOCAL = "local"
    """We hung up, refused or gave up."""
    REMOTE = "remote"
    """The peer sent BYE."""
    CANCELLED = "cancelled"
    """The caller gave up before our answer reached it."""
    REFUSED = "refused"
    """The peer answered our INVITE with 3xx to 6xx."""
    TIMEOUT = "timeout"
    """The peer did not answer, or did not acknowledge our answer."""
    LOST = "lost"
    """In the middle of the call the peer was gone, or knew nothing of it."""


class TransferState(Enum):
    REQUESTED = "requested"
    ACCEPTED = "accepted"
    TRYING = "trying"
    SUCCEEDED = "succeeded"
    REFUSED = "refused"
    """The REFER itself was refused."""
    FAILED = "failed"
    """The peer tried and did not get through."""
    NO_ANSWER = "no answer"
    """The peer accepted and never told the outcome."""

    @property
    def is_final(self) -> bool:
        return self not in (TransferState.REQUESTED, TransferState.ACCEPTED, TransferState.TRYING)


@dataclass(frozen=True, slots=True)
class CallAnswered:
    """The peer took our call. Its answer to our offer is in `body`."""

    call: SipCall
    body: bytes


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The last message of an ended call is through; nothing more will be heard of it."""

    call: SipCall


@dataclass(frozen=True, slots=True)
class CallConfirmed:
    """The ACK of our 200 came."""

    call: SipCall
    body: bytes
    """The peer's answer when the INVITE came without an offer, else empty."""


@dataclass(frozen=True, slots=True)
class CallEnded:
    """Once per call; only `CallClosed` follows."""

    call: SipCall
    cause: EndCause
    status: int
    """Of the final response that ended it; 0 otherwise."""
    reason: str
    headers: Headers
    """Of the message that ended it."""


@dataclass(frozen=True, slots=True)
class CallRinging:
    call: SipCall
    status: int
    """180, 183 and their like; 100 is not told."""
    body: bytes = b""
    """The peer's answer to our offer when it speaks before it takes the call."""


@dataclass(frozen=True, slots=True)
class CallReplaced:
    """Another call takes this one's place (RFC 3891): answer that one with this one's media, and hang this one up."""

    call: SipCall
    by: SipCall


@dataclass(frozen=True, slots=True)
class DigitReceived:
    """A digit by INFO (`application/dtmf-relay` or `application/dtmf`)."""

    call: SipCall
    digit: str


@dataclass(frozen=True, slots=True)
class InviteReceived:
    """Somebody calls. Answer, refuse or hang up."""

    call: SipCall
    trunk: str
    """The name that `admit` gave to the sender."""


@dataclass(frozen=True, slots=True)
class OfferAnswered:
    """The answer to `reoffer`."""

    call: SipCall
    body: bytes


@dataclass(frozen=True, slots=True)
class OfferReceived:
    """The peer wants to change the media. Call `accept_offer` or `refuse_offer`."""

    call: SipCall
    body: bytes
    """Empty when the peer asks for an offer of ours."""


@dataclass(frozen=True, slots=True)
class OfferRefused:
    """`reoffer` failed; the media goes on as before."""

    call: SipCall
    status: int


@dataclass(frozen=True, slots=True)
class TransferProgressed:
    """How the peer fares with our REFER."""

    call: SipCall
    state: TransferState
    status: int
    reason: str


@dataclass(frozen=True, slots=True)
class TransferRequested:
    """The peer asks us to call somebody else. Tell the outcome by `report_transfer`."""

    call: SipCall
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
