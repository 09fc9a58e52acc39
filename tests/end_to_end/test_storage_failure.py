"""Real calls to a server whose store fails: each has a final response, its end function and, in the end, its record."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.failing_store_server import FAULTS, METHODS
from tests.end_to_end.journal import NOTE, journal, let_functions_note, lines
from tests.end_to_end.scripted import MILL, scripts
from tests.end_to_end.server_process import ServerProcess, serve

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]

PATIENCE = 120.0
CALLS = 20
FULL_BYTES = 6 << 20
START = """\
from _gen import *  # <AUTO GENERATED>


{note}

def start_function(conv: Conversation):
    for number in range(3):
        conv.write_metric("NUMBER", number)
    note(conv.id, "STARTED", 1)
"""
END = """\
from _gen import *  # <AUTO GENERATED>
from functions.start_function import note


def end_function(conv: Conversation):
    note(conv.id, "ENDED", conv.end_attempt)
    conv.write_metric("ENDED", 1)
"""


class Scene:
    """A project whose functions write down that they ran, and SIPp calling it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        self.project = Path(shutil.copytree(MILL, folder / "project"))
        functions = self.project / "functions"
        (functions / "start_function.py").write_text(START.format(note=NOTE.format(port=port)))
        (functions / "end_function.py").write_text(END)

    @contextmanager
    def serving(self, *program: str, **settings: str) -> Iterator[ServerProcess]:
        scripted = scripts(self.folder, [], [])
        arguments = ("--http", "127.0.0.1:0", *let_functions_note(self.folder, self.port))
        more: dict[str, Any] = {"program": program} if program else {}
        with serve(self.folder, *arguments, project=self.project, **more, **scripted, **settings) as server:
            yield server

    def call(self, server: ServerProcess, calls: int, seconds: float, rate: int = 10) -> subprocess.Popen[bytes]:
        """SIPp's caller; it fails unless each of its calls is answered and ends as it should."""
        command = ["sipp", "-sn", "uac", "-s", "agent", "-r", str(rate), "-m", str(calls), "-i", "127.0.0.1"]
        times = ["-d", str(round(seconds * 1000)), "-timeout", str(round(PATIENCE)), "-timeout_error"]
        with (self.folder / "sipp.out").open("w") as out:
            return subprocess.Popen(
                [*command, *times, "-mi", "127.0.0.1", "-nostdin", server.sip],
                stdout=out, stderr=subprocess.STDOUT, cwd=self.folder,
            )  # fmt: skip

    def journal(self, name: str) -> Counter[str]:
        """How often functions of each call wrote down `name`."""
        return Counter(call for call, noted, _ in lines(self.folder) if noted == name)

    def check(self, store: Path, calls: int) -> None:
        """Each call has one record and each of its metrics once, and its end function ran once."""
        with closing(sqlite3.connect(store)) as connection:
            kept = connection.execute("SELECT id, ended_at, end_function, record FROM calls").fetchall()
            metrics = connection.execute("SELECT call_id, name, value FROM metrics").fetchall()
        assert len(kept) == calls
        assert {(ended is not None, function) for _, ended, function, _ in kept} == {(True, "done")}
        assert {json.loads(text)["end_reason"] for *_, text in kept} == {"caller_hangup"}
        assert self.journal("ENDED") == Counter([row[0] for row in kept])
        expected = [("NUMBER", "0"), ("NUMBER", "1"), ("NUMBER", "2"), ("ENDED", "1")]
        assert Counter(metrics) == Counter((row[0], *metric) for row in kept for metric in expected)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with journal(tmp_path) as port:
        yield Scene(tmp_path, port)


def until(condition: Callable[[], object], server: ServerProcess, what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"{what}\n{server.errors.read_text()[-4000:]}"
        time.sleep(0.05)


def get(server: ServerProcess, path: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{server.http_port}{path}", headers=server.login)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def gauge(server: ServerProcess, name: str) -> float:
    return next(float(line.split()[1]) for line in get(server, "/metrics").splitlines() if line.startswith(f"{name} "))


def failing(server: ServerProcess) -> bool:
    """As both tell, once they agree."""
    told = json.loads(get(server, "/ready"))["store"] == "failing"
    return told if told == bool(gauge(server, "callagent_store_failing")) else failing(server)


def held(server: ServerProcess) -> tuple[int, int]:
    """Open descriptors and worker processes of a server without calls."""
    process = server.process.pid
    parents = Counter()
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(status.read_text().rpartition(")")[2].split()[1])] += 1
        except OSError:
            continue
    children = [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return len(os.listdir(f"/proc/{process}/fd")), sum(parents[child] for child in children)


def alive(file: Path, server: ServerProcess) -> list[int]:
    """Tasks, legs and calls in the process of a server that `failing_store_server` runs."""
    objects = file.with_suffix(".objects")
    objects.unlink(missing_ok=True)
    file.with_suffix(".ask").touch()
    until(objects.exists, server, "the server does not count")
    return [int(one) for one in json.loads(objects.read_text())]


def at_most(found: list[int], bounds: list[int]) -> bool:
    return all(one <= bound for one, bound in zip(found, bounds, strict=True))


def settle(scene: Scene, server: ServerProcess, store: Path | None = None) -> tuple[int, int]:
    """What the server holds after a first call: its sockets and caches are there."""
    assert scene.call(server, 1, 0.2).wait(PATIENCE) == 0
    replace(server, store=store or server.store).wait_for_records(1)
    until(lambda: gauge(server, "callagent_calls_live") == 0, server, "the first call")
    return held(server)


def test_calls_are_served_while_another_program_locks_the_store(scene: Scene) -> None:
    with scene.serving() as server:
        before = settle(scene, server)
        with closing(sqlite3.connect(server.store, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            assert scene.call(server, 5, 1.0).wait(PATIENCE) == 0
            until(lambda: failing(server), server, "/ready says nothing")
            until(lambda: gauge(server, "callagent_calls_live") == 0, server, "calls are left")
            other.execute("ROLLBACK")
        until(lambda: not failing(server), server, "/ready does not say that it works again")
        server.wait_for_records(6)
        until(lambda: held(server) <= before, server, f"{before} was held, {held(server)} is")
    scene.check(server.store, 6)
    events = Counter(line["event"] for line in server.log())
    assert (events["store_failing"], events["store_works_again"]) == (1, 1)
    assert "Traceback" not in server.errors.read_text()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of its own, of 6 MB."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={FULL_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("a file system can only be mounted by root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Write until nothing more fits."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert shutil.disk_usage(folder).free == 0
    return ballast


@pytest.mark.parametrize("recorded", [False, True], ids=["records", "records and recordings"])
@pytest.mark.acceptance("storage")
def test_a_full_disk_costs_no_call(scene: Scene, tmp_path: Path, recorded: bool) -> None:
    with small_disk(tmp_path / "disk") as disk:
        settings = {"RECORDS__PATH": str(disk / "calls.db")}
        if recorded:
            settings["RECORDS__RECORDINGS"] = str(disk / "recordings")
        with scene.serving(**settings) as server:
            before = settle(scene, server, disk / "calls.db")
            ballast = fill(disk)
            assert scene.call(server, 12, 2.0).wait(PATIENCE) == 0
            until(lambda: failing(server), server, "/ready says nothing")
            until(lambda: gauge(server, "callagent_calls_live") == 0, server, "calls are left")
            ballast.unlink()
            until(lambda: not failing(server), server, "/ready does not say that it works again")
            assert scene.call(server, 12, 2.0).wait(PATIENCE) == 0
            replace(server, store=disk / "calls.db").wait_for_records(25)
            until(lambda: held(server) <= before, server, f"{before} was held, {held(server)} is")
        shutil.copytree(disk, tmp_path / "kept", ignore=shutil.ignore_patterns("recordings"))
    scene.check(tmp_path / "kept" / "calls.db", 25)


@pytest.mark.acceptance("storage")
def test_a_server_starts_on_a_full_disk(scene: Scene, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        ballast = fill(disk)
        with scene.serving(RECORDS__PATH=str(disk / "calls.db")) as server:
            assert scene.call(server, 12, 1.0).wait(PATIENCE) == 0
            until(lambda: failing(server), server, "/ready says nothing")
            ballast.unlink()
            until(lambda: not failing(server), server, "/ready does not say that it works again")
            replace(server, store=disk / "calls.db").wait_for_records(12)
        shutil.copytree(disk, tmp_path / "kept")
    scene.check(tmp_path / "kept" / "calls.db", 12)


@pytest.mark.parametrize("moment", ["before the answer", "in mid-call", "at the hang-up"])
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.acceptance("storage")
def test_every_await_on_the_store_may_fail_at_every_moment(
    method: str, fault: str, moment: str, scene: Scene, tmp_path: Path
) -> None:
    file = tmp_path / "fault"
    program = ("tests.end_to_end.failing_store_server", method, fault, str(file))
    with scene.serving(*program) as server:
        before = settle(scene, server)
        tasks, legs, calls = alive(file, server)
        assert (legs, calls) == (0, 0)
        if moment == "before the answer":
            file.touch()
        calling = scene.call(server, CALLS, 4.0)
        if moment == "in mid-call":
            until(lambda: len(scene.journal("STARTED")) == CALLS + 1, server, "calls have not started")
            file.touch()
        elif moment == "at the hang-up":
            until(lambda: len(scene.journal("ENDED")) > 1, server, "no call has ended")
            file.touch()
        assert calling.wait(PATIENCE) == 0, (tmp_path / "sipp.out").read_text()[-3000:]
        until(lambda: gauge(server, "callagent_calls_live") == 0, server, "calls are left")
        file.unlink()
        until(lambda: not failing(server), server, "/ready does not say that it works again")
        server.wait_for_records(CALLS + 1)
        until(lambda: held(server) <= before, server, f"{before} was held, {held(server)} is")
        until(lambda: at_most(alive(file, server), [tasks, 0, 0]), server, f"{tasks} tasks before; tasks, legs, calls")
    scene.check(server.store, CALLS + 1)


def test_a_file_of_json_lines_that_stalls_holds_no_call(scene: Scene, tmp_path: Path) -> None:
    pipe, told = tmp_path / "calls.jsonl", list[str]()
    # Opening a pipe that nobody reads waits, as a file system that has gone away does.
    os.mkfifo(pipe)
    with scene.serving(RECORDS__JSON_LINES=str(pipe)) as server:
        before = settle(scene, server)
        assert scene.call(server, 12, 0.5).wait(PATIENCE) == 0
        until(lambda: gauge(server, "callagent_calls_live") == 0, server, "calls are left")
        with pipe.open() as reader:

            def all_told() -> bool:
                # Between two lines the pipe has no writer and reads as ended.
                told.extend(json.loads(line)["id"] for line in reader)
                return len(told) == 13

            until(all_told, server, "lines are missing")
        until(lambda: held(server) <= before, server, f"{before} was held, {held(server)} is")
    assert sorted(told) == sorted(record["id"] for record in server.records())
