from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.rtp.jitter_buffer import CAPACITY, MAX_HOLD, MIN_HOLD, JitterBuffer
from callagent.rtp.packet import RtpPacket, sequence_distance
from tests.rtp.streams import Arrival, audio, jittery, lossy

PACKETS = [packet for _, packet in audio(200)]


def run(arrivals: list[Arrival]) -> tuple[JitterBuffer, list[RtpPacket]]:
    buffer, released = JitterBuffer(), []
    for at, packet in arrivals:
        while (timer := buffer.next_timer()) is not None and timer <= at:
            released += buffer.expire(timer)
        released += buffer.receive(packet, at)
    timer = buffer.next_timer()
    return buffer, released + (buffer.expire(timer) if timer is not None else [])


def test_a_clean_stream_is_not_delayed() -> None:
    buffer = JitterBuffer()
    for at, packet in audio(200):
        assert buffer.receive(packet, at) == [packet]
    assert buffer.next_timer() is None


def test_packets_that_change_places_come_out_in_order() -> None:
    buffer = JitterBuffer()
    assert buffer.receive(PACKETS[0], 0.0) == PACKETS[:1]
    assert buffer.receive(PACKETS[2], 0.02) == []
    assert buffer.receive(PACKETS[1], 0.03) == PACKETS[1:3]
    assert (buffer.lost, buffer.late) == (0, 0)


def test_a_missing_packet_is_given_up_after_the_bound() -> None:
    buffer = JitterBuffer()
    buffer.receive(PACKETS[0], 0.0)
    buffer.receive(PACKETS[2], 0.02)
    assert buffer.next_timer() == pytest.approx(0.02 + MIN_HOLD)
    assert buffer.expire(0.059) == []
    assert buffer.expire(0.061) == [PACKETS[2]]
    assert buffer.lost == 1


def test_a_missing_packet_is_given_up_when_enough_later_ones_came() -> None:
    buffer = JitterBuffer()
    buffer.receive(PACKETS[0], 0.0)
    assert [buffer.receive(packet, 0.02) for packet in PACKETS[2:5]] == [[], [], PACKETS[2:5]]


def test_a_packet_after_its_time_is_late_once_and_then_a_duplicate() -> None:
    buffer = JitterBuffer()
    for packet in [PACKETS[0], *PACKETS[2:6]]:
        buffer.receive(packet, 0.02)
    assert buffer.lost == 1
    assert buffer.receive(PACKETS[1], 0.1) == buffer.receive(PACKETS[1], 0.1) == []
    assert (buffer.lost, buffer.late, buffer.duplicates) == (0, 1, 1)


def test_duplicates_are_dropped_also_while_held() -> None:
    buffer = JitterBuffer()
    for index in (0, 0, 2, 2):
        buffer.receive(PACKETS[index], 0.02)
    assert buffer.duplicates == 2


def test_the_bound_follows_the_reordering_and_comes_back() -> None:
    buffer, released = run(jittery(audio(2000), 0.05))
    assert MIN_HOLD < buffer.hold <= MAX_HOLD
    assert buffer.late < 40
    numbers = [packet.sequence for packet in released]
    assert all(sequence_distance(later, earlier) > 0 for earlier, later in itertools.pairwise(numbers))
    sequence = numbers[-1] + 1
    for at, packet in audio(1500, sequence=sequence, start=100):
        buffer.receive(packet, at)
    assert buffer.hold == MIN_HOLD


def test_a_corrupt_number_does_not_make_the_real_packets_late() -> None:
    arrivals = list(audio(100))
    at, packet = arrivals[30]
    arrivals[30] = (at, RtpPacket(0, (packet.sequence + 16) & 0xFFFF, packet.timestamp, packet.ssrc, b""))
    buffer, released = run(arrivals)
    assert buffer.late == 0
    assert len(released) >= 98


def test_half_the_packets_lost_in_bursts_of_any_length_leaves_the_rest_in_order() -> None:
    chance = random.Random(3)
    arrivals = list(audio(1000))
    for start in range(0, 950, 20):
        del arrivals[start : start + chance.randrange(12)]
    buffer, released = run(arrivals)
    assert released == [packet for _, packet in arrivals]
    assert buffer.late == 0


def test_loss_is_counted_exactly() -> None:
    kept = lossy(audio(1000), 0.2)
    buffer, released = run(kept)
    first, last = kept[0][1].sequence, kept[-1][1].sequence
    assert buffer.lost == sequence_distance(last, first) + 1 - len(kept)
    assert len(released) == len(kept)


def test_a_restart_hands_out_what_is_held() -> None:
    buffer = JitterBuffer()
    for index in (0, 2, 4):
        buffer.receive(PACKETS[index], 0.0)
    assert buffer.restart(0.01) == [PACKETS[2], PACKETS[4]]
    assert buffer.receive(PACKETS[100], 0.02) == [PACKETS[100]]


@given(st.lists(st.tuples(st.integers(-25, 50), st.floats(0, 0.3)), max_size=100))
def test_whatever_comes_the_buffer_stays_bounded_and_in_order(steps: list[tuple[int, float]]) -> None:
    buffer, now, highest, last = JitterBuffer(), 0.0, 0, None
    for step, wait in steps:
        now += wait
        sequence = highest + step
        highest = max(highest, sequence)
        for packet in buffer.expire(now) + buffer.receive(RtpPacket(0, sequence & 0xFFFF, 0, 0, b""), now):
            assert last is None or sequence_distance(packet.sequence, last) > 0
            last = packet.sequence
        assert len(buffer._held) <= CAPACITY
