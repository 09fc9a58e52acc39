"""1,500 calls in a minute: each has its worker, and who asks meanwhile whether the server is there is answered."""

from __future__ import annotations

import os
import shutil
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.end_to_end.server_process import ServerProcess, serve
from tests.end_to_end.test_sip_torture import probe
from tests.end_to_end.test_sipp_load import sipp

pytestmark = pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed")

CALLS, RATE = 1500, 25
PROBE_SECONDS = 0.1
ANSWER_SECONDS = 30.0
"""For the last probes."""


class Monitor(threading.Thread):
    """Sends an OPTIONS request each 0.1 s, never twice, and keeps when each was answered."""

    def __init__(self, server: ServerProcess) -> None:
        super().__init__(daemon=True)
        self.sent: dict[int, float] = {}
        self.answered: dict[int, float] = {}
        self._over = threading.Event()
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.connect(("127.0.0.1", server.sip_port))
        self._socket.settimeout(PROBE_SECONDS)

    def run(self) -> None:
        while not self._over.is_set():
            number = len(self.sent)
            self.sent[number] = time.monotonic()
            self._socket.send(probe(number, "UDP"))
            self._read_until(self.sent[number] + PROBE_SECONDS)
        self._read_until(time.monotonic() + ANSWER_SECONDS, len(self.sent))

    def close(self) -> None:
        """Wait for the answers that are due."""
        self._over.set()
        self.join()
        self._socket.close()

    def _read_until(self, deadline: float, answers: int | None = None) -> None:
        while time.monotonic() < deadline and len(self.answered) != answers:
            try:
                data = self._socket.recv(65536)
            except TimeoutError:
                continue
            assert data.startswith(b"SIP/2.0 200 "), data
            number = int(data.partition(b"Call-ID: probe")[2].partition(b"\r")[0])
            self.answered[number] = time.monotonic()


@pytest.mark.acceptance("signalling")
def test_fifteen_hundred_invites_in_a_minute(tmp_path: Path) -> None:
    # As a user sets it who expects so many: calls that end hold their place until their record is written.
    with serve(tmp_path, LIMITS__CALLS="500") as server:
        monitor = Monitor(server)
        monitor.start()
        began = time.monotonic()
        sipp(tmp_path, server, "-r", str(RATE), "-m", str(CALLS), "-d", "500", seconds=300)
        took = time.monotonic() - began
        monitor.close()
        records = server.wait_for_records(CALLS, 120)
        events = [line["event"] for line in server.log()]
        output = server.errors.read_text()
    lost = monitor.sent.keys() - monitor.answered.keys()
    waits = sorted(at - monitor.sent[number] for number, at in monitor.answered.items())
    print(  # noqa: T201
        f"{CALLS} calls in {took:.0f} s; {len(monitor.sent)} probes, {len(lost)} lost, answered within "
        f"{1000 * waits[len(waits) // 2]:.0f} ms (p50), {1000 * waits[-1]:.0f} ms (max); load {os.getloadavg()[0]:.0f}"
    )
    assert not lost
    assert len({record["id"] for record in records}) == CALLS
    ends = {(record["end_reason"], record["end_function"], len(record["errors"])) for record in records}
    assert ends == {("caller_hangup", "done", 0)}
    assert "did not fork" not in output
    assert "no worker within" not in output
    assert "call_not_begun" not in events
