"""The peer of a media session: whose packets are taken, which stream of them is followed, and when it is given up.

`Remote` decides by address; it is the defence against RTP bleed and injection. The SDP names an address. Packets from
another IP are a stranger's, for ever, unless the trunk has media networks of its own. A NAT may change the port, so
another port of the same IP is latched, once: with its first packet where that is authentic (SRTP), else with the fifth
of a row that counts up, and the four before it are heard then. What is sprayed on every port before the peer speaks is
neither heard nor answered. The port that the SDP names wins over it at any time: behind a trunk that sends all its
media from one IP, the stale stream of an earlier call must not keep the place.

`Source` decides by synchronisation source and sequence number (RFC 3550 §8.2 and appendix A.1). A packet whose number
is near the last one is taken at once. Another source, or a number far away, must show a run of packets first while the
present stream is quiet; the run is then handed out whole, so that a peer that restarts its stream loses nothing, and a
corrupt or injected packet changes nothing.

`MediaTimeout` decides how long a silence of the peer is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Network, IPv6Network, ip_address

from callagent.rtp.packet import RtpPacket, sequence_distance

Address = tuple[str, int]

_PROOF_PACKETS = 5
_MAX_GAP = 50
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
        if gap >= 0x10000 - _MAX_GAP or not gap:
            return False
        if gap > _MAX_GAP:
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


MAX_AHEAD = 50
MAX_BEHIND = 25
RUN = 3
MAX_STEP = 3
"""Numbers from one packet of a run to the next: losses do not break it."""
QUIET_SECONDS = 0.05


class Source:
    """The stream that is followed."""

    def __init__(self) -> None:
        self.ssrc: int | None = None
        self.refused = 0
        self._highest = 0
        self._heard = 0.0
        self._run: list[RtpPacket] = []

    def accept(self, packet: RtpPacket, now: float) -> bool:
        """Whether the packet is of the stream that is followed."""
        if packet.ssrc != self.ssrc:
            return False
        distance = sequence_distance(packet.sequence, self._highest)
        if not -MAX_BEHIND <= distance <= MAX_AHEAD:
            return False
        if distance > 0:
            self._highest = packet.sequence
        self._heard = now
        if self._run:
            self._drop_run()
        return True

    def change(self, packet: RtpPacket, now: float) -> list[RtpPacket]:
        """Of a packet not accepted: what there is of the stream that is followed from now on; empty for none yet."""
        if self.ssrc is None:
            return self._follow([packet], now)
        self._extend_run(packet)
        if not self._run_is_enough(now):
            return []
        run, self._run = self._run, []
        return self._follow(run, now)

    def _follow(self, packets: list[RtpPacket], now: float) -> list[RtpPacket]:
        self.ssrc = packets[-1].ssrc
        self._highest = packets[-1].sequence
        self._heard = now
        return packets

    def _extend_run(self, packet: RtpPacket) -> None:
        last = self._run[-1] if self._run else None
        if last and not _continues(packet, last):
            self._drop_run()
        if len(self._run) == 2 * RUN:
            # The present source still speaks: the other one stays refused, and bounded.
            self.refused += 1
            self._run.pop(0)
        self._run.append(packet)

    def _run_is_enough(self, now: float) -> bool:
        return len(self._run) >= RUN and now - self._heard >= QUIET_SECONDS

    def _drop_run(self) -> None:
        self.refused += len(self._run)
        self._run.clear()


def _continues(packet: RtpPacket, last: RtpPacket) -> bool:
    return packet.ssrc == last.ssrc and 0 < sequence_distance(packet.sequence, last.sequence) <= MAX_STEP


@dataclass(frozen=True, slots=True)
class RtpSettings:
    """Seconds without a packet after which the media has timed out."""

    first_packet_timeout: float = 30.0
    packet_timeout: float = 20.0
    hold_timeout: float = 300.0
    """Also of a peer that is not expected to send: one that only listens, one whose silence is a description of noise
    (it may send nothing as long as the noise stays, RFC 3389 §3.4), and a caller whom the agent still asks to speak."""
    goodbye_timeout: float = 10.0
    """After an RTCP BYE that no packet follows: the peer's BYE is lost or late, or its stream goes on elsewhere."""


class MediaTimeout:
    """Expires once."""

    def __init__(self, settings: RtpSettings, now: float) -> None:
        self._settings = settings
        self._since = now
        self._held = False
        self._expired = False

    def restart(self, now: float) -> None:
        """From here on packets are expected."""
        self._since = now

    def hold(self, held: bool, now: float) -> None:
        self._held = held
        self._since = now

    def expire(
        self, heard: float | None, now: float, *, expected: bool = True, goodbye: float | None = None
    ) -> str | None:
        """What was waited for in vain; `heard` is when the last packet came.

        `expected`: whether the peer ought to send. `goodbye`: when its RTCP BYE came.
        """
        last = max(self._since, heard or self._since)
        what, limit = "no media", self._limit(heard, expected=expected)
        if goodbye is not None and goodbye >= last and expected and not self._held:
            ends = min(last + limit, goodbye + self._settings.goodbye_timeout)
            what, limit = "no media after a goodbye", ends - last
        if self._expired or now - last < limit:
            return None
        self._expired = True
        return f"{what} for {limit:.3g} s"

    def _limit(self, heard: float | None, *, expected: bool) -> float:
        if self._held or not expected:
            return self._settings.hold_timeout
        return self._settings.first_packet_timeout if heard is None else self._settings.packet_timeout
