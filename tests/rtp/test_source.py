from __future__ import annotations

from callagent.rtp.packet import RtpPacket
from callagent.rtp.remote import Source
from tests.rtp.streams import Arrival, audio


def taken(source: Source, arrivals: list[Arrival]) -> list[RtpPacket]:
    return [packet for at, each in arrivals for packet in heard(source, each, at)]


def heard(source: Source, packet: RtpPacket, at: float) -> list[RtpPacket]:
    return [packet] if source.accept(packet, at) else source.change(packet, at)


def test_the_first_packet_begins_a_stream_and_the_next_ones_follow() -> None:
    source = Source()
    (at, first), (later, second), *_ = audio(3)
    assert not source.accept(first, at)
    assert source.change(first, at) == [first]
    assert source.accept(second, later)


def test_another_source_is_refused_while_the_present_one_speaks() -> None:
    source = Source()
    for (at, own), (_, other) in zip(audio(100), audio(100, ssrc=666, sequence=1), strict=True):
        assert heard(source, own, at) == [own]
        assert heard(source, other, at + 0.01) == []
    assert source.refused >= 99


def test_a_restarted_stream_is_followed_within_60_ms_and_loses_nothing() -> None:
    for ssrc, sequence in ((8, 100), (7, 100), (7, 65400)):
        source = Source()
        taken(source, list(audio(50)))
        restarted = list(audio(10, ssrc=ssrc, sequence=sequence, start=1.0))
        assert taken(source, restarted[:3]) == [packet for _, packet in restarted[:3]]
        assert taken(source, restarted[3:]) == [packet for _, packet in restarted[3:]]


def test_a_restart_is_followed_through_loss() -> None:
    source = Source()
    taken(source, list(audio(50)))
    restarted = [each for index, each in enumerate(audio(10, ssrc=8, start=1.0)) if index not in (1, 4)]
    assert len(taken(source, restarted)) == 8


def test_one_packet_with_a_corrupt_number_or_source_is_refused() -> None:
    source = Source()
    arrivals = list(audio(20))
    at, packet = arrivals[10]
    arrivals[10] = (at, RtpPacket(0, (packet.sequence + 4096) & 0xFFFF, 0, packet.ssrc, b""))
    arrivals[15] = (arrivals[15][0], RtpPacket(0, packet.sequence, 0, 99, b""))
    assert len(taken(source, arrivals)) == 18
    assert source.refused == 2
