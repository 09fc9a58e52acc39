"""Codecs to and from 16-bit little-endian PCM at 8 kHz, and the parameters of RTP that an offer and answer agreed on.

G.711 is always available (RFC 3551 §4.5.14); G.722 and Opus need the extra `codecs`. Those two run in their narrow-band
modes, which code the lower 4 kHz only, so nothing is resampled.
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
"""Effort, 0 to 10: half the cost of the library's default, without an audible difference in speech below 4 kHz."""
_OPUS_BITS_PER_SECOND = 24000
_OPUS_MAX_SAMPLES = 960
"""Samples of 120 ms, the longest Opus packet (RFC 6716 §2)."""


@dataclass(frozen=True, slots=True)
class Codec:
    """The encoder and the decoder of one session; both may keep a state from earlier frames."""

    name: str
    payload_type: int
    clock_rate: int
    """Hertz of the timestamps: 8000 for G.722, which samples at 16000 (RFC 3551 §4.5.2); 48000 for Opus (RFC 7587)."""
    encode: Callable[[bytes], bytes]
    """Encode the PCM of one packet: one frame, or up to three."""
    decode: Callable[[bytes], bytes]
    """Decode the payload of one packet, of any length. Raises `ValueError` for a payload that is not of this codec."""
    is_stateful: bool = False
    """Whether the coding of a frame depends on the frames before it."""
    frame_units: int = field(init=False)
    """Timestamp units of one frame."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "frame_units", self.units(FRAME_SAMPLES))

    def __str__(self) -> str:
        return f"{self.name}/{self.clock_rate}"

    def units(self, samples: int) -> int:
        """Return the timestamp units of a number of samples at 8 kHz."""
        return samples * self.clock_rate // SAMPLE_RATE

    def is_like(self, other: Codec) -> bool:
        """Whether name and payload type are the same, so that a stream can keep the state of its coder."""
        return (self.name, self.payload_type) == (other.name, other.payload_type)


def _encode_ulaw(pcm: bytes) -> bytes:
    return audioop.lin2ulaw(pcm, 2)


def _decode_ulaw(payload: bytes) -> bytes:
    return audioop.ulaw2lin(payload, 2)


def _encode_alaw(pcm: bytes) -> bytes:
    return audioop.lin2alaw(pcm, 2)


def _decode_alaw(payload: bytes) -> bytes:
    return audioop.alaw2lin(payload, 2)


# G.711 codes each sample by itself, so one stateless object serves all sessions.
PCMU = Codec("PCMU", 0, 8000, _encode_ulaw, _decode_ulaw)
PCMA = Codec("PCMA", 8, 8000, _encode_alaw, _decode_alaw)


def _open_g722(payload_type: int) -> Codec:
    # Imported here, because the extra `codecs` may not be installed.
    from array import array

    from G722 import G722

    encoder, decoder = G722(SAMPLE_RATE, 64000), G722(SAMPLE_RATE, 64000)

    def encode(pcm: bytes) -> bytes:
        return bytes(encoder.encode(array("h", pcm)))

    def decode(payload: bytes) -> bytes:
        return bytes(decoder.decode(payload).tobytes())

    return Codec("G722", payload_type, 8000, encode, decode, is_stateful=True)


def _open_opus(payload_type: int) -> Codec:
    import opuslib_next

    encoder, decoder = opuslib_next.Encoder(SAMPLE_RATE, 1, "voip"), opuslib_next.Decoder(SAMPLE_RATE, 1)
    encoder.complexity = _OPUS_COMPLEXITY
    encoder.bitrate = _OPUS_BITS_PER_SECOND

    def encode(pcm: bytes) -> bytes:
        return bytes(encoder.encode(pcm, len(pcm) // 2))

    def decode(payload: bytes) -> bytes:
        # The library takes an empty payload for a loss and makes up sound, which `Concealment` does for all codecs.
        if not payload:
            raise ValueError("Opus packet is not valid: it is empty")
        try:
            return bytes(decoder.decode(payload, _OPUS_MAX_SAMPLES))
        except opuslib_next.OpusError as error:
            raise ValueError(f"Opus packet is not valid: {error}") from None

    return Codec("OPUS", payload_type, 48000, encode, decode, is_stateful=True)


_OPENERS: dict[str, Callable[[int], Codec]] = {"G722": _open_g722, "OPUS": _open_opus}
_G711 = {codec.name: codec for codec in (PCMU, PCMA)}
# 9 is assigned to G.722 (RFC 3551 §6); Opus has no number of its own, and 107 is the one that we offer.
_USUAL_PAYLOAD_TYPES = {"G722": 9, "OPUS": 107}


def open_codec(name: str, payload_type: int | None = None) -> Codec | None:
    """Return the codec of an SDP encoding name in any case (RFC 8866 §6.6); None if it is not installed."""
    name = name.upper()
    if name in _G711:
        usual = _G711[name]
        if payload_type in (None, usual.payload_type):
            return usual
        return Codec(name, payload_type or 0, usual.clock_rate, usual.encode, usual.decode)
    if name not in available_codecs():
        return None
    return _OPENERS[name](_USUAL_PAYLOAD_TYPES[name] if payload_type is None else payload_type)


@cache
def available_codecs() -> tuple[str, ...]:
    """Return the names of the codecs that are installed, the cheapest first."""
    names = list(_G711)
    for name, opener in _OPENERS.items():
        # Only opening a codec shows that it works: its Python package may be installed without the system's library.
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
"""The static payload type of comfort noise (RFC 3389 §4)."""


@dataclass(frozen=True, slots=True)
class RtpParameters:
    """The outcome of an offer and answer for one media session."""

    codec: Codec
    """The codec of both directions, with the payload type that we send."""
    telephone_event: int | None = None
    """Payload type of the digits that we send; None: the peer accepts no telephone events."""
    telephone_event_rate: int = 8000
    """Hertz in which the durations of digits are counted."""
    offered_payload_type: int | None = None
    """Payload type that our offer gave the codec: the peer may send it although its answer names another."""
    offered_telephone_event: int | None = None
    comfort_noise: int = COMFORT_NOISE
    packet_frames: int = 1
    """Frames in each of our packets, as the peer asks for by `a=ptime`."""
    control: tuple[str, int] | None = None
    """Where RTCP goes; None: the port above the media (RFC 3605 §2.1). With `rtcp-mux`: the media address."""
    keys: SrtpKeys | None = None
    """None: the media is not encrypted."""
    networks: tuple[Network, ...] = ()
    """Networks from which the peer's media may come, besides the address in its SDP."""
    in_band_digits: bool = False
    """Whether digits are detected in the audio, until the first telephone event."""

    @property
    def audio_types(self) -> frozenset[int]:
        return frozenset((self.codec.payload_type, self.offered_payload_type or self.codec.payload_type))

    @property
    def event_types(self) -> frozenset[int]:
        numbers = (self.offered_telephone_event, self.telephone_event)
        return frozenset(number for number in numbers if number is not None)
