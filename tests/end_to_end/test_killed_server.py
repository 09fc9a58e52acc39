"""The server is killed amid calls: what it had acknowledged is there once, and no call is without a record."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.journal import NOTE, journal, let_functions_note, lines
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


{note}

def written(conv, name, value):
    conv.write_metric(name, value)
    note(conv.id, name, value)


def start_function(conv: Conversation):
    for number in range(10):
        written(conv, "NUMBER", number)
        time.sleep(0.01)
"""
END = """\
from _gen import *  # <AUTO GENERATED>
from functions.start_function import written


def end_function(conv: Conversation):
    written(conv, "ENDED", 1)
"""


def project(folder: Path, port: int) -> Path:
    """Its functions write down what was acknowledged: one line for each metric, after `write_metric` returned."""
    made = Path(shutil.copytree(MILL, folder / "project"))
    (made / "functions" / "start_function.py").write_text(START.format(note=NOTE.format(port=port)))
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
    return lines(folder)


def kill_under_load(folder: Path, made: Path, port: int, after: float) -> None:
    """Amid the calls, `after` seconds since it first acknowledged something. Nothing is closed and nothing flushed; the
    store is opened again by the next server."""
    before = len(acknowledged(folder))
    with serve(folder, *let_functions_note(folder, port), project=made, **scripts(folder, [], [])) as server:
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
    noted = acknowledged(folder)
    with closing(sqlite3.connect(folder / "calls.db")) as store:
        kept = Counter((call, name, json.loads(value)) for call, name, value in store.execute(
            "SELECT call_id, name, value FROM metrics"
        ))  # fmt: skip
        ended = dict(store.execute("SELECT id, ended_at FROM calls").fetchall())
    missing = [line for line in noted if (line[0], line[1], int(line[2])) not in kept]
    assert missing == []
    assert [entry for entry, times in kept.items() if times > 1] == []
    assert {line[0] for line in noted} <= ended.keys()
    assert [call for call, at in ended.items() if at is None] == []
    return len(noted)


def kill_and_look(folder: Path, times: int) -> None:
    random_moments = random.Random(20)
    with journal(folder) as port:
        made = project(folder, port)
        for _ in range(times):
            kill_under_load(folder, made, port, random_moments.uniform(0.2, 2.0))
            # Its start is what closes the calls of the one before.
            with serve(folder, *let_functions_note(folder, port), project=made, **scripts(folder, [], [])):
                pass
            found = check(folder)
    assert found > times * 10, "there was load"


def test_a_server_killed_twice_has_lost_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_and_look(tmp_path, 2)


@pytest.mark.acceptance("storage")
def test_a_server_killed_fifty_times_has_lost_nothing_it_acknowledged(tmp_path: Path) -> None:
    kill_and_look(tmp_path, 50)


STATEFUL_START = """\
from _gen import *  # <AUTO GENERATED>


def start_function(conv: Conversation):
    conv.state.sacks = 7
    conv.write_metric("STARTED", 1)
"""
STATEFUL_END = """\
import time
from _gen import *  # <AUTO GENERATED>


{note}

def end_function(conv: Conversation):
    note(conv.id, conv.end_attempt, conv.state.sacks)
    if {stalls!r} and conv.end_attempt == 1:
        time.sleep(600)
    conv.write_metric("ENDED", conv.state.sacks)
"""


@contextmanager
def receiver() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Where webhooks go: its address, and the events as they come."""
    events: list[dict[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing on the terminal."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", events
        server.shutdown()


def wait(condition: Callable[[], object], server: ServerProcess) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, server.errors.read_text()[-4000:]
        time.sleep(0.02)


@pytest.mark.parametrize("killed_in", ["the call", "the end function"])
def test_the_next_server_ends_the_calls_of_a_killed_one(tmp_path: Path, killed_in: str) -> None:
    made = Path(shutil.copytree(MILL, tmp_path / "project"))
    stalls = killed_in == "the end function"
    (made / "functions" / "start_function.py").write_text(STATEFUL_START)
    with receiver() as (url, events), journal(tmp_path) as port:
        text = STATEFUL_END.format(note=NOTE.format(port=port), stalls=stalls)
        (made / "functions" / "end_function.py").write_text(text)
        settings = scripts(tmp_path, [], [])
        webhook = f'[[webhooks]]\nurl = "{url}"\nsecret = "x"\nevents = ["call.ended"]\n'
        config = let_functions_note(tmp_path, port, webhook)
        with serve(tmp_path, *config, project=made, **settings) as server:
            seconds = 0.3 if stalls else 60.0
            command = ["sipp", "-sn", "uac", "-s", "agent", "-m", "3", "-r", "10", "-d", str(round(seconds * 1000))]
            caller = subprocess.Popen(
                [*command, "-i", "127.0.0.1", "-mi", "127.0.0.1", "-nostdin", server.sip],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path,
            )  # fmt: skip
            try:
                if stalls:
                    wait(lambda: len(acknowledged(tmp_path)) == 3, server)
                else:
                    known = "SELECT count(*) FROM calls WHERE json_extract(record, '$.state.sacks') = 7"
                    wait(lambda: server.store.exists() and count(server.store, known) == 3, server)
                    # The true duration is that until the kill, not that until the last word.
                    time.sleep(3)
            finally:
                server.process.kill()
                caller.kill()
                caller.wait()
            killed_at = datetime.now(UTC)
        with serve(tmp_path, *config, project=made, **settings) as server:
            records = server.wait_for_records(3)
            wait(lambda: len(events) == 3, server)
    assert {event["data"]["id"] for event in events} == {record["id"] for record in records}
    attempt = 2 if stalls else 1
    ran = [line[1:] for line in acknowledged(tmp_path)]
    assert sorted(ran) == sorted([["1", "7"]] * 3 + ([["2", "7"]] * 3 if stalls else []))
    for record in records:
        assert record["end_reason"] == ("caller_hangup" if stalls else "server_killed")
        assert record["end_function"] == "done"
        assert record["end_attempts"] == attempt
        assert record["state"]["sacks"] == 7
        assert [metric["name"] for metric in record["metrics"]] == ["STARTED", "ENDED"]
        lasted = (killed_at - datetime.fromisoformat(record["started_at"])).total_seconds()
        # A sign of life every second; the server may have waited for a processor before it was killed.
        assert (0.3 if stalls else lasted - 5) <= record["total_duration"] <= lasted + 0.1


def count(store: Path, query: str) -> int:
    with closing(sqlite3.connect(store)) as connection:
        return int(connection.execute(query).fetchone()[0])
