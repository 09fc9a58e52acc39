from __future__ import annotations

from callagent.rtp.timeout import MediaTimeout, RtpSettings


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
