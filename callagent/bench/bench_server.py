"""A server process for benchmarks: the bench agent, free ports, a store of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from callagent.errors import UserError

AGENT = Path(__file__).parent / "agent"
READY_SECONDS = 180.0
STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class BenchServer:
    pid: int
    port: int
    http: str
    """URL of the HTTP side; empty: it is off."""

    @property
    def uri(self) -> str:
        return f"sip:agent@127.0.0.1:{self.port}"


@asynccontextmanager
async def bench_server(folder: Path, settings: Mapping[str, str], *, http: bool = False) -> AsyncIterator[BenchServer]:
    """Started with `settings` (`{"MODEL__NAME": …}`), its store in `folder`. Raises `UserError` when it fails."""
    environment = {**os.environ, "CALLAGENT_RECORDS__PATH": str(folder / "calls.db")}
    environment |= {f"CALLAGENT_{name}": value for name, value in settings.items()}
    url = f"http://127.0.0.1:{_free_port()}" if http else ""
    if url:
        environment["CALLAGENT_HTTP__PUBLIC_URL"] = url
    command = [sys.executable, "-m", "callagent", "serve", str(AGENT), "--sip", "127.0.0.1:0"]
    command += ["--http", url.removeprefix("http://") or "off"]
    with (folder / "server.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, "--log-level", "warning", stdout=asyncio.subprocess.PIPE, stderr=log, env=environment
        )
    try:
        yield BenchServer(process.pid, await _ready(process, folder / "server.log"), url)
    finally:
        for _ in range(2):
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _ready(process: asyncio.subprocess.Process, log: Path) -> int:
    assert process.stdout
    async with asyncio.timeout(READY_SECONDS):
        line = (await process.stdout.readline()).decode()
    if not line.startswith("ready sip"):
        raise UserError(f"the benchmark's server did not start:\n{_end_of(log)}")
    return int(line.rpartition(":")[2])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_of(log: Path) -> str:
    return log.read_text()[-2000:]
