from __future__ import annotations

from ipaddress import ip_network

import pytest

from callagent.rtp.packet import RtpPacket
from callagent.rtp.remote import Remote

NAMED = ("192.0.2.1", 4000)
NAT = ("192.0.2.1", 62000)
STRANGER = ("198.51.100.9", 4000)


def accept(remote: Remote, source: tuple[str, int]) -> bool:
    """An authentic packet."""
    return remote.accept(source, packet(1), 0.0, authentic=True)


def packet(number: int) -> RtpPacket:
    return RtpPacket(0, number, number * 160, 7, b"")


def accept_plain(remote: Remote, source: tuple[str, int], number: int) -> bool:
    return remote.accept(source, packet(number), number * 0.02, authentic=False)


def test_the_named_address_is_accepted_and_strangers_never() -> None:
    remote = Remote(NAMED)
    assert not accept(remote, STRANGER)
    assert accept(remote, NAMED)
    assert not accept(remote, STRANGER)
    assert remote.address == NAMED


def test_another_port_of_the_same_host_is_latched_once() -> None:
    remote = Remote(NAMED)
    assert accept(remote, NAT)
    assert remote.address == NAT
    assert not accept(remote, ("192.0.2.1", 62002))
    assert accept(remote, NAT)


def test_the_named_port_wins_over_a_stale_stream_from_the_same_host() -> None:
    remote = Remote(NAMED)
    for _ in range(100):
        accept(remote, NAT)
    assert accept(remote, NAMED)
    assert not accept(remote, NAT)
    assert remote.address == NAMED


def test_no_port_is_latched_once_the_named_one_has_spoken() -> None:
    remote = Remote(NAMED)
    accept(remote, NAMED)
    assert not accept(remote, NAT)


def test_rtcp_may_come_from_any_port_of_the_host() -> None:
    assert Remote(NAMED).accept_host(("192.0.2.1", 4001))
    assert not Remote(NAMED).accept_host(STRANGER)


def test_addresses_are_compared_in_one_form_and_names_are_refused() -> None:
    assert accept(Remote(("2001:DB8:0::1", 9)), ("2001:db8::1", 9))
    with pytest.raises(ValueError, match="example"):
        Remote(("example.org", 9))


def test_media_networks_of_a_trunk_may_speak_where_the_sdp_names_another() -> None:
    remote = Remote(("192.0.2.1", 4000), [ip_network("198.51.100.0/24")])
    assert not accept(remote, ("203.0.113.5", 4000))
    assert remote.accept_host(("198.51.100.8", 4001))
    assert accept(remote, ("198.51.100.7", 5000))
    assert remote.address == ("198.51.100.7", 5000)
    assert not accept(remote, ("198.51.100.8", 5000))
    assert remote.accept_host(("198.51.100.7", 5001))
    assert accept(remote, ("192.0.2.1", 4000))
    assert not accept(remote, ("198.51.100.7", 5000))


def test_another_port_is_latched_with_the_fifth_packet_of_a_stream() -> None:
    remote = Remote(NAMED)
    assert [accept_plain(remote, NAT, number) for number in (65534, 65535, 0, 1, 2, 3)] == [False] * 4 + [True] * 2
    assert remote.address == NAT


def test_packets_that_do_not_count_up_are_no_stream() -> None:
    for numbers in ([7] * 200, range(0, 60_000, 300), range(200, 0, -1), range(60_000, 0, -300)):
        remote = Remote(NAMED)
        assert not any(accept_plain(remote, NAT, number) for number in numbers)
        assert remote.address == NAMED


def test_a_stream_that_loses_and_reorders_packets_is_one() -> None:
    remote = Remote(NAMED)
    assert [accept_plain(remote, NAT, number) for number in (10, 12, 11, 12, 15, 16, 20)] == [False] * 6 + [True]


def test_many_ports_of_the_host_are_counted_in_bounded_room() -> None:
    remote = Remote(NAMED)
    for port in range(20_000):
        assert not accept_plain(remote, ("192.0.2.1", 10_000 + port), port & 0xFFFF)
    assert len(remote._candidates) <= 8
    assert accept_plain(remote, NAMED, 1)


def test_the_packets_that_prove_a_stream_are_heard_with_it_once() -> None:
    remote = Remote(NAMED)
    accept_plain(remote, ("192.0.2.1", 7), 1)
    accept_plain(remote, NAT, 900)
    assert [accept_plain(remote, NAT, number) for number in (10, 11, 12, 13)] == [False] * 4
    assert remote.take_proof() == []
    assert accept_plain(remote, NAT, 14)
    assert remote.take_proof() == [(packet(number), number * 0.02) for number in (10, 11, 12, 13)]
    assert remote.take_proof() == []


def test_what_waits_for_a_proof_is_forgotten_when_the_named_port_speaks() -> None:
    remote = Remote(NAMED)
    for number in range(4):
        accept_plain(remote, NAT, number)
    assert accept_plain(remote, NAMED, 4)
    assert remote.take_proof() == []
    assert not remote._candidates
