from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.audio import DIGITS
from callagent.rtp.packet import (
    DigitReader,
    RtpPacket,
    TelephoneEvent,
    digit_events,
    is_rtcp,
    sequence_distance,
    timestamp_distance,
)

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


FIVE = 5


def read(*packets: tuple[int, int, bool, int]) -> str:
    """Digits of packets given as event, timestamp, end, duration."""
    reader = DigitReader()
    digits = (reader.receive(TelephoneEvent(event, end, duration), at) for event, at, end, duration in packets)
    return "".join(filter(None, digits))


def test_an_event_reads_and_writes_as_rfc_4733_says() -> None:
    event = TelephoneEvent.parse(bytes.fromhex("0b8a0320"))
    assert event == TelephoneEvent(11, True, 800, 10)
    assert bytes(event) == bytes.fromhex("0b8a0320")


@given(st.binary(max_size=12))
def test_any_payload_is_an_event_or_a_value_error(payload: bytes) -> None:
    try:
        assert bytes(TelephoneEvent.parse(payload))[0] == payload[0]
    except ValueError:
        assert len(payload) < 4


def test_all_packets_of_one_event_are_one_digit() -> None:
    assert read((FIVE, 0, False, 160), (FIVE, 0, False, 320), (FIVE, 0, True, 480), (FIVE, 0, True, 480)) == "5"


def test_the_same_key_twice_is_two_digits_even_without_end_packets() -> None:
    assert read((FIVE, 0, False, 160), (FIVE, 0, False, 800), (FIVE, 1760, False, 160)) == "55"
    assert read((FIVE, 0, True, 800), (FIVE, 800, True, 800)) == "55"


def test_an_end_packet_alone_is_a_digit() -> None:
    assert read((FIVE, 0, True, 800), (3, 2000, True, 800)) == "53"


def test_a_packet_of_an_event_that_is_over_is_nothing() -> None:
    assert read((FIVE, 0, False, 160), (3, 2000, False, 160), (FIVE, 0, True, 800), (3, 2000, True, 800)) == "53"


def test_a_long_event_in_segments_is_one_digit() -> None:
    assert read((FIVE, 0, False, 0xFFFF), (FIVE, 0xFFFF, False, 160), (FIVE, 0xFFFF, True, 800)) == "5"
    assert read((FIVE, 0, False, 60000), (FIVE, 0xFFFF, False, 160)) == "5"


def test_a_sender_that_moves_the_timestamp_makes_one_digit() -> None:
    moving = [(FIVE, 160 * index, index == 5, 160 * (index + 1)) for index in range(6)]
    assert read(*moving) == "5"


def test_the_flash_key_is_no_digit() -> None:
    assert read((16, 0, True, 800), (FIVE, 2000, True, 800)) == "5"


def test_a_restart_forgets_the_timestamps() -> None:
    reader = DigitReader()
    assert reader.receive(TelephoneEvent(1, True, 800), 90000) == "1"
    reader.restart()
    assert reader.receive(TelephoneEvent(2, True, 800), 100) == "2"


def test_a_key_press_is_eight_packets_of_one_event() -> None:
    for digit in DIGITS:
        events = digit_events(digit, 160)
        assert [event.duration for event in events] == [160, 320, 480, 640, 800, 800, 800, 800]
        assert [event.end for event in events] == [False] * 5 + [True] * 3
        assert {DIGITS[event.event] for event in events} == {digit}
    assert digit_events("a", 160) == digit_events("A", 160)


@pytest.mark.parametrize("digit", ["", "x", "12", "١"])
def test_what_is_no_digit_is_refused(digit: str) -> None:
    with pytest.raises(ValueError, match="not a DTMF digit"):
        digit_events(digit, 160)


def captured(path: Path) -> list[bytes]:
    """UDP payloads of a classic pcap file with Ethernet frames."""
    data, position, payloads = path.read_bytes(), 24, []
    while position < len(data):
        (length,) = struct.unpack_from("<I", data, position + 8)
        frame = data[position + 16 : position + 16 + length]
        position += 16 + length
        payloads.append(frame[14 + 4 * (frame[14] & 15) + 8 :])
    return payloads


CAPTURES = Path("/usr/share/sip-tester")
NAMES = {"star": "*", "pound": "#"}


@pytest.mark.skipif(not CAPTURES.exists(), reason="sip-tester is not installed")
@pytest.mark.parametrize("name", [*"0123456789", "star", "pound"])
def test_key_presses_of_a_real_phone_are_one_digit_each(name: str) -> None:
    reader, digits = DigitReader(), []
    for payload in captured(CAPTURES / f"dtmf_2833_{name}.pcap"):
        packet = RtpPacket.parse(payload)
        digits.append(reader.receive(TelephoneEvent.parse(packet.payload), packet.timestamp))
    assert [digit for digit in digits if digit] == [NAMES.get(name, name)]
