"""SIPp's built-in caller against the server with the example agent: every call is answered, recorded and closed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.server_process import ServerProcess, serve

pytestmark = [
    pytest.mark.local,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]


def sipp(folder: Path, server: ServerProcess, *arguments: str, seconds: int) -> None:
    """Run SIPp's `uac` to its end; every call of it has to succeed."""
    command = ["sipp", "-sn", "uac", "-s", "agent", *arguments, "-i", "127.0.0.1", "-mi", "127.0.0.1", "-nostdin"]
    with (folder / "sipp.out").open("w") as out:
        done = subprocess.run(
            [*command, "-timeout", str(seconds), "-timeout_error", "-trace_err", server.sip],
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=folder,
            timeout=seconds + 30,
        )
    assert done.returncode == 0, (folder / "sipp.out").read_text()[-3000:]


def check(records: list[dict[str, Any]], calls: int, seconds: float) -> None:
    assert len(records) == len({record["id"] for record in records}) == calls
    for record in records:
        assert (record["end_reason"], record["in_progress"]) == ("caller_hangup", False)
        assert (record["end_function"], record["end_attempts"]) == ("done", 1)
        assert [metric["name"] for metric in record["metrics"]].count("OUTCOME") == 1
        assert seconds <= record["total_duration"] < seconds + 10
        assert not record["errors"]


def run(folder: Path, calls: int, rate: int, seconds: int) -> None:
    with serve(folder) as server:
        whole = 60 + seconds + calls // rate
        sipp(folder, server, "-r", str(rate), "-m", str(calls), "-d", str(1000 * seconds), seconds=whole)
        check(server.wait_for_records(calls, 60), calls, seconds)
        assert "Traceback" not in server.errors.read_text()


@pytest.mark.end_to_end
def test_five_calls_are_answered_recorded_and_closed(tmp_path: Path) -> None:
    run(tmp_path, calls=5, rate=5, seconds=1)


@pytest.mark.acceptance("calls")
def test_a_hundred_calls_of_ten_seconds(tmp_path: Path) -> None:
    run(tmp_path, calls=100, rate=5, seconds=10)
