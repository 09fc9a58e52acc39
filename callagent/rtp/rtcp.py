"""RTCP (RFC 3550 §6): sender and receiver reports, and the count of what was received that they are made of."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from callagent.rtp.packet import VERSION

SENDER_REPORT = 200
RECEIVER_REPORT = 201
SOURCE_DESCRIPTION = 202
GOODBYE = 203
INTERVAL_SECONDS = 5.0
_NTP_EPOCH = 2208988800
_HEADER = struct.Struct("!BBH")
_SENDER_INFO = struct.Struct("!QIII")
_BLOCK = struct.Struct("!IIIIII")


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """One receiver's view of one sender (§6.4.1)."""

    ssrc: int
    fraction_lost: int
    """In 1/256, since the last report."""
    lost: int
    highest: int
    jitter: int
    """In timestamp units."""
    last_report: int = 0
    """The middle 32 bits of the NTP time of the last sender report received; 0 when there was none."""
    delay: int = 0
    """Since that report, in 1/65536 s."""

    def __bytes__(self) -> bytes:
        lost = max(-0x800000, min(0x7FFFFF, self.lost)) & 0xFFFFFF
        return _BLOCK.pack(
            self.ssrc, self.fraction_lost << 24 | lost, self.highest, self.jitter, self.last_report, self.delay
        )


@dataclass(frozen=True, slots=True)
class Report:
    """A sender report, or a receiver report when `ntp_time` is None."""

    ssrc: int
    blocks: tuple[ReportBlock, ...] = ()
    ntp_time: int | None = None
    """64 bits."""
    rtp_time: int = 0
    packets: int = 0
    octets: int = 0

    def __bytes__(self) -> bytes:
        body = struct.pack("!I", self.ssrc)
        kind = RECEIVER_REPORT
        if self.ntp_time is not None:
            kind = SENDER_REPORT
            body += _SENDER_INFO.pack(self.ntp_time, self.rtp_time, self.packets & 0xFFFFFFFF, self.octets & 0xFFFFFFFF)
        return _packet(kind, len(self.blocks), body + b"".join(map(bytes, self.blocks)))


def parse_reports(data: bytes) -> list[Report]:
    """The reports of a compound packet (§6.1); other packets in it are skipped. Raises `ValueError`."""
    reports = (SENDER_REPORT, RECEIVER_REPORT)
    return [_parse_report(kind, count, body) for kind, count, body in _packets(data) if kind in reports]


def parse_goodbyes(data: bytes) -> list[int]:
    """The SSRCs whose streams end by this compound packet (§6.6). Raises `ValueError`."""
    ended: list[int] = []
    for kind, count, body in _packets(data):
        if kind == GOODBYE:
            if len(body) < 4 * count:
                raise ValueError("RTCP goodbye is not valid")
            ended += struct.unpack_from(f"!{count}I", body)
    return ended


def _packets(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Type, count and body of each packet of a compound one. Raises `ValueError` where one of them is not valid."""
    position = 0
    while position < len(data):
        if position + _HEADER.size > len(data):
            raise ValueError("RTCP packet is not valid")
        flags, kind, words = _HEADER.unpack_from(data, position)
        end = position + 4 * (words + 1)
        if flags >> 6 != VERSION or end > len(data) or not 192 <= kind <= 223:
            raise ValueError("RTCP packet is not valid")
        yield kind, flags & 0x1F, data[position + 4 : end]
        position = end


def compound(report: Report, name: str, *, goodbye: bool = False) -> bytes:
    """A report with the canonical name that must come with it (§6.1, §6.5.1)."""
    text = name.encode()
    chunk = struct.pack("!IBB", report.ssrc, 1, len(text)) + text
    last = _packet(GOODBYE, 1, struct.pack("!I", report.ssrc)) if goodbye else b""
    return bytes(report) + _packet(SOURCE_DESCRIPTION, 1, chunk + bytes(4 - len(chunk) % 4)) + last


def ntp_time(wall_clock: float) -> int:
    """64-bit NTP time of seconds since 1970."""
    return int((wall_clock + _NTP_EPOCH) * 4294967296) & 0xFFFFFFFFFFFFFFFF


def middle(ntp: int) -> int:
    return ntp >> 16 & 0xFFFFFFFF


def round_trip(block: ReportBlock, arrived: int) -> float | None:
    """Seconds, from a block about us that arrived at NTP time `arrived` (§6.4.1); None when it tells none."""
    if not block.last_report:
        return None
    units = (middle(arrived) - block.last_report - block.delay) & 0xFFFFFFFF
    return units / 65536 if units < 60 * 65536 else None


def _packet(kind: int, count: int, body: bytes) -> bytes:
    return _HEADER.pack(VERSION << 6 | count, kind, len(body) // 4) + body


def _parse_report(kind: int, count: int, body: bytes) -> Report:
    start = 4 + (_SENDER_INFO.size if kind == SENDER_REPORT else 0)
    if len(body) < start + count * _BLOCK.size:
        raise ValueError("RTCP report is not valid")
    (ssrc,) = struct.unpack_from("!I", body)
    blocks = tuple(_parse_block(body, start + index * _BLOCK.size) for index in range(count))
    if kind == RECEIVER_REPORT:
        return Report(ssrc, blocks)
    ntp, rtp_time, packets, octets = _SENDER_INFO.unpack_from(body, 4)
    return Report(ssrc, blocks, ntp, rtp_time, packets, octets)


def _parse_block(body: bytes, start: int) -> ReportBlock:
    ssrc, losses, highest, jitter, last_report, delay = _BLOCK.unpack_from(body, start)
    lost = losses & 0xFFFFFF
    signed = lost - 0x1000000 if lost & 0x800000 else lost
    return ReportBlock(ssrc, losses >> 24, signed, highest, jitter, last_report, delay)


_HALF = 0x8000
"""Of the sequence numbers."""


class Reception:
    """Of one stream."""

    def __init__(self) -> None:
        self.packets = 0
        self.jitter = 0.0
        """In timestamp units."""
        self._cycles = 0
        self._highest = 0
        self._base: int | None = None
        self._transit = inf
        self._expected_before = 0
        self._packets_before = 0

    def receive(self, sequence: int, timestamp: int | None, now: float, clock_rate: int) -> None:
        """A packet; `timestamp` is None when it does not tell when the packet was sent."""
        self.packets += 1
        if self._base is None:
            self._base = self._highest = sequence
        elif 0 < (sequence - self._highest) & 0xFFFF < _HALF:
            self._cycles += sequence < self._highest
            self._highest = sequence
        if timestamp is None:
            return
        transit = now * clock_rate - timestamp
        change = abs(transit - self._transit)
        # A jump of the timestamp is not jitter, nor is the first packet.
        if change < clock_rate:
            self.jitter += (change - self.jitter) / 16
        self._transit = transit

    def restart(self) -> None:
        """Another stream begins; the jitter and the count of packets go on."""
        self.packets = self._packets_before = self._expected_before = self._cycles = 0
        self._base = None
        self._transit = inf

    @property
    def highest(self) -> int:
        """The extended highest sequence number, in 32 bits."""
        return (self._cycles << 16 | self._highest) & 0xFFFFFFFF

    @property
    def expected(self) -> int:
        return 0 if self._base is None else (self._cycles << 16) + self._highest - self._base + 1

    def fraction_lost(self) -> int:
        """Since the last call, in 1/256."""
        expected = self.expected - self._expected_before
        lost = expected - (self.packets - self._packets_before)
        self._expected_before, self._packets_before = self.expected, self.packets
        return min(255, (lost << 8) // expected) if expected > 0 and lost > 0 else 0
