"""G.711, both laws (RFC 3551 §4.5.14), to and from 16-bit little-endian PCM at 8 kHz."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Codec:
    name: str
    payload_type: int
    clock_rate: int
    encode: Callable[[bytes], bytes]
    decode: Callable[[bytes], bytes]

    def __str__(self) -> str:
        return f"{self.name}/{self.clock_rate}"


# audioop is imported where it is used: importing this package loads no extension module.


def _encode_ulaw(pcm: bytes) -> bytes:
    import audioop

    return audioop.lin2ulaw(pcm, 2)


def _decode_ulaw(payload: bytes) -> bytes:
    import audioop

    return audioop.ulaw2lin(payload, 2)


def _encode_alaw(pcm: bytes) -> bytes:
    import audioop

    return audioop.lin2alaw(pcm, 2)


def _decode_alaw(payload: bytes) -> bytes:
    import audioop

    return audioop.alaw2lin(payload, 2)


PCMU = Codec("PCMU", 0, 8000, _encode_ulaw, _decode_ulaw)
PCMA = Codec("PCMA", 8, 8000, _encode_alaw, _decode_alaw)

_CODECS = {codec.name: codec for codec in (PCMU, PCMA)}


def codec_by_name(name: str) -> Codec | None:
    """The codec of an SDP encoding name, which is case-insensitive (RFC 8866 §6.6); None when we have none such."""
    return _CODECS.get(name.upper())
