"""The benchmark of signalling measures what it says."""

from __future__ import annotations

import argparse

import pytest

from callagent.bench.signalling import bench_signalling, invite, message_cost
from callagent.sip import Request, parse_message


def test_the_invite_has_sixteen_headers() -> None:
    message = parse_message(invite(1))
    assert isinstance(message, Request)
    assert len(message.headers) == 16
    assert invite(1) != invite(2)


@pytest.mark.acceptance("bench")
def test_reading_is_a_part_of_serving() -> None:
    cost = message_cost()
    assert 0 < cost["parse_us"] < cost["invite_us"]


@pytest.mark.acceptance("bench")
def test_a_hundred_calls_a_second_beside_fifty() -> None:
    """For longer than 64*T1: the timers of calls that are over fire beside those that come."""
    assert bench_signalling(argparse.Namespace(calls=50, rate=100.0, seconds=45.0, json=False)) == 0
