"""When a media session reports by RTCP and what it keeps of the peer's reports."""

from __future__ import annotations

import random

from callagent.rtp import rtcp
from callagent.rtp.receiver import RtpReceiver
from callagent.rtp.sender import RtpSender

_SETTLED = 250
"""Packets of ours, five seconds: a peer that reports by then and says nothing of us has not heard one."""
_DEAF = 230
"""Of 256 packets lost, all but one in ten."""


class Reports:
    """Bad RTCP changes nothing; good RTCP changes only the figures here."""

    def __init__(self, name: str, now: float) -> None:
        self.due = 0.0
        """When the next report is to be sent."""
        self.received = 0
        """Reports of the peer about our stream."""
        self.ended_at: float | None = None
        """When the peer said that its present stream ends."""
        self.one_way = False
        """By its last report the peer does not hear us."""
        self.peer_lost = 0
        self.peer_jitter = 0
        """In units of the timestamps that we send."""
        self.round_trip = 0.0
        """Seconds."""
        self._name = name
        self._last_report = 0
        self._last_report_at = 0.0
        self._schedule(now)

    def make(self, sender: RtpSender, receiver: RtpReceiver, now: float, wall_clock: float) -> bytes:
        """The report that is due."""
        self._schedule(now)
        return rtcp.compound(self._report(sender, receiver, wall_clock), self._name)

    def goodbye(self, sender: RtpSender, receiver: RtpReceiver, now: float, wall_clock: float) -> bytes:
        """The last report: our stream ends (RFC 3550 §6.6)."""
        self._schedule(now)
        return rtcp.compound(self._report(sender, receiver, wall_clock), self._name, goodbye=True)

    def _report(self, sender: RtpSender, receiver: RtpReceiver, wall_clock: float) -> rtcp.Report:
        ntp_time = rtcp.ntp_time(wall_clock) if sender.packets else None
        blocks: tuple[rtcp.ReportBlock, ...] = ()
        if receiver.ssrc is not None:
            blocks = (self._block(receiver.ssrc, receiver, wall_clock),)
        return rtcp.Report(sender.ssrc, blocks, ntp_time, sender.timestamp, sender.packets, sender.octets)

    def receive(self, data: bytes, sender: RtpSender, receiver: RtpReceiver, now: float, wall_clock: float) -> None:
        """A datagram of the peer's that claims to be RTCP."""
        try:
            reports, ended = rtcp.parse_reports(data), rtcp.parse_goodbyes(data)
        except ValueError:
            receiver.refused += 1
            return
        if receiver.ssrc in ended:
            self.ended_at = now
        for report in reports:
            if report.ntp_time is not None and report.ssrc == receiver.ssrc:
                self._last_report = rtcp.middle(report.ntp_time)
                self._last_report_at = wall_clock
            block = next((each for each in report.blocks if each.ssrc == sender.ssrc), None)
            if block is not None:
                self._keep(block, wall_clock)
            elif report.ssrc == receiver.ssrc and sender.packets >= _SETTLED:
                self.one_way = True

    def _keep(self, block: rtcp.ReportBlock, wall_clock: float) -> None:
        self.received += 1
        self.one_way = block.fraction_lost >= _DEAF
        self.peer_lost = max(0, block.lost)
        self.peer_jitter = block.jitter
        trip = rtcp.round_trip(block, rtcp.ntp_time(wall_clock))
        if trip is not None:
            self.round_trip = trip

    def _block(self, ssrc: int, receiver: RtpReceiver, wall_clock: float) -> rtcp.ReportBlock:
        reception = receiver.reception
        delay = int((wall_clock - self._last_report_at) * 65536) if self._last_report else 0
        return rtcp.ReportBlock(
            ssrc=ssrc,
            fraction_lost=reception.fraction_lost(),
            lost=reception.expected - reception.packets,
            highest=reception.highest,
            jitter=int(reception.jitter),
            last_report=self._last_report,
            delay=max(0, min(delay, 0xFFFFFFFF)),
        )

    def _schedule(self, now: float) -> None:
        # Spread over half to one and a half intervals (RFC 3550 §6.2): sessions must not report in step.
        self.due = now + rtcp.INTERVAL_SECONDS * random.uniform(0.5, 1.5)
