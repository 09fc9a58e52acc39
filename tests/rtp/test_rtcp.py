from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.rtp import rtcp
from callagent.rtp.rtcp import Report, ReportBlock, parse_reports

BLOCK = ReportBlock(ssrc=7, fraction_lost=51, lost=-3, highest=70000, jitter=12, last_report=1, delay=65536)
SENT = Report(9, (BLOCK,), rtcp.ntp_time(1_700_000_000.5), 160, 10, 1600)


def test_reports_read_as_they_were_written() -> None:
    for report in (SENT, Report(9, (BLOCK, BLOCK)), Report(9)):
        data = rtcp.compound(report, "name")
        assert len(data) % 4 == 0
        assert parse_reports(data) == [report]


def test_the_name_comes_after_the_report_and_ends_with_a_zero() -> None:
    for name in ("a", "ab", "abc", "abcd"):
        description = rtcp.compound(Report(9), name)[8:]
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
    block = ReportBlock(7, 0, 0, 0, 0, rtcp.middle(rtcp.ntp_time(1000.0)), 2 * 65536)
    assert rtcp.round_trip(block, rtcp.ntp_time(1002.25)) == pytest.approx(0.25, abs=1e-3)
    assert rtcp.round_trip(block, rtcp.ntp_time(900.0)) is None
    assert rtcp.round_trip(ReportBlock(7, 0, 0, 0, 0), rtcp.ntp_time(1.0)) is None
