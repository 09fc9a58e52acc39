"""When Python's garbage collector runs in a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
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
process_health.calm_collector()
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


@pytest.mark.parametrize(("quiet", "after"), [("0", "1 True True"), ("3600", "0 False True")])
def test_full_collections_wait_for_a_moment_without_calls(quiet: str, after: str) -> None:
    command = [sys.executable, "-c", PROGRAM, quiet]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == ["0", after]
