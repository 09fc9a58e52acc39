"""Which packets belong to the peer's stream (RFC 3550 §8.2 and appendix A.1).

A packet whose number is near the last one is taken at once. Another synchronisation source, or a number far away, must
show a run of packets first while the present stream is quiet; the run is then handed out whole, so that a peer that
restarts its stream loses nothing, and a corrupt or injected packet changes nothing.
"""

from __future__ import annotations

from callagent.rtp.packet import RtpPacket, sequence_distance

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
