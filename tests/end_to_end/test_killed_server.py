"""The server is killed amid calls: what it had acknowledged is there once, and no call is without a record."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.end_to_end.scripted import MILL, scripts
from tests.end_to_end.server_process import ServerProcess, serve

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]

CALLS_PER_SECOND = 20
START = """\
import time
from _gen import *  # <AUTO GENERATED>


def note(conv, name, value):
    conv.write_metric(name, value)
    with open({journal!r}, "a") as journal:
        journal.write(f"{{conv.id}} {{name}} {{value}}\\n")


def start_function(conv: Conversation):
    for number in range(10):
        note(conv, "NUMBER", number)
        time.sleep(0.01)
"""
END = """\
from _gen import *  # <AUTO GENERATED>
from functions.start_function import note


def end_function(conv: Conversation):
    note(conv, "ENDED", 1)
"""


def project(folder: Path) -> Path:
    """Its functions write down what was acknowledged: one line for each metric, after `write_metric` returned."""
    made = Path(shutil.copytree(MILL, folder / "project"))
    (made / "functions" / "start_function.py").write_text(START.format(journal=str(folder / "journal")))
    (made / "functions" / "end_function.py").write_text(END)
    return made


def calls(folder: Path, server: ServerProcess) -> subprocess.Popen[bytes]:
    rate = ("-r", str(CALLS_PER_SECOND), "-d", "600")
    return subprocess.Popen(
        ["sipp", "-sn", "uac", "-s", "agent", *rate, "-i", "127.0.0.1", "-mi", "127.0.0.1", "-nostdin", server.sip],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder,
    )  # fmt: skip


def acknowledged(folder: Path) -> list[list[str]]:
    """Call, name and value of each metric."""
    journal = folder / "journal"
    return [line.split() for line in journal.read_text().splitlines()] if journal.exists() else []


def kill_under_load(folder: Path, made: Path, after: float) -> None:
    """Amid the calls, `after` seconds since it first acknowledged something. Nothing is closed and nothing flushed; the
    store is opened again by the next server."""
    before = len(acknowledged(folder))
    with serve(folder, project=made, **scripts(folder, [], [])) as server:
        callers = calls(folder, server)
        try:
            deadline = time.monotonic() + 60
            while len(acknowledged(folder)) <= before + 10:
                assert time.monotonic() < deadline, server.errors.read_text()[-4000:]
                time.sleep(0.01)
            time.sleep(after)
        finally:
            server.process.kill()
            callers.kill()
            callers.wait()


def check(folder: Path) -> int:
    """Every acknowledged metric once, every call closed; how many metrics there are."""
    lines = acknowledged(folder)
    with closing(sqlite3.connect(folder / "calls.db")) as store:
        kept = Counter((call, name, json.loads(value)) for call, name, value in store.execute(
            "SELECT call_id, name, value FROM metrics"
        ))  # fmt: skip
        ended = dict(store.execute("SELECT id, ended_at FROM calls").fetchall())
    missing = [line for line in lines if (line[0], line[1], int(line[2])) not in kept]
    assert missing == []
    assert [entry for entry, times in kept.items() if times > 1] == []
    assert {line[0] for line in lines} <= ended.keys()
    assert [call for call, at in ended.items() if at is None] == []
    return len(lines)


def kill_and_look(folder: Path, times: int) -> None:
    made, random_moments = project(folder), random.Random(20)
    for _ in range(times):
        kill_under_load(folder, made, random_moments.uniform(0.2, 2.0))
        # Its start is what closes the calls of the one before.
        with serve(folder, project=made, **scripts(folder, [], [])):
            pass
        found = check(folder)
    assert found > times * 10, "there was load"


def test_a_server_killed_twice_has_lost_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_and_look(tmp_path, 2)


@pytest.mark.acceptance("storage")
def test_a_server_killed_fifty_times_has_lost_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_and_look(tmp_path, 50)
