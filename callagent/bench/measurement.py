"""What benchmarks share: a server process, CPU and memory of processes, percentiles, and the speech in a recording.

Where speech begins and ends is found by level alone, without the code under test; reaction times count from there.
"""

from __future__ import annotations

import asyncio
import audioop
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from callagent.audio import SAMPLE_RATE
from callagent.errors import UserError
from callagent.phone import nearest_rank


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return `count`, `p50`, `p99` and `max` by nearest rank; zeros if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return {"count": 0, "p50": 0.0, "p99": 0.0, "max": 0.0}
    return {
        "count": len(ordered),
        "p50": round(nearest_rank(ordered, 0.5), 2),
        "p99": round(nearest_rank(ordered, 0.99), 2),
        "max": round(ordered[-1], 2),
    }


_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """Processor time and memory of processes."""

    cpu_seconds: float
    memory: int
    """Bytes. A page that processes share is divided among them (proportional set size, PSS)."""


class ProcessTree:
    """A process and all its descendants."""

    def __init__(self, root: int) -> None:
        self._root = root

    def usage(self) -> Usage:
        """Return the processor time that the living processes have used, and the memory that they hold."""
        cpu, memory = 0.0, 0
        for process in self._processes():
            # A process may end between the listing and the reading; then it is left out.
            try:
                fields = (_PROC / str(process) / "stat").read_text().rpartition(")")[2].split()
                rollup = (_PROC / str(process) / "smaps_rollup").read_text()
            except OSError:
                continue
            cpu += (int(fields[11]) + int(fields[12])) / _TICKS
            memory += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) * 1024
        return Usage(cpu, memory)

    def _processes(self) -> set[int]:
        # Workers are children of a zygote, which is a child of the server: the whole tree counts.
        children: dict[int, list[int]] = {}
        for entry in _PROC.iterdir():
            if not entry.name.isdigit():
                continue
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
        found, left = {self._root}, [self._root]
        while left:
            for child in children.get(left.pop(), []):
                if child not in found:
                    found.add(child)
                    left.append(child)
        return found


AGENT = Path(__file__).parent / "agent"
"""The project that benchmarks call."""
MAX_START_SECONDS = 180.0
MAX_STOP_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class BenchServer:
    """A running server that a benchmark calls."""

    pid: int
    port: int
    http: str
    """URL of its HTTP API; empty: HTTP is off."""

    @property
    def uri(self) -> str:
        return f"sip:agent@127.0.0.1:{self.port}"


@asynccontextmanager
async def bench_server(folder: Path, settings: Mapping[str, str], *, http: bool = False) -> AsyncIterator[BenchServer]:
    """Run a server with `settings` (`{"MODEL__NAME": …}`) and its store in `folder`. Raises `UserError` if it fails."""
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
        yield BenchServer(process.pid, await _wait_for_port(process, folder / "server.log"), url)
    finally:
        # The first signal lets calls end, the second ends them.
        for _ in range(2):
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(MAX_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _wait_for_port(process: asyncio.subprocess.Process, log: Path) -> int:
    """Return the SIP port once the server is ready. Raises `UserError` if it did not start."""
    assert process.stdout
    async with asyncio.timeout(MAX_START_SECONDS):
        line = (await process.stdout.readline()).decode()
    if not line.startswith("ready sip"):
        raise UserError(f"the benchmark's server did not start:\n{_end_of(log)}")
    return int(line.rpartition(":")[2])


def _free_port() -> int:
    # Another process could take the port before the server does; then the server fails to start, which is reported.
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_of(log: Path) -> str:
    return log.read_text()[-2000:]


STEP_SAMPLES = SAMPLE_RATE // 100
"""Samples of one step, 10 ms, for which the level is measured."""
SPEECH_SHARE = 10 ** (-30 / 20)
"""Share of the loudest level above which a step is loud: 30 dB below the loudest."""
MIN_SPEECH_LEVEL = 40
"""Root mean square below which nothing is speech (-58 dBFS)."""
BREATH_SHARE = 10 ** (-20 / 20)
"""Share of the loudest level that a breath never exceeds: 20 dB below the loudest."""
MIN_SILENCE_STEPS = 10
"""Steps without sound that separate a breath from speech; the silence inside a `p`, `t` or `k` is shorter."""


def spoken_span(pcm: bytes) -> tuple[float, float]:
    """Return the seconds at which speech begins and ends.

    A step is loud within 30 dB of the loudest one. Speech begins with the first loud step that has two more among the
    next three, and ends with the last that has two more among the previous three. A breath before it is left out: a
    sound that stays 20 dB below the loudest until a silence of 0.1 s. Speech gets louder before such a silence.

    Raises `ValueError` if nothing is loud enough.
    """
    levels = _levels(pcm)
    loud = _loud_steps(levels)
    begins = [at for at in range(len(loud)) if loud[at] and sum(loud[at : at + 4]) >= 3]
    ends = [at for at in range(len(loud)) if loud[at] and sum(loud[max(0, at - 3) : at + 1]) >= 3]
    if not begins or not ends:
        raise ValueError("the recording has no speech: no sound is loud enough")
    return _after_breaths(levels, loud, begins) / 100, (ends[-1] + 1) / 100


def longest_pause(pcm: bytes) -> float:
    """Return the seconds of the longest silence between two sounds."""
    loud = _loud_steps(_levels(pcm))
    sounds = [at for at in range(len(loud)) if loud[at]]
    return max((after - before - 1 for before, after in pairwise(sounds)), default=0) / 100


def _after_breaths(levels: Sequence[int], loud: Sequence[bool], begins: Sequence[int]) -> int:
    """Return the first step of `begins` that is not part of a breath."""
    faint, first = max(levels) * BREATH_SHARE, begins[0]
    for at in range(first, len(loud)):
        if levels[at] > faint:
            return first
        if at + MIN_SILENCE_STEPS <= len(loud) and not any(loud[at : at + MIN_SILENCE_STEPS]):
            return next((start for start in begins if start > at), first)
    return first


def _levels(pcm: bytes) -> list[int]:
    step_bytes = 2 * STEP_SAMPLES
    return [audioop.rms(pcm[at : at + step_bytes], 2) for at in range(0, len(pcm) - step_bytes + 1, step_bytes)]


def _loud_steps(levels: Sequence[int]) -> list[bool]:
    threshold = max(MIN_SPEECH_LEVEL, max(levels, default=0) * SPEECH_SHARE)
    return [level > threshold for level in levels]
