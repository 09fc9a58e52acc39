"""Threads that stand still are noticed, counted and logged with their stacks; a dead sending clock ends the process;
Python's garbage collector runs seldom."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

import pytest

from callagent.rtp.pump import EXIT_STATUS
from callagent.server.process_health import LOOK_SECONDS, Watchdog

DYING = """
import time
from callagent.rtp import Pump

class Sender:
    def send(self, due, skipped):
        raise SystemExit("no more")

    def fail(self, error):
        raise error

pump = Pump()
pump.start()
pump.add(Sender())
time.sleep(60)
"""
COLLECTING = """
import gc, sys, weakref
from callagent.server import process_health

class Cycle:
    def __init__(self):
        self.me = self

def make(count):
    for _ in range(count):
        Cycle()

full = []
gc.callbacks.append(lambda phase, info: full.append(info) if info["generation"] == 2 and phase == "stop" else None)
old = Cycle()
process_health.reduce_garbage_collection()
full.clear()
make(200_000)
print(len(full))

process_health.QUIET_SECONDS = float(sys.argv[1])
collections = process_health.QuietCollections()
frozen = weakref.ref(old)
del old
collections.collect_if_due()
print(len(full), frozen() is None, gc.get_freeze_count() > 0)
"""


def looks(watchdog: Watchdog, since: float, until: float) -> None:
    for number in range(round((until - since) / LOOK_SECONDS) + 1):
        watchdog.look(since + number * LOOK_SECONDS)


def counts(watchdog: Watchdog) -> dict[str, int]:
    lines = [line for line in watchdog.metrics() if not line.startswith("#")]
    return {line.split('"')[1]: int(line.split()[-1]) for line in lines}


def test_a_thread_that_stands_still_is_counted_once() -> None:
    moved = [100.0]
    watchdog = Watchdog()
    watchdog.watch("clock", lambda: moved[0], lambda: None)
    looks(watchdog, 100.0, 101.0)
    assert watchdog.still == []
    looks(watchdog, 101.25, 105.0)
    assert (watchdog.still, counts(watchdog)) == (["clock"], {"process": 0, "clock": 1})
    moved[0] = 105.0
    looks(watchdog, 105.25, 105.5)
    assert (watchdog.still, counts(watchdog)) == ([], {"process": 0, "clock": 1})


def test_a_thread_with_nothing_to_do_does_not_stand_still() -> None:
    watchdog = Watchdog()
    watchdog.watch("clock", lambda: None, lambda: None)
    looks(watchdog, 100.0, 110.0)
    assert watchdog.still == []


def test_a_process_that_was_stopped_is_no_threads_fault() -> None:
    moved = [100.0]
    watchdog = Watchdog()
    watchdog.watch("clock", lambda: moved[0], lambda: None)
    looks(watchdog, 100.0, 100.5)
    watchdog.look(160.0)
    assert (watchdog.still, counts(watchdog)) == ([], {"process": 1, "clock": 0})
    looks(watchdog, 160.25, 161.5)
    assert watchdog.still == ["clock"], "it has not moved since"


async def test_what_holds_the_loop_up_is_logged_with_its_stack(capfd: pytest.CaptureFixture[str]) -> None:
    watchdog = Watchdog()
    watchdog.watch_loop()
    watchdog.start()
    try:
        hold_up(watchdog)
        assert watchdog.still == ["loop"]
        while watchdog.still:
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        watchdog.stop()
    error = capfd.readouterr().err
    assert "thread_stands_still" in error
    assert "hold_up" in error


def hold_up(watchdog: Watchdog) -> None:
    """Block the loop until the watchdog has seen it."""
    deadline = time.monotonic() + 60
    while not watchdog.still and time.monotonic() < deadline:
        time.sleep(0.05)


def test_a_sending_clock_that_dies_ends_the_process() -> None:
    done = subprocess.run([sys.executable, "-c", DYING], capture_output=True, text=True, timeout=50)
    assert done.returncode == EXIT_STATUS
    assert "sending_clock_died" in done.stderr


@pytest.mark.parametrize(("quiet", "after"), [("0", "1 True True"), ("3600", "0 False True")])
def test_full_collections_wait_for_a_moment_without_calls(quiet: str, after: str) -> None:
    command = [sys.executable, "-c", COLLECTING, quiet]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["0", after]
