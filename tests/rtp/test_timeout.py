from __future__ import annotations

from callagent.rtp.remote import MediaTimeout, RtpSettings


def test_the_first_packet_has_30_seconds() -> None:
    timeout = MediaTimeout(RtpSettings(), 100.0)
    assert timeout.expire(None, 129.9) is None
    timeout.restart(105.0)
    assert timeout.expire(None, 130.0) is None
    assert timeout.expire(None, 135.0) == "no media for 30 s"


def test_the_next_packets_have_20_seconds_each() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 69.9) is None
    assert timeout.expire(50.0, 70.0) == "no media for 20 s"


def test_on_hold_there_are_300_seconds_and_afterwards_20_again() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    timeout.hold(True, 10.0)
    assert timeout.expire(9.0, 309.0) is None
    timeout.hold(False, 309.0)
    assert timeout.expire(9.0, 328.0) is None
    assert timeout.expire(9.0, 329.0) == "no media for 20 s"


def test_it_expires_once() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(None, 40.0) is not None
    assert timeout.expire(None, 400.0) is None


def test_a_peer_that_is_not_expected_to_send_has_as_long_as_a_hold() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 349.0, expected=False) is None
    assert timeout.expire(50.0, 350.0, expected=False) == "no media for 300 s"


def test_when_packets_are_expected_again_they_have_their_time_from_there() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 80.0, expected=False) is None
    timeout.restart(80.0)
    assert timeout.expire(50.0, 99.9) is None
    assert timeout.expire(50.0, 100.0) == "no media for 20 s"


def test_after_a_goodbye_there_are_10_seconds_and_never_more_than_before() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.0, 60.4, goodbye=50.5) is None
    assert timeout.expire(50.0, 60.5, goodbye=50.5) == "no media after a goodbye for 10.5 s"
    late = MediaTimeout(RtpSettings(), 0.0)
    assert late.expire(50.0, 69.9, goodbye=65.0) is None
    assert late.expire(50.0, 70.0, goodbye=65.0) == "no media after a goodbye for 20 s"


def test_a_goodbye_says_nothing_on_hold_or_of_a_stream_that_goes_on() -> None:
    timeout = MediaTimeout(RtpSettings(), 0.0)
    assert timeout.expire(50.2, 69.0, goodbye=50.0) is None
    assert timeout.expire(50.2, 69.0, expected=False, goodbye=51.0) is None
    timeout.hold(True, 51.0)
    assert timeout.expire(50.0, 350.0, goodbye=52.0) is None
    # Resumed: packets are expected from here on.
    timeout.hold(False, 350.0)
    assert timeout.expire(50.0, 369.0, goodbye=52.0) is None
