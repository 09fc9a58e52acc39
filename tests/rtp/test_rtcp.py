from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.rtp import rtcp
from callagent.rtp.codec import PCMU, RtpParameters
from callagent.rtp.receiver import RtpReceiver
from callagent.rtp.rtcp import Report, ReportBlock, Reports, parse_reports
from callagent.rtp.sender import RtpSender
from tests.rtp.streams import PEER, audio

BLOCK = ReportBlock(ssrc=7, fraction_lost=51, lost=-3, highest=70000, jitter=12, last_report=1, delay=65536)
SENT = Report(9, (BLOCK,), rtcp.ntp_time(1_700_000_000.5), 160, 10, 1600)


def test_reports_read_as_they_were_written() -> None:
    for report in (SENT, Report(9, (BLOCK, BLOCK)), Report(9)):
        data = rtcp.compound_packet(report, "name")
        assert len(data) % 4 == 0
        assert parse_reports(data) == [report]


def test_the_name_comes_after_the_report_and_ends_with_a_zero() -> None:
    for name in ("a", "ab", "abc", "abcd"):
        description = rtcp.compound_packet(Report(9), name)[8:]
        assert description[1] == rtcp.SOURCE_DESCRIPTION
        assert len(description) == 4 * (struct.unpack("!H", description[2:4])[0] + 1)
        assert description[8:10] == bytes([1, len(name)])
        assert description[10:].rstrip(b"\0") == name.encode()
        assert description[-1] == 0


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\xc9",
        b"\x00\xc9\x00\x01\0\0\0\x01",
        b"\x80\xc9\x00\x02\0\0\0\x01",
        b"\x81\xc9\x00\x01\0\0\0\x01",
        b"\x80\xc9\x00\x00",
        b"\x80\x10\x00\x00",
        bytes(SENT)[:-4],
    ],
)
def test_rtcp_that_is_not_valid(data: bytes) -> None:
    with pytest.raises(ValueError, match="RTCP"):
        parse_reports(data)


@given(st.binary(max_size=120) | st.binary(max_size=100).map(lambda data: b"\x9f\xc8\x00\x18" + data))
def test_any_datagram_is_reports_or_a_value_error(data: bytes) -> None:
    try:
        parse_reports(data)
    except ValueError:
        pass


def test_the_round_trip_is_what_passed_less_what_the_peer_waited() -> None:
    block = ReportBlock(7, 0, 0, 0, 0, rtcp.middle_bits(rtcp.ntp_time(1000.0)), 2 * 65536)
    assert rtcp.round_trip(block, rtcp.ntp_time(1002.25)) == pytest.approx(0.25, abs=1e-3)
    assert rtcp.round_trip(block, rtcp.ntp_time(900.0)) is None
    assert rtcp.round_trip(ReportBlock(7, 0, 0, 0, 0), rtcp.ntp_time(1.0)) is None


PEER_CONTROL = (PEER[0], PEER[1] + 1)


class Side:
    """One end of a call that only reports."""

    def __init__(self) -> None:
        self.sender = RtpSender(PCMU)
        self.receiver = RtpReceiver(RtpParameters(PCMU), 0.0)
        self.receiver.connect(PEER, RtpParameters(PCMU), 0.0)
        self.reports = Reports("name", 0.0)

    def make(self, now: float) -> bytes:
        return self.reports.make(self.sender, self.receiver, now, now)

    def take(self, data: bytes, now: float, source: tuple[str, int] = PEER_CONTROL) -> None:
        opened = self.receiver.open_control(data, source, now)
        if opened is not None:
            self.reports.receive(opened, self.sender, self.receiver, now, now)


def test_two_ends_learn_loss_and_round_trip_from_each_other() -> None:
    here, there = Side(), Side()
    for index in range(100):
        packet = here.sender.frame_to_send(None)
        if index % 4 != 1:
            there.receiver.receive(packet, PEER, index * 0.02)
    there.take(here.make(1000.0), 1000.1)
    here.take(there.make(1003.0), 1003.1)
    assert here.reports.peer_lost == 25
    assert here.reports.received == 1
    assert here.reports.round_trip == pytest.approx(0.2, abs=1e-3)


def test_an_end_that_has_sent_nothing_makes_a_receiver_report() -> None:
    side = Side()
    for at, packet in audio(10):
        side.receiver.receive(bytes(packet), PEER, at)
    (report,) = rtcp.parse_reports(side.make(5.0))
    assert report.ntp_time is None
    assert report.blocks[0].highest & 0xFFFF == 65509


def test_reports_are_due_in_two_and_a_half_to_seven_and_a_half_seconds() -> None:
    assert all(2.5 <= Side().reports.due <= 7.5 for _ in range(50))
    side = Side()
    side.make(100.0)
    assert 102.5 <= side.reports.due <= 107.5


def test_bad_rtcp_and_strangers_change_nothing() -> None:
    side = Side()
    side.make(1.0)
    block = rtcp.ReportBlock(side.sender.ssrc, 255, 9999, 0, 0)
    good = rtcp.compound_packet(rtcp.Report(5, (block,)), "x")
    side.take(good, 2.0, ("198.51.100.9", 4001))
    side.take(good[:-1], 2.0)
    side.take(rtcp.compound_packet(rtcp.Report(5, (rtcp.ReportBlock(123, 255, 9999, 0, 0),)), "x"), 2.0)
    assert side.reports.peer_lost == 0
    assert side.receiver.refused == 2


def test_the_last_report_says_goodbye() -> None:
    side = Side()
    side.sender.frame_to_send(None)
    last = side.reports.goodbye(side.sender, side.receiver, 1.0, 1.0)
    assert last[-8:] == b"\x81\xcb\x00\x01" + side.sender.ssrc.to_bytes(4, "big")
    (report,) = rtcp.parse_reports(last)
    assert report.packets == 1


def test_a_goodbye_counts_for_the_stream_that_is_heard() -> None:
    here, there = Side(), Side()
    there.receiver.receive(here.sender.frame_to_send(None), PEER, 0.0)
    there.take(rtcp.compound_packet(rtcp.Report(1), "x", goodbye=True), 1.0)
    assert there.reports.ended_at is None
    there.take(here.reports.goodbye(here.sender, here.receiver, 2.0, 2.0), 2.0, ("198.51.100.9", 4001))
    assert there.reports.ended_at is None
    there.take(here.reports.goodbye(here.sender, here.receiver, 3.0, 3.0), 3.0)
    assert there.reports.ended_at == 3.0


def test_the_jitter_that_the_peer_sees_is_kept() -> None:
    side = Side()
    side.make(1.0)
    side.take(rtcp.compound_packet(rtcp.Report(5, (rtcp.ReportBlock(side.sender.ssrc, 0, 0, 0, 120),)), "x"), 2.0)
    assert (side.reports.peer_jitter, side.reports.received) == (120, 1)


def test_a_peer_that_does_not_hear_us_says_so_by_what_it_reports() -> None:
    here = Side()
    (first,) = audio(1)
    here.receiver.receive(bytes(first[1]), PEER, 0.0)
    peer = here.receiver.ssrc
    assert peer is not None
    silent = rtcp.compound_packet(rtcp.Report(peer), "x")
    here.take(silent, 1.0)
    assert not here.reports.one_way
    for _ in range(250):
        here.sender.frame_to_send(None)
    # Of another stream it says nothing.
    here.take(rtcp.compound_packet(rtcp.Report(peer ^ 1), "x"), 6.0)
    assert not here.reports.one_way
    here.take(silent, 6.0)
    assert here.reports.one_way
    for fraction, one_way in ((0, False), (128, False), (255, True)):
        block = rtcp.ReportBlock(here.sender.ssrc, fraction, 0, 0, 0)
        here.take(rtcp.compound_packet(rtcp.Report(peer, (block,)), "x"), 11.0)
        assert here.reports.one_way is one_way
