from __future__ import annotations

from ipaddress import ip_network

import pytest

from callagent.rtp.remote import Remote

NAMED = ("192.0.2.1", 4000)
NAT = ("192.0.2.1", 62000)
STRANGER = ("198.51.100.9", 4000)


def test_the_named_address_is_accepted_and_strangers_never() -> None:
    remote = Remote(NAMED)
    assert not remote.accept(STRANGER)
    assert remote.accept(NAMED)
    assert not remote.accept(STRANGER)
    assert remote.address == NAMED


def test_another_port_of_the_same_host_is_latched_once() -> None:
    remote = Remote(NAMED)
    assert remote.accept(NAT)
    assert remote.address == NAT
    assert not remote.accept(("192.0.2.1", 62002))
    assert remote.accept(NAT)


def test_the_named_port_wins_over_a_stale_stream_from_the_same_host() -> None:
    remote = Remote(NAMED)
    for _ in range(100):
        remote.accept(NAT)
    assert remote.accept(NAMED)
    assert not remote.accept(NAT)
    assert remote.address == NAMED


def test_no_port_is_latched_once_the_named_one_has_spoken() -> None:
    remote = Remote(NAMED)
    remote.accept(NAMED)
    assert not remote.accept(NAT)


def test_rtcp_may_come_from_any_port_of_the_host() -> None:
    assert Remote(NAMED).accept_host(("192.0.2.1", 4001))
    assert not Remote(NAMED).accept_host(STRANGER)


def test_addresses_are_compared_in_one_form_and_names_are_refused() -> None:
    assert Remote(("2001:DB8:0::1", 9)).accept(("2001:db8::1", 9))
    with pytest.raises(ValueError, match="example"):
        Remote(("example.org", 9))


def test_media_networks_of_a_trunk_may_speak_where_the_sdp_names_another() -> None:
    remote = Remote(("192.0.2.1", 4000), [ip_network("198.51.100.0/24")])
    assert not remote.accept(("203.0.113.5", 4000))
    assert remote.accept_host(("198.51.100.8", 4001))
    assert remote.accept(("198.51.100.7", 5000))
    assert remote.address == ("198.51.100.7", 5000)
    assert not remote.accept(("198.51.100.8", 5000))
    assert remote.accept_host(("198.51.100.7", 5001))
    assert remote.accept(("192.0.2.1", 4000))
    assert not remote.accept(("198.51.100.7", 5000))
