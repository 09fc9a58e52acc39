"""What is known of a call before anybody speaks, and how it may end. Plain data, for every package."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Literal

RecordingWish = Literal["pause", "resume", "discard"]

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class EndReason(Enum):
    """Why a call ended. The value is what the record holds."""

    AGENT_HANGUP = "agent_hangup"
    CALLER_HANGUP = "caller_hangup"
    CANCELLED = "cancelled"
    """The caller hung up before we answered."""
    HANDOFF = "handoff"
    SILENCE = "silence_limit"
    MEDIA_TIMEOUT = "media_timeout"
    MAX_DURATION = "max_duration"
    DRAIN = "server_shutdown"
    OPERATOR = "operator_hangup"
    """Somebody ended it from the dashboard."""
    REJECTED = "rejected"
    BUSY = "busy"
    """The caller has made as many calls as one number may."""
    SERVER_KILLED = "server_killed"
    """The server was killed during the call; the next one wrote its end."""
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class CallInfo:
    """A call as its leg knows it."""

    call_id: str
    """Ours, unique; file names and records are made from it, never from the peer's identifiers."""
    direction: str
    """`inbound` or `outbound`."""
    caller: str | None
    """E.164 or the user part of the From URI; None when withheld."""
    callee: str | None
    wire: str
    """`sip`, `twilio`, `browser`, `session`, `text`."""
    started: datetime
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    """The peer's custom headers (`X-…`) as received; case kept."""
    peer_call_id: str | None = None
    """The wire's own identifier: SIP Call-ID, Twilio CallSid."""
    trunk: str = ""
    """The SIP trunk that the peer called through; empty: none."""


@dataclass(slots=True)
class MediaStatistics:
    """Counters of one leg's media, for the record."""

    codec: str = ""
    encryption: str = ""
    """The SRTP suite; empty: none."""
    packets_received: int = 0
    packets_sent: int = 0
    packets_lost: int = 0
    packets_late: int = 0
    packets_duplicate: int = 0
    packets_refused: int = 0
    """Packets from a wrong source, of a wrong version or of an unknown payload type."""
    jitter_ms: float = 0.0
    send_lateness_max_ms: float = 0.0
    peer_reports: int = 0
    """RTCP reports about what we sent; without any, the figures of the peer are 0."""
    peer_one_way: bool = False
    """Whether the peer does not hear us, by its last report."""
    peer_goodbye: bool = False
    """Whether the peer ended its stream by RTCP BYE before the call's end."""
    peer_packets_lost: int = 0
    """Packets of ours that the peer's RTCP reports as lost."""
    peer_jitter_ms: float = 0.0
    """Jitter of our packets, as the peer's RTCP reports it."""
    round_trip_ms: float = 0.0
