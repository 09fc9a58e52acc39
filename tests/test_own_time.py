from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.own_time import own_time

SCRIPT = """
import os, subprocess, sys, time
from tests.own_time import own_time

stopper = "import os, signal, sys, time\\n" \\
    "os.kill(int(sys.argv[1]), signal.SIGSTOP); time.sleep(1.0); os.kill(int(sys.argv[1]), signal.SIGCONT)"
with own_time() as clock:
    wall, own = time.monotonic(), clock()
    subprocess.run([sys.executable, "-c", stopper, str(os.getpid())], check=True)
    print(time.monotonic() - wall, clock() - own, clock.stalled)
"""


def test_it_runs_as_the_clock_does() -> None:
    with own_time() as clock:
        wall, stalled, own = time.monotonic(), clock.stalled, clock()
        time.sleep(0.2)
        gone = clock() - own
        # What it does not count, it tells.
        assert 0.2 - (clock.stalled - stalled) <= gone <= time.monotonic() - wall


def test_it_stands_still_while_the_process_does() -> None:
    root = Path(__file__).parents[1]
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=root)
    wall, own, stalled = map(float, done.stdout.split())
    assert stalled > 0.9
    assert own <= wall - 0.9
