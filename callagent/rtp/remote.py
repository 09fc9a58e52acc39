"""Whose packets a media session takes and where it sends its own: the defence against RTP bleed and injection.

The SDP names an address. Packets from another IP are a stranger's, for ever, unless the trunk has media networks of
its own. A NAT may change the port, so another port of the same IP is latched, once: with its first packet where that is
authentic (SRTP), else with the fifth of a row that counts up, and the four before it are heard then. What is sprayed on
every port before the peer speaks is neither heard nor answered. The port that the SDP names wins over it at any time:
behind a trunk that sends all its media from one IP, the stale stream of an earlier call must not keep the place.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address

from callagent.rtp.packet import RtpPacket

Address = tuple[str, int]

_PROOF_PACKETS = 5
_LARGEST_GAP = 50
_MAX_CANDIDATES = 8


class _State(Enum):
    WAITING = "waiting"
    LATCHED = "latched"
    """On an address that the SDP does not name."""
    NAMED = "named"
    """The address that the SDP names has spoken; no other ever will."""


class _Candidate:
    """A port that the SDP does not name, and that may be the peer's."""

    __slots__ = ("packets",)

    def __init__(self, packet: RtpPacket, now: float) -> None:
        self.packets = [(packet, now)]

    def add(self, packet: RtpPacket, now: float) -> bool:
        """Whether this packet makes it a stream."""
        gap = (packet.sequence - self.packets[-1][0].sequence) & 0xFFFF
        if gap >= 0x10000 - _LARGEST_GAP or not gap:
            return False
        if gap > _LARGEST_GAP:
            self.packets.clear()
        self.packets.append((packet, now))
        return len(self.packets) >= _PROOF_PACKETS


class Remote:
    """The peer's media address."""

    def __init__(self, address: Address, networks: Sequence[IPv4Network | IPv6Network] = ()) -> None:
        """Raises `ValueError` when the host is not an IP address: names are not looked up."""
        self.address = (str(ip_address(address[0])), address[1])
        """Where our packets go."""
        self._named = self.address
        self._networks = networks
        self._state = _State.WAITING
        self._candidates: dict[Address, _Candidate] = {}
        self.proof: list[tuple[RtpPacket, float]] = []
        """What `take_proof` gives."""

    def accept(self, source: Address, packet: RtpPacket, now: float, *, authentic: bool) -> bool:
        """Whether a packet from `source` is the peer's; may change `address`, and leave something to `take_proof`."""
        if source == self._named:
            if self._state is not _State.NAMED:
                self._state = _State.NAMED
                self.address = source
                self._candidates.clear()
            return True
        if (
            self._state is _State.WAITING
            and self.accept_host(source)
            and (authentic or self._is_stream(source, packet, now))
        ):
            self._state = _State.LATCHED
            self.address = source
            self._candidates.clear()
        return self._state is _State.LATCHED and source == self.address

    def take_proof(self) -> list[tuple[RtpPacket, float]]:
        """The packets, and when they came, that were not accepted before the one that proved them the peer's."""
        proof, self.proof = self.proof, []
        return proof

    def accept_host(self, source: Address) -> bool:
        """Whether `source` is the peer's machine; for RTCP, which comes from a port of its own."""
        if source[0] in (self._named[0], self.address[0]):
            return True
        return bool(self._networks) and any(ip_address(source[0]) in network for network in self._networks)

    def _is_stream(self, source: Address, packet: RtpPacket, now: float) -> bool:
        candidate = self._candidates.get(source)
        if candidate is not None:
            if not candidate.add(packet, now):
                return False
            self.proof = candidate.packets[:-1]
            return True
        if len(self._candidates) >= _MAX_CANDIDATES:
            self._candidates.clear()
        self._candidates[source] = _Candidate(packet, now)
        return False
