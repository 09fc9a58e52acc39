"""A jitter buffer, which puts packets in order and decides which are lost, and the counts of a stream for RTCP.

A packet that arrives in order leaves at once, so a clean stream is not delayed. Behind a missing packet the later ones
are held until it comes, until enough later ones have come, or until a time limit. The limit follows the longest
reordering seen: 40 to 200 ms. Each packet in order restarts it: otherwise all numbers up to a corrupt one
would be given up, and the real packets would come too late.
"""

from __future__ import annotations

from math import inf

from callagent.audio import FRAME_SECONDS
from callagent.rtp.packet import RtpPacket, sequence_distance

MIN_HOLD = 0.04
MAX_HOLD = 0.2
"""Bounds of the time limit of a gap, in seconds."""
CAPACITY = 64
"""The most packets that are held behind a gap."""
_MARGIN = 0.01
"""Seconds by which the limit exceeds the longest reordering seen."""
_DECAY = 0.998
"""Factor of the limit for each packet in order: it falls to half in 7 s."""
_MAX_GIVEN_UP = 256
"""Numbers declared lost that are remembered, so that a packet that comes after all is counted as late."""


class JitterBuffer:
    """The packets of one media session, put in order. Call `restart` when another stream begins."""

    def __init__(self) -> None:
        self.lost = 0
        self.late = 0
        self.duplicates = 0
        self.hold = MIN_HOLD
        """Seconds that a gap may last before its packets are given up as lost."""
        self._next: int | None = None
        self._held: dict[int, RtpPacket] = {}
        self._gap_since: float | None = None
        self._given_up: dict[int, float] = {}
        """Numbers declared lost and when their gap began, the oldest first."""

    def receive(self, packet: RtpPacket, now: float) -> list[RtpPacket]:
        """Take one packet; return those that can be played now, in order."""
        sequence = packet.sequence
        if self._next is None:
            self._next = sequence
        # The common case, fifty times a second in each call: nothing is missing, nothing is stored.
        if sequence == self._next and not self._held:
            self._next = (sequence + 1) & 0xFFFF
            if self.hold > MIN_HOLD:
                self.hold = max(MIN_HOLD, self.hold * _DECAY)
            return [packet]
        distance = sequence_distance(sequence, self._next)
        # The packet is too late: its number was played already, or given up.
        if distance < 0:
            self._count_old(sequence, now)
            return []
        if sequence in self._held:
            self.duplicates += 1
            return []
        self._held[sequence] = packet
        # The missing packet has come, so later gaps may last as long as this one did.
        if distance == 0:
            self._adapt(now - self._gap_since if self._gap_since is not None else 0.0)
            self._gap_since = now
            return self._release(now)
        if self._gap_since is None:
            self._gap_since = now
        return self.expire(now)

    def expire(self, now: float) -> list[RtpPacket]:
        """Give up the packets missing for too long; return the packets held behind them, in order."""
        released: list[RtpPacket] = []
        while self._gap_since is not None and self._is_over(now):
            self._give_up_gap()
            released += self._release(now)
        return released

    def restart(self, now: float) -> list[RtpPacket]:
        """Begin anew with the number of the next packet; return the packets still held, in order."""
        released: list[RtpPacket] = []
        while self._held:
            self._give_up_gap()
            released += self._release(now)
        self._next = None
        self._given_up.clear()
        return released

    def next_timer(self) -> float | None:
        """Return when `expire` is to be called; None while nothing is missing."""
        return None if self._gap_since is None else self._gap_since + self.hold

    def _is_over(self, now: float) -> bool:
        assert self._gap_since is not None
        # The limit is also over when as many packets are held as arrive within it.
        enough = max(2, round(self.hold / FRAME_SECONDS)) + 1
        return now >= self._gap_since + self.hold or len(self._held) >= min(enough, CAPACITY)

    def _give_up_gap(self) -> None:
        assert self._next is not None
        first = self._next
        # Only the first gap is given up; the packets behind it may hide further ones.
        behind = min(sequence_distance(sequence, first) for sequence in self._held)
        for sequence in range(first, first + behind):
            self._given_up[sequence & 0xFFFF] = self._gap_since or 0.0
            if len(self._given_up) > _MAX_GIVEN_UP:
                del self._given_up[next(iter(self._given_up))]
        self.lost += behind
        self._next = (first + behind) & 0xFFFF

    def _release(self, now: float) -> list[RtpPacket]:
        assert self._next is not None
        released = []
        while (packet := self._held.pop(self._next, None)) is not None:
            released.append(packet)
            self._next = (self._next + 1) & 0xFFFF
        self._gap_since = now if self._held else None
        return released

    def _count_old(self, sequence: int, now: float) -> None:
        # A number that was given up comes after all: it was late and not lost, and the limit was too short.
        since = self._given_up.pop(sequence, None)
        if since is None:
            self.duplicates += 1
            return
        self.lost -= 1
        self.late += 1
        self._adapt(now - since)

    def _adapt(self, delay: float) -> None:
        self.hold = min(MAX_HOLD, max(self.hold, delay * 1.25 + _MARGIN))


_HALF = 0x8000
"""Half the range of the sequence numbers: a number that is farther ahead counts as behind."""


class Reception:
    """The counts of one received stream for receiver reports (RFC 3550 §6.4.1, appendix A.3 and A.8)."""

    def __init__(self) -> None:
        self.packets = 0
        self.jitter = 0.0
        """Interarrival jitter in timestamp units."""
        self._cycles = 0
        self._highest = 0
        self._base: int | None = None
        self._transit = inf
        self._expected_before = 0
        self._packets_before = 0

    def receive(self, sequence: int, timestamp: int | None, now: float, clock_rate: int) -> None:
        """Count a packet that arrived at `now`; `timestamp` is None if it does not tell when the packet was sent."""
        self.packets += 1
        if self._base is None:
            self._base = self._highest = sequence
        elif 0 < (sequence - self._highest) & 0xFFFF < _HALF:
            # If a later packet has a lower number, the numbers have wrapped around.
            self._cycles += sequence < self._highest
            self._highest = sequence
        if timestamp is None:
            return
        transit = now * clock_rate - timestamp
        change = abs(transit - self._transit)
        # A jump of the timestamp by a second is a new time base and not jitter. The first packet's is infinite.
        if change < clock_rate:
            self.jitter += (change - self.jitter) / 16
        self._transit = transit

    def restart(self) -> None:
        """Begin to count another stream; the jitter is kept."""
        self.packets = self._packets_before = self._expected_before = self._cycles = 0
        self._base = None
        self._transit = inf

    @property
    def highest(self) -> int:
        """The extended highest sequence number, in 32 bits."""
        return (self._cycles << 16 | self._highest) & 0xFFFFFFFF

    @property
    def expected(self) -> int:
        """How many packets the peer has sent, by their sequence numbers."""
        return 0 if self._base is None else (self._cycles << 16) + self._highest - self._base + 1

    def fraction_lost(self) -> int:
        """Return the share of packets lost since the previous report, in 1/256."""
        # Duplicates can make the difference negative; that is reported as no loss (appendix A.3).
        expected = self.expected - self._expected_before
        lost = expected - (self.packets - self._packets_before)
        self._expected_before, self._packets_before = self.expected, self.packets
        return min(255, (lost << 8) // expected) if expected > 0 and lost > 0 else 0
