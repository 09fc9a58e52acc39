"""An RTP packet (RFC 3550 §5.1)."""

from __future__ import annotations

import struct
from typing import NamedTuple, Self

HEADER = struct.Struct("!BBHII")
VERSION = 2
_NOTHING_MORE = VERSION << 6
"""The first octet of a packet without padding, extension and contributing sources."""


class RtpPacket(NamedTuple):
    """A tuple, because one is made fifty times a second and call: a frozen dataclass takes three times as long."""

    payload_type: int
    sequence: int
    timestamp: int
    ssrc: int
    payload: bytes
    marker: bool = False
    csrcs: tuple[int, ...] = ()
    extension: tuple[int, bytes] | None = None
    """Profile and data of the header extension (§5.3.1); the data is a multiple of 4 octets."""

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """Raises `ValueError` for anything that RFC 3550 does not allow."""
        if len(data) < HEADER.size:
            raise ValueError("RTP packet is not valid")
        flags, kind, sequence, timestamp, ssrc = HEADER.unpack_from(data)
        if flags == _NOTHING_MORE:
            return tuple.__new__(cls, (kind & 0x7F, sequence, timestamp, ssrc, data[12:], kind > 0x7F, (), None))
        if flags >> 6 != VERSION:
            raise ValueError("RTP packet is not valid")
        end = len(data) - _padding(data) if flags & 0x20 else len(data)
        start = HEADER.size + 4 * (flags & 0x0F)
        if start > end:
            raise ValueError("RTP packet is not valid: its contributing sources are cut")
        csrcs = struct.unpack_from(f"!{flags & 0x0F}I", data, HEADER.size)
        extension = None
        if flags & 0x10:
            extension = _extension(data, start, end)
            start += 4 + len(extension[1])
        return cls(kind & 0x7F, sequence, timestamp, ssrc, data[start:end], kind > 0x7F, csrcs, extension)

    def __bytes__(self) -> bytes:
        flags = VERSION << 6 | (0x10 if self.extension else 0) | len(self.csrcs)
        kind = self.payload_type | (0x80 if self.marker else 0)
        header = HEADER.pack(flags, kind, self.sequence, self.timestamp, self.ssrc)
        if self.csrcs:
            header += struct.pack(f"!{len(self.csrcs)}I", *self.csrcs)
        if self.extension:
            profile, data = self.extension
            header += struct.pack("!HH", profile, len(data) // 4) + data
        return header + self.payload


def is_rtcp(data: bytes) -> bool:
    """Whether a datagram on a media port is RTCP: packet types 192 to 223 (RFC 5761 §4)."""
    return len(data) > 1 and 192 <= data[1] <= 223


def sequence_distance(later: int, earlier: int) -> int:
    """Signed distance of two 16-bit sequence numbers."""
    return ((later - earlier + 0x8000) & 0xFFFF) - 0x8000


def timestamp_distance(later: int, earlier: int) -> int:
    """Signed distance of two 32-bit timestamps."""
    return ((later - earlier + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def _padding(data: bytes) -> int:
    padding = data[-1]
    if not 0 < padding <= len(data) - HEADER.size:
        raise ValueError("RTP packet is not valid: wrong padding")
    return padding


def _extension(data: bytes, start: int, end: int) -> tuple[int, bytes]:
    if start + 4 > end:
        raise ValueError("RTP packet is not valid: its extension is cut")
    profile, words = struct.unpack_from("!HH", data, start)
    if start + 4 + 4 * words > end:
        raise ValueError("RTP packet is not valid: its extension is cut")
    return profile, data[start + 4 : start + 4 + 4 * words]
