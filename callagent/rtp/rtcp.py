"""RTCP (RFC 3550 §6): sender and receiver reports, their schedule, and the figures that the peer reports."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from callagent.rtp.packet import VERSION
from callagent.rtp.receiver import RtpReceiver
from callagent.rtp.sender import RtpSender

SENDER_REPORT = 200
RECEIVER_REPORT = 201
SOURCE_DESCRIPTION = 202
GOODBYE = 203
INTERVAL_SECONDS = 5.0
"""The average time between our reports."""
_NTP_EPOCH = 2208988800
"""Seconds from 1900, where NTP time begins, to 1970."""
_HEADER = struct.Struct("!BBH")
_SENDER_INFO = struct.Struct("!QIII")
_BLOCK = struct.Struct("!IIIIII")


@dataclass(frozen=True, slots=True)
class ReportBlock:
    """A receiver's figures about one sender (§6.4.1)."""

    ssrc: int
    """The sender that the block is about."""
    fraction_lost: int
    """The share of packets lost since the last report, in 1/256."""
    lost: int
    """Packets lost since the beginning; negative if there were more duplicates than losses."""
    highest: int
    """The highest sequence number received, extended to 32 bits."""
    jitter: int
    """In timestamp units."""
    last_report: int = 0
    """The middle 32 bits of the NTP time of the last sender report received; 0 when there was none."""
    delay: int = 0
    """Time since that report, in 1/65536 s."""

    def __bytes__(self) -> bytes:
        # A signed number of 24 bits.
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
    """When the report was sent, in the 64 bits of NTP."""
    rtp_time: int = 0
    packets: int = 0
    octets: int = 0

    def __bytes__(self) -> bytes:
        body = struct.pack("!I", self.ssrc)
        kind = RECEIVER_REPORT
        if self.ntp_time is not None:
            kind = SENDER_REPORT
            body += _SENDER_INFO.pack(self.ntp_time, self.rtp_time, self.packets & 0xFFFFFFFF, self.octets & 0xFFFFFFFF)
        return _make_packet(kind, len(self.blocks), body + b"".join(map(bytes, self.blocks)))


def parse_reports(data: bytes) -> list[Report]:
    """Return the reports of a compound packet (§6.1); other packets in it are skipped. Raises `ValueError`."""
    reports = (SENDER_REPORT, RECEIVER_REPORT)
    return [_parse_report(kind, count, body) for kind, count, body in _split_compound(data) if kind in reports]


def parse_goodbyes(data: bytes) -> list[int]:
    """Return the sources whose streams this compound packet ends (§6.6). Raises `ValueError`."""
    ended: list[int] = []
    for kind, count, body in _split_compound(data):
        if kind == GOODBYE:
            if len(body) < 4 * count:
                raise ValueError("RTCP goodbye is not valid")
            ended += struct.unpack_from(f"!{count}I", body)
    return ended


def _split_compound(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield type, count and body of each packet of a compound one. Raises `ValueError` at the first invalid one."""
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


def compound_packet(report: Report, name: str, *, goodbye: bool = False) -> bytes:
    """Return a compound packet: a report, the canonical name that must follow it (§6.1, §6.5.1), an optional BYE."""
    text = name.encode()
    chunk = struct.pack("!IBB", report.ssrc, 1, len(text)) + text
    last = _make_packet(GOODBYE, 1, struct.pack("!I", report.ssrc)) if goodbye else b""
    # The chunk ends with at least one zero octet, at a multiple of four (§6.5).
    return bytes(report) + _make_packet(SOURCE_DESCRIPTION, 1, chunk + bytes(4 - len(chunk) % 4)) + last


def ntp_time(wall_clock: float) -> int:
    """Return the 64-bit NTP time of seconds since 1970: seconds since 1900 in the upper half, their fraction below."""
    return int((wall_clock + _NTP_EPOCH) * 4294967296) & 0xFFFFFFFFFFFFFFFF


def middle_bits(ntp: int) -> int:
    """Return the middle 32 bits of an NTP time, which identify a sender report in the blocks that answer it (§4)."""
    return ntp >> 16 & 0xFFFFFFFF


def round_trip(block: ReportBlock, arrived: int) -> float | None:
    """Return the round-trip seconds from a block about us that arrived at NTP time `arrived` (§6.4.1), or None."""
    # The peer had not yet received any of our sender reports.
    if not block.last_report:
        return None
    units = (middle_bits(arrived) - block.last_report - block.delay) & 0xFFFFFFFF
    # More than a minute is a negative time that wrapped: a clock was changed, or the peer's delay is wrong.
    return units / 65536 if units < 60 * 65536 else None


def _make_packet(kind: int, count: int, body: bytes) -> bytes:
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


_MIN_PACKETS_SENT = 250
"""Packets that we must have sent (five seconds) before a peer's report without a block about us means that it receives
nothing."""
_MIN_FRACTION_UNHEARD = 230
"""The fraction lost, in 1/256, from which we assume that the peer does not hear us: nine packets in ten."""


class Reports:
    """The RTCP of one media session: the schedule of our reports, and the figures from those of the peer."""

    def __init__(self, name: str, now: float) -> None:
        self.due = 0.0
        """The monotonic time at which the next report is to be sent."""
        self.received = 0
        """Reports received from the peer about our stream."""
        self.ended_at: float | None = None
        """The monotonic time at which the peer's BYE for its present stream arrived."""
        self.one_way = False
        """Whether the peer does not hear us, by its last report."""
        self.peer_lost = 0
        """How many of our packets the peer has lost."""
        self.peer_jitter = 0
        """In units of the timestamps that we send."""
        self.round_trip = 0.0
        """Round-trip time in seconds."""
        self._name = name
        self._last_report = 0
        self._last_report_at = 0.0
        self._schedule(now)

    def make(self, sender: RtpSender, receiver: RtpReceiver, now: float, wall_clock: float) -> bytes:
        """Return the report that is due."""
        self._schedule(now)
        return compound_packet(self._report(sender, receiver, wall_clock), self._name)

    def goodbye(self, sender: RtpSender, receiver: RtpReceiver, now: float, wall_clock: float) -> bytes:
        """Return the last report, with the BYE that ends our stream (RFC 3550 §6.6)."""
        self._schedule(now)
        return compound_packet(self._report(sender, receiver, wall_clock), self._name, goodbye=True)

    def _report(self, sender: RtpSender, receiver: RtpReceiver, wall_clock: float) -> Report:
        sent_at = ntp_time(wall_clock) if sender.packets else None
        blocks: tuple[ReportBlock, ...] = ()
        if receiver.ssrc is not None:
            blocks = (self._block(receiver.ssrc, receiver, wall_clock),)
        return Report(sender.ssrc, blocks, sent_at, sender.timestamp, sender.packets, sender.octets)

    def receive(self, data: bytes, sender: RtpSender, receiver: RtpReceiver, now: float, wall_clock: float) -> None:
        """Read a datagram of the peer that may be RTCP; one that is not valid counts as refused."""
        try:
            reports, ended = parse_reports(data), parse_goodbyes(data)
        except ValueError:
            receiver.refused += 1
            return
        # A BYE for another source belongs to an earlier stream, or is forged by somebody who does not hear this one.
        if receiver.ssrc in ended:
            self.ended_at = now
        for report in reports:
            if report.ntp_time is not None and report.ssrc == receiver.ssrc:
                self._last_report = middle_bits(report.ntp_time)
                self._last_report_at = wall_clock
            block = next((each for each in report.blocks if each.ssrc == sender.ssrc), None)
            if block is not None:
                self._store_figures(block, wall_clock)
            elif report.ssrc == receiver.ssrc and sender.packets >= _MIN_PACKETS_SENT:
                self.one_way = True

    def _store_figures(self, block: ReportBlock, wall_clock: float) -> None:
        """Store the figures of a block about our stream."""
        self.received += 1
        self.one_way = block.fraction_lost >= _MIN_FRACTION_UNHEARD
        self.peer_lost = max(0, block.lost)
        self.peer_jitter = block.jitter
        trip = round_trip(block, ntp_time(wall_clock))
        if trip is not None:
            self.round_trip = trip

    def _block(self, ssrc: int, receiver: RtpReceiver, wall_clock: float) -> ReportBlock:
        reception = receiver.reception
        delay = int((wall_clock - self._last_report_at) * 65536) if self._last_report else 0
        return ReportBlock(
            ssrc=ssrc,
            fraction_lost=reception.fraction_lost(),
            lost=reception.expected - reception.packets,
            highest=reception.highest,
            jitter=int(reception.jitter),
            last_report=self._last_report,
            delay=max(0, min(delay, 0xFFFFFFFF)),
        )

    def _schedule(self, now: float) -> None:
        # Half to one and a half intervals (RFC 3550 §6.2), so that sessions do not report in step.
        self.due = now + INTERVAL_SECONDS * random.uniform(0.5, 1.5)
