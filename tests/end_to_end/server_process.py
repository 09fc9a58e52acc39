"""The server as a user starts it: a process, its ready lines, its store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callagent.records import read_calls, read_records

ROOT = Path(__file__).parents[2]
READY_SECONDS = 120.0


@dataclass
class ServerProcess:
    process: subprocess.Popen[str]
    store: Path
    errors: Path
    sip_port: int = 0
    http_port: int = 0

    @property
    def token_file(self) -> Path:
        return self.store.parent / "run" / "callagent" / f"http-127.0.0.1:{self.http_port}.json"

    @property
    def login(self) -> dict[str, str]:
        """The headers that let in whoever has started the server."""
        return {"Authorization": f"Bearer {json.loads(self.token_file.read_text())['token']}"}

    @property
    def sip(self) -> str:
        return f"127.0.0.1:{self.sip_port}"

    def records(self) -> list[dict[str, Any]]:
        return list(read_records(self.store))

    def wait_for_records(self, count: int, seconds: float = 60.0) -> list[dict[str, Any]]:
        """The records once `count` calls have ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if sum(call["ended_at"] is not None for call in read_calls(self.store, limit=100_000)) >= count:
                return self.records()
            time.sleep(0.1)
        raise AssertionError(f"{len(self.records())} records of {count}\n{self.errors.read_text()[-4000:]}")

    def log(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.errors.read_text().splitlines() if line.startswith("{")]


@contextmanager
def serve(
    folder: Path,
    *arguments: str,
    project: Path = ROOT,
    program: Sequence[str] = ("callagent",),
    **settings: str,
) -> Iterator[ServerProcess]:
    """A server on free ports of loopback; `settings` are environment overrides such as SPEECH__VOICE."""
    store, errors = folder / "calls.db", folder / "server.err"
    environment = {**os.environ, "CALLAGENT_RECORDS__PATH": str(store), "CALLAGENT_LOG__JSON_LINES": "true"}
    environment["CALLAGENT_RECORDS__SPOOL"] = str(folder / "spool")
    environment["XDG_RUNTIME_DIR"] = str(_runtime_folder(folder))
    # Utterances are counted here, and a busy machine makes answers late: no word of patience unless a test wants it.
    environment["CALLAGENT_MODEL__FILLER_AFTER"] = "0"
    environment |= {f"CALLAGENT_{name}": value for name, value in settings.items()}
    command = [sys.executable, "-m", *program, "serve", str(project), "--sip", "127.0.0.1:0"]
    if "--http" not in arguments:
        command += ["--http", "off"]
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, cwd=ROOT
        )
    server = ServerProcess(process, store, errors)
    try:
        _await_ready(server, 1 if "--http" not in arguments else 2)
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        assert process.stdout
        process.stdout.close()


def _runtime_folder(folder: Path) -> Path:
    """The server's token file is the test's own."""
    runtime = folder / "run"
    runtime.mkdir(exist_ok=True)
    return runtime


def _await_ready(server: ServerProcess, lines: int) -> None:
    watchdog = threading.Timer(READY_SECONDS, server.process.kill)
    watchdog.start()
    try:
        assert server.process.stdout
        for _ in range(lines):
            words = server.process.stdout.readline().split()
            assert words[:1] == ["ready"], f"not ready: {words}\n{server.errors.read_text()[-4000:]}"
            port = int(words[-1].rpartition(":")[2])
            if words[1] == "sip":
                server.sip_port = port
            else:
                server.http_port = port
    finally:
        watchdog.cancel()


def run_command(
    arguments: Sequence[str], *, seconds: float = 120.0, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`callagent` with these arguments, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "callagent", *arguments],
        capture_output=True,
        text=True,
        timeout=seconds,
        cwd=ROOT,
        env={**os.environ, **environment},
    )
