from __future__ import annotations

import random

import pytest

from callagent.rtp.jitter_buffer import Reception


def test_what_is_expected_counts_over_the_wrap_of_the_numbers() -> None:
    reception = Reception()
    for index in range(100):
        if index % 10 != 5:
            reception.receive((65500 + index) & 0xFFFF, index * 160, index * 0.02, 8000)
    assert (reception.expected, reception.packets) == (100, 90)
    assert reception.highest == 65536 + 63
    assert reception.fraction_lost() == 25
    assert reception.fraction_lost() == 0


def test_jitter_is_the_mean_change_of_the_transit_time() -> None:
    chance, reception = random.Random(1), Reception()
    for index in range(3000):
        reception.receive(index, index * 160, index * 0.02 + chance.choice((0.0, 0.01)), 8000)
    # Half the packets differ by 10 ms from the one before: 5 ms, 40 units.
    assert reception.jitter == pytest.approx(40, abs=15)


def test_a_jump_of_the_timestamp_and_a_packet_without_time_are_no_jitter() -> None:
    reception = Reception()
    reception.receive(1, 0, 0.0, 8000)
    reception.receive(2, None, 0.9, 8000)
    reception.receive(3, 999999999, 0.04, 8000)
    assert reception.jitter == 0


def test_a_restart_counts_anew() -> None:
    reception = Reception()
    reception.receive(500, 0, 0.0, 8000)
    reception.restart()
    assert reception.expected == 0
    reception.receive(3, 0, 0.0, 8000)
    assert (reception.expected, reception.packets, reception.fraction_lost()) == (1, 1, 0)
