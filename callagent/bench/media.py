"""`callagent bench media`: what a call's media costs for each frame of 20 ms, both directions.

Many calls' media runs in a process that does nothing else: packets are received, put in order, decoded, resampled to
16 kHz and measured; a voice's 24 kHz is resampled as it comes, in pieces of 200 ms, encoded and sent on the clock: all
of it by what calls use. An echo in C takes the same load in the same run. Where there is a compiler the load itself is
in C: it shares the machine.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from callagent.bench.rtp_load import RtpLoad, reference_sender

GOAL_MICROSECONDS = 50.0
"""Per call and frame, with resampling."""
ROUNDS = 3
_HEARD = 0.97
"""The share of frames that must have come through for the figure to count."""
_MARGIN_SECONDS = 3.0
"""For the server to begin and the load to outlast it."""


def bench_media(options: argparse.Namespace) -> int:
    """Run and print; exit status 1 when the goal is missed."""
    result = measure(options.calls, options.seconds, ROUNDS)
    print(json.dumps(result) if options.json else _text(result))
    return 0 if result["met"] else 1


def measure(calls: int, seconds: float, rounds: int) -> dict[str, Any]:
    """In turn, so that what disturbs the machine disturbs all three; of each the round that was disturbed least."""
    runs = [
        (_server(calls, seconds, []), _server(calls, seconds, ["--resample"]), _echo(calls, seconds))
        for _ in range(rounds)
    ]
    plain = min((run[0] for run in runs), key=lambda figures: figures["us"])
    resampling = min((run[1] for run in runs), key=lambda figures: figures["us"])
    echo = min((run[2] for run in runs if run[2] is not None), default=None)
    return {
        "calls": calls,
        "seconds": seconds,
        "resampling_us": resampling["us"],
        "plain_us": plain["us"],
        "c_echo_us": echo,
        "numpy": importlib.util.find_spec("numpy") is not None,
        "heard_share": round(min(plain["heard_share"], resampling["heard_share"]), 3),
        "calls_per_core": int(20000 / resampling["us"]),
        "goal_us": GOAL_MICROSECONDS,
        "met": resampling["us"] <= GOAL_MICROSECONDS and resampling["heard_share"] >= _HEARD,
    }


def _server(calls: int, seconds: float, more: Sequence[str]) -> dict[str, float]:
    command = [sys.executable, "-m", "callagent.bench.media_server", "--calls", str(calls), "--seconds", str(seconds)]
    with subprocess.Popen([*command, *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        ports: list[int] = json.loads(process.stdout.readline())
        with _loaded(ports, seconds + _MARGIN_SECONDS) as peers:
            process.stdin.write(json.dumps(peers) + "\n")
            process.stdin.flush()
            figures = json.loads(process.stdout.readline())
    return {"us": round(figures["cpu_seconds"] / figures["frames"] * 1e6, 1), "heard_share": figures["heard_share"]}


def _echo(calls: int, seconds: float) -> float | None:
    """Microseconds of the echo in C; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory) / "paced_echo"
        source = Path(__file__).with_name("paced_echo.c")
        subprocess.run([compiler, "-O2", "-o", str(built), str(source)], check=True, timeout=60)
        command = [str(built), "127.0.0.1", str(int(seconds)), str(calls)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            ports = [int(port) for port in process.stdout.readline().split()]
            with _loaded(ports, seconds + _MARGIN_SECONDS):
                microseconds, packets = process.stdout.readline().split()
    return round(int(microseconds) / max(1, int(packets)), 1)


@contextmanager
def _loaded(ports: Sequence[int], seconds: float) -> Iterator[list[int]]:
    """A stream to each port, for as long as the block lasts; the streams' own ports."""
    with reference_sender() as sender:
        if sender is None:
            with _loaded_from_here(ports, seconds) as peers:
                yield peers
            return
        command = [str(sender), "127.0.0.1", str(int(seconds) + 1), *map(str, ports)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield [int(port) for port in process.stdout.readline().split()]
            finally:
                process.kill()


@contextmanager
def _loaded_from_here(ports: Sequence[int], seconds: float) -> Iterator[list[int]]:
    load = RtpLoad("127.0.0.1", len(ports))
    for stream, port in zip(load.streams, ports, strict=True):
        stream.remote = ("127.0.0.1", port)
    thread = threading.Thread(target=load.run, args=(seconds,))
    thread.start()
    try:
        yield [stream.port for stream in load.streams]
    finally:
        load.stop()
        thread.join()
        load.close()


def _text(result: Mapping[str, Any]) -> str:
    echo = result["c_echo_us"]
    lines = [
        f"{result['calls']} calls of G.711, {result['seconds']:g} s each, both directions",
        f"  with resampling   {result['resampling_us']:.1f} µs per call and frame: {result['calls_per_core']} a core"
        f"{'' if result['numpy'] else ' (without NumPy, which filters a voice in a tenth of the time)'}",
        f"  without           {result['plain_us']:.1f} µs",
        f"  echo in C         {echo:.1f} µs" if echo is not None else "  echo in C         no compiler here (cc)",
        f"  goal {result['goal_us']:g} µs with resampling: {'met' if result['met'] else 'MISSED'}",
    ]
    return "\n".join(lines)
