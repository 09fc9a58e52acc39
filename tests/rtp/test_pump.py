from __future__ import annotations

import random
import threading

import pytest

from callagent.rtp.pump import MAX_BURST, PHASES, SENDERS_PER_PHASE, Pump


class Recorder:
    def __init__(self) -> None:
        self.sent: list[tuple[float, int]] = []
        self.errors: list[Exception] = []
        self.called = threading.Event()

    def send(self, due: float, skipped: int) -> None:
        self.sent.append((due, skipped))
        self.called.set()

    def fail(self, error: Exception) -> None:
        self.errors.append(error)


class Broken(Recorder):
    def send(self, due: float, skipped: int) -> None:
        super().send(due, skipped)
        raise RuntimeError("broken")


def run(pump: Pump, start: float, end: float) -> None:
    """The thread's loop on a clock that jumps from one due time to the next."""
    now: float | None = start
    while now is not None and now < end:
        now = pump.send_due(now)


def test_every_packet_is_due_on_the_grid_of_its_first() -> None:
    pump, recorder = Pump(), Recorder()
    pump.add_at(recorder, 100.0)
    run(pump, 100.0, 700.0)
    first = recorder.sent[0][0]
    assert 100.0 < first <= 100.04
    assert len(recorder.sent) in (29998, 29999, 30000)
    for index, (due, skipped) in enumerate(recorder.sent):
        assert skipped == 0
        assert due == pytest.approx(first + index * 0.02, abs=1e-9)


def senders_of_each_phase(senders: int) -> list[int]:
    pump = Pump()
    recorders = [Recorder() for _ in range(senders)]
    for recorder in recorders:
        pump.add_at(recorder, 5.0)
    run(pump, 5.0, 5.1)
    offsets = [(recorder.sent[0][0] - 5.0) % 0.02 for recorder in recorders]
    phases = [round(offset / 0.002, 6) % PHASES for offset in offsets]
    assert all(phase == int(phase) for phase in phases)
    return [phases.count(phase) for phase in range(PHASES)]


def test_a_phase_is_filled_before_the_next_is_begun() -> None:
    assert senders_of_each_phase(3) == [3] + 9 * [0]
    assert senders_of_each_phase(2 * SENDERS_PER_PHASE + 1) == [SENDERS_PER_PHASE, SENDERS_PER_PHASE, 1] + 7 * [0]


def test_many_senders_are_spread_over_all_phases() -> None:
    assert senders_of_each_phase(SENDERS_PER_PHASE * PHASES) == PHASES * [SENDERS_PER_PHASE]
    assert senders_of_each_phase(4 * SENDERS_PER_PHASE * PHASES) == PHASES * [4 * SENDERS_PER_PHASE]


def test_a_place_that_is_left_is_taken_before_a_phase_is_begun() -> None:
    pump = Pump()
    handles = [pump.add_at(Recorder(), 5.0) for _ in range(2 * SENDERS_PER_PHASE)]
    pump.remove(handles[3])
    assert pump.add_at(Recorder(), 5.0).phase == 0
    assert pump.add_at(Recorder(), 5.0).phase == 2


def test_a_late_wake_up_does_not_move_the_grid() -> None:
    pump, recorder, chance = Pump(), Recorder(), random.Random(1)
    pump.add_at(recorder, 0.0)
    now = 0.0
    while now < 60:
        due = pump.send_due(now)
        assert due is not None
        assert due > now
        now = due + chance.random() * 0.03
    dues = [due for due, _ in recorder.sent]
    assert dues == pytest.approx([dues[0] + index * 0.02 for index in range(len(dues))], abs=1e-9)


def test_after_a_stall_three_packets_go_at_once_and_the_rest_is_skipped() -> None:
    pump, recorder = Pump(), Recorder()
    pump.add_at(recorder, 0.0)
    run(pump, 0.0, 1.0)
    recorder.sent.clear()
    due = pump.send_due(0.0)
    assert due is not None
    pump.send_due(due + 0.2)
    assert [skipped for _, skipped in recorder.sent] == [11 - MAX_BURST, 0, 0]
    assert recorder.sent[-1][0] == pytest.approx(due + 0.2)
    assert pump.send_due(due + 0.2) == pytest.approx(due + 0.22)


def test_one_broken_sender_does_not_silence_the_others() -> None:
    pump, broken, recorder = Pump(), Broken(), Recorder()
    for _ in range(SENDERS_PER_PHASE):
        pump.add_at(broken, 0.0)
        pump.add_at(recorder, 0.0)
    run(pump, 0.0, 1.0)
    assert len(broken.errors) == len(broken.sent) >= 480
    assert len(recorder.sent) >= 480


def test_a_removed_sender_is_not_called_again() -> None:
    pump, recorder = Pump(), Recorder()
    handle = pump.add_at(recorder, 0.0)
    run(pump, 0.0, 1.0)
    pump.remove(handle)
    pump.remove(handle)
    count = len(recorder.sent)
    assert pump.send_due(5.0) is None
    assert len(recorder.sent) == count
    pump.add_at(recorder, 5.0)
    run(pump, 5.0, 5.5)
    assert recorder.sent[count][0] > 5.0
    assert all(skipped == 0 for _, skipped in recorder.sent)


def test_a_sender_may_remove_itself() -> None:
    pump = Pump()

    class Leaving(Recorder):
        def send(self, due: float, skipped: int) -> None:
            super().send(due, skipped)
            pump.remove(handle)

    leaving = Leaving()
    handle = pump.add_at(leaving, 0.0)
    run(pump, 0.0, 1.0)
    assert len(leaving.sent) == 1


def test_the_thread_sends_sleeps_without_senders_and_stops() -> None:
    pump, first, second = Pump(), Recorder(), Recorder()
    pump.start()
    handle = pump.add(first)
    assert first.called.wait(5)
    pump.remove(handle)
    pump.add(second)
    assert second.called.wait(5)
    pump.stop()
    count = len(second.sent)
    pump.stop()
    assert len(second.sent) == count
    assert not any(thread.name == "rtp-pump" for thread in threading.enumerate())
