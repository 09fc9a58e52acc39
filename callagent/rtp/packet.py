"""RTP packets (RFC 3550 §5.1), and the telephone events that some of them carry: key presses (RFC 4733)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple, Self

from callagent.audio import DIGITS

HEADER = struct.Struct("!BBHII")
VERSION = 2
_PLAIN_FLAGS = VERSION << 6
"""The first octet of a packet without padding, extension and contributing sources."""


class RtpPacket(NamedTuple):
    """One RTP packet. A tuple, because each call makes fifty a second: a frozen dataclass takes three times as long."""

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
        """Parse a datagram. Raises `ValueError` for anything that RFC 3550 does not allow."""
        if len(data) < HEADER.size:
            raise ValueError("RTP packet is not valid: it is shorter than its header")
        flags, kind, sequence, timestamp, ssrc = HEADER.unpack_from(data)
        # Nearly all packets: no padding, extension or contributing sources. `tuple.__new__` saves a call in Python.
        if flags == _PLAIN_FLAGS:
            return tuple.__new__(cls, (kind & 0x7F, sequence, timestamp, ssrc, data[12:], kind > 0x7F, (), None))
        if flags >> 6 != VERSION:
            raise ValueError("RTP packet is not valid: it is not of version 2")
        end = len(data) - _padding_length(data) if flags & 0x20 else len(data)
        start = HEADER.size + 4 * (flags & 0x0F)
        if start > end:
            raise ValueError("RTP packet is not valid: its list of contributing sources is cut off")
        csrcs = struct.unpack_from(f"!{flags & 0x0F}I", data, HEADER.size)
        extension = None
        if flags & 0x10:
            extension = _parse_extension(data, start, end)
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
    """Return whether a datagram on a media port is RTCP: packet types 192 to 223 (RFC 5761 §4)."""
    return len(data) > 1 and 192 <= data[1] <= 223


def sequence_distance(later: int, earlier: int) -> int:
    """Return the signed distance of two 16-bit sequence numbers, which wrap around."""
    return ((later - earlier + 0x8000) & 0xFFFF) - 0x8000


def timestamp_distance(later: int, earlier: int) -> int:
    """Return the signed distance of two 32-bit timestamps, which wrap around."""
    return ((later - earlier + 0x80000000) & 0xFFFFFFFF) - 0x80000000


def _padding_length(data: bytes) -> int:
    padding = data[-1]
    if not 0 < padding <= len(data) - HEADER.size:
        raise ValueError("RTP packet is not valid: its padding is empty or longer than the payload")
    return padding


def _parse_extension(data: bytes, start: int, end: int) -> tuple[int, bytes]:
    if start + 4 > end:
        raise ValueError("RTP packet is not valid: its extension is cut")
    profile, words = struct.unpack_from("!HH", data, start)
    if start + 4 + 4 * words > end:
        raise ValueError("RTP packet is not valid: its extension is cut")
    return profile, data[start + 4 : start + 4 + 4 * words]


_BODY = struct.Struct("!BBH")
_MAX_SEGMENT = 0xFFFF


@dataclass(frozen=True, slots=True)
class TelephoneEvent:
    """The payload of one packet of a key press (RFC 4733 §2.3)."""

    event: int
    """The event code; 0 to 15 are the keys of a telephone."""
    end: bool
    """Whether the key was released."""
    duration: int
    """How long the key has been pressed since the packet's timestamp, in units of timestamps."""
    volume: int = 10
    """Power below 0 dBm0, in dB."""

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """Parse a payload. Raises `ValueError` if it is too short."""
        if len(payload) < _BODY.size:
            raise ValueError("Telephone event is not valid: it is shorter than four octets")
        event, flags, duration = _BODY.unpack_from(payload)
        return cls(event, bool(flags & 0x80), duration, flags & 0x3F)

    def __bytes__(self) -> bytes:
        return _BODY.pack(self.event, (0x80 if self.end else 0) | self.volume, self.duration)


class DigitReader:
    """Reader of key presses, each of which several packets repeat. Packets come in order of their sequence numbers."""

    def __init__(self) -> None:
        self._last: TelephoneEvent | None = None
        self._timestamp = 0

    def receive(self, event: TelephoneEvent, timestamp: int) -> str | None:
        """Return the digit at the first packet of a key press, None at later ones; no digit waits for an end packet."""
        last = self._last
        if last is not None:
            distance = timestamp_distance(timestamp, self._timestamp)
            # The packet repeats an event that was over before the last one began.
            if distance < 0:
                return None
            if self._is_same(event, last, distance):
                if distance == 0:
                    event = TelephoneEvent(event.event, last.end or event.end, max(last.duration, event.duration))
                self._last, self._timestamp = event, timestamp
                return None
        self._last, self._timestamp = event, timestamp
        return DIGITS[event.event] if event.event < len(DIGITS) else None

    def restart(self) -> None:
        """Forget the last event: the timestamps that follow are of another stream."""
        self._last = None

    @staticmethod
    def _is_same(event: TelephoneEvent, last: TelephoneEvent, distance: int) -> bool:
        """Return whether the packet continues the last event: its timestamp is the event's identity (§2.2.1).

        A long event goes on in a segment with a new timestamp (§2.5.1.3), and some senders move the timestamp with
        every packet. Both have a timestamp within the time that the event has already lasted; a new press of the same
        key has a later one.
        """
        if distance == 0:
            return True
        if event.event != last.event or last.end:
            return False
        return distance <= last.duration or distance == _MAX_SEGMENT


TONE_PACKETS = 5
END_PACKETS = 3
PAUSE_FRAMES = 3
"""Frames of a digit: 100 ms of tone, three packets that report its end (§2.5.1.4), 60 ms of pause; 220 ms in all."""
FRAMES_PER_DIGIT = TONE_PACKETS + END_PACKETS + PAUSE_FRAMES


def digit_events(digit: str, frame_units: int) -> list[TelephoneEvent]:
    """Return the packets of one key press, one per frame of `frame_units` timestamp units. Raises `ValueError`."""
    code = DIGITS.find(digit.upper())
    if code < 0 or len(digit) != 1:
        raise ValueError(f"'{digit}' is not a DTMF digit (0 to 9, *, #, A to D)")
    tone = [TelephoneEvent(code, False, frame_units * (index + 1)) for index in range(TONE_PACKETS)]
    return tone + [TelephoneEvent(code, True, frame_units * TONE_PACKETS)] * END_PACKETS
