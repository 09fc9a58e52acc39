"""What was received, counted as RFC 3550 counts it (§6.4.1, appendices A.3 and A.8)."""

from __future__ import annotations

from math import inf

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
