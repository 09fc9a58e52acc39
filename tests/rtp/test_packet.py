from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.rtp.packet import RtpPacket, is_rtcp, sequence_distance, timestamp_distance

PLAIN = bytes.fromhex("8088010200000003deadbeef") + b"sound"


def test_a_plain_packet() -> None:
    packet = RtpPacket.parse(PLAIN)
    assert packet == RtpPacket(8, 0x0102, 3, 0xDEADBEEF, b"sound", marker=True)
    assert bytes(packet) == PLAIN


def test_sources_extension_and_padding_are_not_payload() -> None:
    data = bytes.fromhex("b200000100000000000000010000000a0000000bbede000101020304")
    packet = RtpPacket.parse(data + b"sound" + b"\0\0\3")
    assert packet.csrcs == (10, 11)
    assert packet.extension == (0xBEDE, b"\1\2\3\4")
    assert packet.payload == b"sound"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        PLAIN[:11],
        b"\x40" + PLAIN[1:],
        b"\xc0" + PLAIN[1:],
        b"\x8f" + PLAIN[1:],
        b"\x90" + PLAIN[1:12] + b"\0\0",
        b"\x90" + PLAIN[1:12] + b"\0\0\0\2" + b"abcd",
        b"\xa0" + PLAIN[1:12] + b"\0",
        b"\xa0" + PLAIN[1:12] + b"\x05",
        b"\xa1" + PLAIN[1:12] + b"abc\x01",
    ],
)
def test_a_packet_that_is_not_valid(data: bytes) -> None:
    with pytest.raises(ValueError, match="RTP packet is not valid"):
        RtpPacket.parse(data)


@given(st.binary(max_size=80) | st.binary(max_size=60).map(lambda tail: b"\xbf\x00" + tail))
def test_any_datagram_is_a_packet_or_a_value_error(data: bytes) -> None:
    try:
        packet = RtpPacket.parse(data)
    except ValueError:
        return
    assert RtpPacket.parse(bytes(packet)) == packet


@given(
    st.builds(
        RtpPacket,
        st.integers(0, 127),
        st.integers(0, 65535),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.binary(max_size=40),
        st.booleans(),
        st.lists(st.integers(0, 2**32 - 1), max_size=15).map(tuple),
        st.none() | st.tuples(st.integers(0, 65535), st.binary(max_size=8).map(lambda data: data * 4)),
    )
)
def test_what_is_written_reads_the_same(packet: RtpPacket) -> None:
    assert RtpPacket.parse(bytes(packet)) == packet


def test_rtcp_on_the_media_port_is_known_by_its_type() -> None:
    assert is_rtcp(b"\x80\xc8")
    assert not is_rtcp(PLAIN)
    assert not is_rtcp(b"\x80")


@given(st.integers(0, 65535), st.integers(-0x8000, 0x7FFF))
def test_distances_wrap(number: int, distance: int) -> None:
    assert sequence_distance((number + distance) & 0xFFFF, number) == distance
    assert timestamp_distance((number + distance) & 0xFFFFFFFF, number) == distance
