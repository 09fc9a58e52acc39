from __future__ import annotations

import random
import socket

import pytest

from callagent.rtp.ports import PortsExhausted, RtpPorts
from tests.end_to_end.baresip import is_free


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def free_range(count: int) -> tuple[int, int]:
    """An even port and the last of `count` pairs from it on, all of which are free.

    Not from the system's own range: between the look and the use somebody else's connection would take one.
    """
    while True:
        first = random.randrange(12000, 20000, 2)
        if all(is_free(socket.SOCK_DGRAM, port) for port in range(first, first + 2 * count)):
            return first, first + 2 * count - 1


def test_ports_are_even_and_run_out() -> None:
    clock = Clock()
    ports = RtpPorts("127.0.0.1", *free_range(10), clock=clock)
    opened = [ports.bind() for _ in range(10)]
    with pytest.raises(PortsExhausted):
        ports.bind()
    numbers = [each.getsockname()[1] for each in opened]
    for each in opened:
        each.close()
    assert all(number % 2 == 0 for number in numbers)
    assert ports.free_share == 0.0


def test_a_port_rests_after_use() -> None:
    clock = Clock()
    first, _ = free_range(1)
    ports = RtpPorts("127.0.0.1", first, first + 1, clock=clock)
    opened = ports.bind()
    opened.close()
    ports.release(first)
    clock.now = 29.9
    assert ports.free_share == 0.0
    with pytest.raises(PortsExhausted):
        ports.bind()
    clock.now = 30.0
    assert ports.free_share == 1.0
    ports.bind().close()


def test_a_port_in_other_hands_is_passed_over() -> None:
    first, last = free_range(2)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", first))
        ports = RtpPorts("127.0.0.1", first, last)
        with ports.bind() as opened:
            assert opened.getsockname()[1] == first + 2
            control = ports.bind_control(first + 2)
            assert control is not None
            assert ports.bind_control(first + 2) is None
            control.close()


def test_the_order_is_not_predictable() -> None:
    first, last = free_range(40)
    orders = set()
    for _ in range(4):
        opened = RtpPorts("127.0.0.1", first, last).bind()
        orders.add(opened.getsockname()[1])
        opened.close()
    assert len(orders) > 1


def test_a_range_without_an_even_port_and_a_foreign_host_are_errors() -> None:
    with pytest.raises(ValueError, match="no even port"):
        RtpPorts("127.0.0.1", 5001, 5001)
    with pytest.raises(OSError, match="assign"):
        RtpPorts("192.0.2.1", 20000, 20010).bind()


def test_ipv6() -> None:
    first, last = free_range(5)
    with RtpPorts("::1", first, last).bind() as opened:
        assert opened.family == socket.AF_INET6
