"""The contract of a call leg on any wire: its commands, its events, and its audio, which may be bridged."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from callagent.call_info import NO_HEADERS, CallInfo, EndReason, MediaStatistics

MAX_RELAYED_FRAMES = 10
"""Frames that wait in one direction of a bridge, 200 ms; the oldest ones are dropped."""
_PREFILL_FRAMES = 2
"""Frames that have to wait after a gap before the first one is taken."""


FrameSink = Callable[[bytes, float], None]
"""Called on the event loop with each 20 ms frame of the peer and the monotonic time of its arrival. Never blocks."""

FrameSource = Callable[[], bytes | None]
"""Called for a frame every 20 ms, on RTP by the pump's thread. Returns None while the agent is silent."""


class Media(Protocol):
    """The audio of an answered leg."""

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        """Begin to deliver frames to `sink` and to ask `source`. Called once."""

    def clear(self) -> float:
        """Drop the frames taken from the source that are not yet played; return their seconds (0.0 on RTP)."""

    def unheard(self) -> float:
        """Return the seconds taken from the source that the peer has not yet played, if the wire tells (0.0 on RTP)."""

    def statistics(self) -> MediaStatistics: ...


class FrameRelay:
    """One direction of a bridge: the event loop puts in frames of one leg, the pump thread takes them for the other."""

    def __init__(self) -> None:
        # Two threads without a lock: append and popleft of a deque are atomic. The bound drops the oldest frame.
        self._frames: deque[bytes] = deque(maxlen=MAX_RELAYED_FRAMES)
        self._flowing = False

    def put(self, pcm: bytes, now: float) -> None:
        self._frames.append(pcm)

    def take(self) -> bytes | None:
        """Return the next frame; after a gap only when two wait, so that jitter between the clocks is not audible."""
        # One leg's frames arrive when the network brings them, the other's are due every 20 ms.
        if not self._flowing and len(self._frames) < _PREFILL_FRAMES:
            return None
        try:
            frame = self._frames.popleft()
        except IndexError:
            self._flowing = False
            return None
        self._flowing = True
        return frame


class SwitchedMedia:
    """A `Media` that passes frames between the leg and the agent, or between the leg and another one."""

    def __init__(self, media: Media) -> None:
        self._media = media
        self._relay_to_other: FrameRelay | None = None
        self._relay_from_other: FrameRelay | None = None

    def start(self, sink: FrameSink, source: FrameSource) -> None:
        # Each frame reads the relay once, so that the two threads need no lock, and no frame goes to both sides.
        def receive(pcm: bytes, now: float) -> None:
            relay = self._relay_to_other
            if relay is None:
                sink(pcm, now)
            else:
                relay.put(pcm, now)

        def next_frame() -> bytes | None:
            relay = self._relay_from_other
            return source() if relay is None else relay.take()

        self._media.start(receive, next_frame)

    def play_from(self, relay: FrameRelay) -> None:
        """Play the other leg's frames to the peer instead of the agent's; the agent still hears the peer."""
        self._relay_from_other = relay

    def send_to(self, relay: FrameRelay) -> None:
        """Send the peer's frames to the other leg instead of the agent."""
        self._relay_to_other = relay

    def return_to_agent(self) -> None:
        """Join the peer to the agent again. Idempotent."""
        self._relay_to_other = self._relay_from_other = None

    def clear(self) -> float:
        return self._media.clear()

    def unheard(self) -> float:
        return self._media.unheard()

    def statistics(self) -> MediaStatistics:
        return self._media.statistics()


_MAX_EARLY_EVENTS = 32
"""Events that are kept for a call that does not listen yet; the oldest are dropped."""


@dataclass(frozen=True, slots=True)
class CallerHungUp:
    """The peer ended the call: by BYE, CANCEL or a refusal, or by the stop message of a carrier's stream."""

    reason: EndReason
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """The headers of the message by which a trusted peer left, as in `CallInfo.headers`."""
    causes: tuple[str, ...] = ()
    """The causes in its Reason headers (RFC 3326), as metrics count them: `Q.850 16`."""


@dataclass(frozen=True, slots=True)
class DigitPressed:
    """The peer pressed a key. There is one event for each press, however many packets report it."""

    digit: str
    """One of `0123456789*#ABCD`."""


@dataclass(frozen=True, slots=True)
class LegFailed:
    """The leg has failed and closed itself, for `reason`."""

    reason: EndReason
    detail: str


@dataclass(frozen=True, slots=True)
class PartiesJoined:
    """The target of a transfer has answered and speaks with the caller; `transfer` returns when they have finished."""


@dataclass(frozen=True, slots=True)
class WordsWritten:
    """The peer wrote a message instead of speaking; each message is a whole turn."""

    text: str


# The names are those of a caller's leg, which most legs are; the leg of a transfer's target has the same events.
LegEvent = CallerHungUp | DigitPressed | LegFailed | PartiesJoined | WordsWritten


class TransferStatus(Enum):
    """The kinds of outcomes of a transfer."""

    SUCCEEDED = "succeeded"
    """The peer reported that it reached the target, the carrier accepted the redirect, or caller and target have spoken
    through us."""
    REFUSED = "refused"
    FAILED = "failed"
    NO_ANSWER = "no_answer"
    CALLER_GONE = "caller_gone"


@dataclass(frozen=True, slots=True)
class TransferOutcome:
    """The status with which a transfer ended, and the reason."""

    status: TransferStatus
    detail: str
    """Text of the peer, such as `486 Busy Here`, or of ours."""
    limit: str = ""
    """The name of the setting whose limit ended the transfer; empty if no limit did."""


@dataclass(frozen=True, slots=True)
class TransferTarget:
    """Where a call may be sent. Only `server/outbound.py` makes it, from the settings, never from a model's text."""

    name: str
    uri: str
    """A SIP URI, or a number in E.164."""
    method: str = "refer"
    """`refer`, `attended` (the target is called first), `invite` (a bridge through us) or `bye`."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    left_out: tuple[str, ...] = ()
    """Names of headers that the project asked for and that are not sent, because the settings do not allow them."""
    trunk: str = ""
    """The trunk through which we call the target; empty: the caller's trunk for a number, none for a URI."""
    caller: str = ""
    """The number that the target sees; empty: that of the caller."""
    ring_seconds: float = 30.0
    early_media: bool = False
    """Whether the caller hears what the target plays before it answers."""
    whisper: str = ""
    """Words that the person hears before the caller is connected. Used only where the carrier dials."""
    confirm: str = ""
    """The key by which the person takes the call; empty: answering is enough. Used only where the carrier dials."""


class CallLeg(Protocol):
    """The connection of one party to us. The server's listeners make it; the call owns it and closes it."""

    info: CallInfo

    def listen(self, on_event: Callable[[LegEvent], None]) -> None:
        """Deliver events to `on_event` in their order from now on, and those that occurred earlier at once."""

    def ring(self) -> None:
        """Tell the peer that we are getting ready (180 Ringing). Does nothing on wires without it."""

    async def answer(self) -> Media:
        """Answer the call and return its audio. Raises `LegGone` if the peer gave up meanwhile."""

    async def hang_up(self, reason: EndReason, headers: Mapping[str, str] = NO_HEADERS) -> None:
        """End the leg in any state and free what it holds. Idempotent; never raises; bounded in time."""

    async def transfer(self, target: TransferTarget, audio: SwitchedMedia | None = None) -> TransferOutcome:
        """Give the peer to somebody else, and return when the outcome is known.

        The leg goes on unless the transfer succeeded. `audio` is the leg's media as the call uses it, for a bridge
        through us.
        """

    async def send_digits(self, digits: str) -> None:
        """Send key presses to the peer. May raise `ValueError` for digits that the wire cannot send, and `LegGone`."""

    def expect_media(self, expected: bool) -> None:
        """Say whether the peer ought to send media.

        If so, a peer without media ends the leg after the usual time from now, otherwise after the longer time of a
        call on hold. Does nothing on wires where silent peers send media, too.
        """


class LegEvents:
    """The events of a leg on the way to its call, kept until the call listens."""

    def __init__(self) -> None:
        self._on_event: Callable[[LegEvent], None] | None = None
        self._early: deque[LegEvent] = deque(maxlen=_MAX_EARLY_EVENTS)
        self._delivers_early = False

    def listen(self, on_event: Callable[[LegEvent], None]) -> None:
        self._on_event = on_event
        # A listener may name another one while it gets the early events; that one gets the rest of them.
        if self._delivers_early:
            return
        self._delivers_early = True
        try:
            while self._early:
                self._on_event(self._early.popleft())
        finally:
            self._delivers_early = False

    def emit(self, event: LegEvent) -> None:
        """Deliver an event, or keep it until somebody listens and has got the earlier ones."""
        if self._on_event is None or self._delivers_early:
            self._early.append(event)
        else:
            self._on_event(event)


class LegGone(Exception):
    """The peer ended the leg before the operation could be done."""

    def __init__(self, detail: str, status: int = 0, limit: str = "") -> None:
        """`status` is that of the SIP response that ended the leg, or 0; `limit` as in `TransferOutcome`."""
        super().__init__(detail)
        self.status = status
        self.limit = limit


class TooManyCalls(ValueError):
    """One more call would exceed a limit of the settings, named by `limit`."""

    def __init__(self, detail: str, limit: str) -> None:
        super().__init__(detail)
        self.limit = limit


def failed_by(error: Exception) -> TransferOutcome:
    """Return the outcome of a transfer that the error ended."""
    return TransferOutcome(TransferStatus.FAILED, str(error) or type(error).__name__, getattr(error, "limit", ""))
