"""What a media session is told of the offer and answer."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from callagent.rtp.codec import Codec
from callagent.rtp.srtp import SrtpKeys

Network = IPv4Network | IPv6Network
COMFORT_NOISE = 13
"""Its static payload type (RFC 3389 §4)."""


@dataclass(frozen=True, slots=True)
class RtpParameters:
    codec: Codec
    """With the payload type that we send."""
    telephone_event: int | None = None
    """Payload type of the digits that we send; None: the peer has none."""
    telephone_event_rate: int = 8000
    """Hertz of the durations of digits."""
    own_payload_type: int | None = None
    """What the peer sends its audio as, where it is another than ours."""
    own_telephone_event: int | None = None
    comfort_noise: int = COMFORT_NOISE
    packet_frames: int = 1
    """Frames in a packet of ours: what the peer asks for (`a=ptime`), where it is not one."""
    control: tuple[str, int] | None = None
    """Where RTCP goes; None: the port above the media (RFC 3605 §2.1). The media's own address under RFC 5761."""
    keys: SrtpKeys | None = None
    """None: the media is not encrypted."""
    networks: tuple[Network, ...] = ()
    """From where, besides the address in the SDP, the peer's media may come."""
    in_band_digits: bool = False
    """Whether digits are listened for in the audio, until the first telephone event."""

    @property
    def audio_types(self) -> frozenset[int]:
        return frozenset((self.codec.payload_type, self.own_payload_type or self.codec.payload_type))

    @property
    def event_types(self) -> frozenset[int]:
        own, theirs = self.own_telephone_event, self.telephone_event
        return frozenset(number for number in (own, theirs) if number is not None)
