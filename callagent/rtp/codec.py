"""Codecs to and from 16-bit little-endian PCM at 8 kHz, and the parameters of RTP that an offer and answer agreed on.

G.711 (RFC 3551 §4.5.14), and G.722 and Opus of the extra `codecs`, which code the lower 4 kHz only: their own
narrow-band modes, so nothing is resampled.
"""

from __future__ import annotations

import audioop
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from ipaddress import IPv4Network, IPv6Network

from callagent.audio import FRAME_SAMPLES, SAMPLE_RATE
from callagent.rtp.srtp import SrtpKeys

_OPUS_COMPLEXITY = 3
"""Half the cost of the library's own choice; speech below 4 kHz does not tell them apart."""
_OPUS_BITS = 24000
_OPUS_LONGEST = 960
"""Samples: 120 ms, the longest packet there is (RFC 6716 §2)."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One session's: an encoder or a decoder may remember what went before."""

    name: str
    payload_type: int
    clock_rate: int
    """Of the timestamps. G.722 says 8000 though it samples at 16000 (RFC 3551 §4.5.2), Opus always 48000 (RFC 7587)."""
    encode: Callable[[bytes], bytes]
    """A packet's PCM: one frame, or up to three."""
    decode: Callable[[bytes], bytes]
    """A packet's payload, of any length. Raises `ValueError` for what is no such code."""
    remembers: bool = False
    """Whether the coding of a frame depends on those before it."""
    frame_units: int = field(init=False)
    """Timestamp units of one frame."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame_units", self.units(FRAME_SAMPLES))

    def __str__(self) -> str:
        return f"{self.name}/{self.clock_rate}"

    def units(self, samples: int) -> int:
        """Timestamp units of so many samples at 8 kHz."""
        return samples * self.clock_rate // SAMPLE_RATE

    def is_like(self, other: Codec) -> bool:
        """Whether a stream can go on from one to the other with its memory."""
        return (self.name, self.payload_type) == (other.name, other.payload_type)


def _encode_ulaw(pcm: bytes) -> bytes:
    return audioop.lin2ulaw(pcm, 2)


def _decode_ulaw(payload: bytes) -> bytes:
    return audioop.ulaw2lin(payload, 2)


def _encode_alaw(pcm: bytes) -> bytes:
    return audioop.lin2alaw(pcm, 2)


def _decode_alaw(payload: bytes) -> bytes:
    return audioop.alaw2lin(payload, 2)


PCMU = Codec("PCMU", 0, 8000, _encode_ulaw, _decode_ulaw)
PCMA = Codec("PCMA", 8, 8000, _encode_alaw, _decode_alaw)


def _open_g722(payload_type: int) -> Codec:
    from array import array

    from G722 import G722

    encoder, decoder = G722(SAMPLE_RATE, 64000), G722(SAMPLE_RATE, 64000)

    def encode(pcm: bytes) -> bytes:
        return bytes(encoder.encode(array("h", pcm)))

    def decode(payload: bytes) -> bytes:
        return bytes(decoder.decode(payload).tobytes())

    return Codec("G722", payload_type, 8000, encode, decode, remembers=True)


def _open_opus(payload_type: int) -> Codec:
    import opuslib_next

    encoder, decoder = opuslib_next.Encoder(SAMPLE_RATE, 1, "voip"), opuslib_next.Decoder(SAMPLE_RATE, 1)
    encoder.complexity = _OPUS_COMPLEXITY
    encoder.bitrate = _OPUS_BITS

    def encode(pcm: bytes) -> bytes:
        return bytes(encoder.encode(pcm, len(pcm) // 2))

    def decode(payload: bytes) -> bytes:
        if not payload:
            raise ValueError("Opus packet is not valid: it is empty")
        try:
            return bytes(decoder.decode(payload, _OPUS_LONGEST))
        except opuslib_next.OpusError as error:
            raise ValueError(f"Opus packet is not valid: {error}") from None

    return Codec("OPUS", payload_type, 48000, encode, decode, remembers=True)


_OPENERS: dict[str, Callable[[int], Codec]] = {"G722": _open_g722, "OPUS": _open_opus}
_G711 = {codec.name: codec for codec in (PCMU, PCMA)}
_USUAL_TYPES = {"G722": 9, "OPUS": 107}


def open_codec(name: str, payload_type: int | None = None) -> Codec | None:
    """A codec of an SDP encoding name, whose case does not count (RFC 8866 §6.6); None when we have none such."""
    name = name.upper()
    if name in _G711:
        known = _G711[name]
        if payload_type in (None, known.payload_type):
            return known
        return Codec(name, payload_type or 0, known.clock_rate, known.encode, known.decode)
    if name not in available_codecs():
        return None
    return _OPENERS[name](_USUAL_TYPES[name] if payload_type is None else payload_type)


@cache
def available_codecs() -> tuple[str, ...]:
    """Names of the codecs that this installation has, the cheapest first."""
    names = list(_G711)
    for name, opener in _OPENERS.items():
        try:
            opener(0)
        # opuslib raises a bare Exception where the system has no libopus.
        except Exception as error:
            if not isinstance(error, ImportError) and type(error) is not Exception:
                raise
        else:
            names.append(name)
    return tuple(names)


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
