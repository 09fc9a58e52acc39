"""A call leg, whatever the wire: what the call may ask of it and what it tells the call."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from callagent.call_info import NO_HEADERS, CallInfo, EndReason
from callagent.legs.media import Media, SwitchedMedia

_MAX_EARLY_EVENTS = 32


@dataclass(frozen=True, slots=True)
class CallerHungUp:
    """The peer ended the call: BYE, CANCEL, a refusal, or the carrier's stop."""

    reason: EndReason
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """What a trusted peer said as it left, as `CallInfo.headers`."""
    causes: tuple[str, ...] = ()
    """Its Reason headers as figures count them: `Q.850 16`."""


@dataclass(frozen=True, slots=True)
class DigitPressed:
    """One key press, once, however many packets told of it."""

    digit: str
    """One of `0123456789*#ABCD`."""


@dataclass(frozen=True, slots=True)
class LegFailed:
    """The leg cannot go on; it has closed itself."""

    reason: EndReason
    detail: str


@dataclass(frozen=True, slots=True)
class PartiesJoined:
    """The target of a transfer has answered and speaks with the caller; `transfer` returns when that is over."""


@dataclass(frozen=True, slots=True)
class WordsWritten:
    """The peer wrote instead of speaking; each is a whole turn."""

    text: str


LegEvent = CallerHungUp | DigitPressed | LegFailed | PartiesJoined | WordsWritten


class TransferStatus(Enum):
    SUCCEEDED = "succeeded"
    """The peer took the call over (a final 2xx sipfrag, or the carrier accepted the redirect), or the two have spoken
    through us."""
    REFUSED = "refused"
    FAILED = "failed"
    NO_ANSWER = "no_answer"
    CALLER_GONE = "caller_gone"


@dataclass(frozen=True, slots=True)
class TransferOutcome:
    status: TransferStatus
    detail: str
    """What the wire said: `486 Busy Here`."""
    limit: str = ""
    """The setting that ended it, where it was a limit."""


@dataclass(frozen=True, slots=True)
class TransferTarget:
    """Where a call may go. Made only by `targets.resolve_target`, never from model text."""

    name: str
    uri: str
    """A SIP URI, or a number in E.164."""
    method: str = "refer"
    """`refer`, `attended` (the target is called first), `invite` (a bridge through us) or `bye`."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    left_out: tuple[str, ...] = ()
    """Names of headers that the project asked for and that are not sent, as the settings do not name them."""
    trunk: str = ""
    """The trunk that we call the target through; empty: the caller's, for a number, else none."""
    caller: str = ""
    """The number that the target sees; empty: the caller's."""
    ring_seconds: float = 30.0
    early_media: bool = False
    """Whether the caller hears what the target plays before it answers."""
    whisper: str = ""
    """What the person hears before the two are joined, where the carrier dials."""
    confirm: str = ""
    """The key by which the person takes the call, where the carrier dials; empty: none."""


class CallLeg(Protocol):
    """One side's connection to us. Made by server.py's listeners, owned and closed by the call."""

    info: CallInfo

    def listen(self, on_event: Callable[[LegEvent], None]) -> None:
        """Where events go; ones that came earlier are delivered at once."""

    def ring(self) -> None:
        """Tell the peer that we are getting ready (180 Ringing); nothing on wires without it."""

    async def answer(self) -> Media:
        """Take the call. Raises `LegGone` when the peer gave up meanwhile."""

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """End the leg from whatever state and free what it holds. Idempotent; never raises; bounded in time."""

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        """Give the peer to somebody else; returns when the outcome is known. The leg lives on unless it succeeded.

        `audio` is the leg's media as the call uses it, for a bridge through us.
        """

    async def send_digits(self, digits: str) -> None: ...

    def expect_media(self, expected: bool) -> None:
        """Whether a peer that sends no media ends the leg after the usual time, counted from here, or only after the
        longer one of a call on hold. Nothing on wires that always carry media."""


class Listeners:
    """Keeps the events of a leg until its call listens."""

    def __init__(self) -> None:
        self._on_event: Callable[[LegEvent], None] | None = None
        self._early: deque[LegEvent] = deque(maxlen=_MAX_EARLY_EVENTS)

    def listen(self, on_event: Callable[[LegEvent], None]) -> None:
        self._on_event = on_event
        while self._early:
            on_event(self._early.popleft())

    def tell(self, event: LegEvent) -> None:
        if self._on_event is None:
            self._early.append(event)
        else:
            self._on_event(event)


class LegGone(Exception):
    """The peer ended the leg before the operation could be done."""

    def __init__(self, detail: str, status: int = 0, limit: str = "") -> None:
        """`status` is that of the SIP response that ended it, 0: none; `limit` as in `TransferOutcome`."""
        super().__init__(detail)
        self.status = status
        self.limit = limit


class TooManyCalls(ValueError):
    """More calls than a limit allows would begin."""

    def __init__(self, detail: str, limit: str) -> None:
        super().__init__(detail)
        self.limit = limit


def failed_by(error: Exception) -> TransferOutcome:
    """The outcome of a transfer that ended so."""
    return TransferOutcome(TransferStatus.FAILED, str(error) or type(error).__name__, getattr(error, "limit", ""))
