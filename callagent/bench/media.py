"""`callagent bench media`: what a call's media costs for each frame of 20 ms, both directions.

Many calls' media runs in a process that does nothing else: packets are received, put in order, decoded, resampled to
16 kHz and measured; a voice's 24 kHz is resampled as it comes, in pieces of 200 ms, encoded and sent on the clock: all
of it by what calls use. That process (`python -m callagent.bench.media`) prints its ports as JSON, reads the peers'
from standard input, runs, and prints the processor time it took. An echo in C takes the same load in the same run.
Where there is a compiler the load itself is in C: it shares the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, cycle
from pathlib import Path
from typing import Any

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE, Decimator, prepare_decimators
from callagent.bench.rtp_load import RtpLoad, reference_sender
from callagent.rtp import Pump, RtpParameters, RtpPorts, RtpSession, open_codec
from callagent.server import calm_collector

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
    command = [sys.executable, "-m", "callagent.bench.media", "--calls", str(calls), "--seconds", str(seconds)]
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


_SWITCH_INTERVAL = 0.0002
_RECOGNIZER_RATE = 16000
_VOICE_RATE = 24000
_WARM_UP_SECONDS = 1.0
_FRAMES_OF_VOICE = 50
_PIECE = 10
"""Frames of a piece of voice: it is resampled as it comes, not as it is sent."""


class Talk:
    """One call: its ears take frames at 16 kHz and their level, its mouth speaks frames made at 24 kHz."""

    def __init__(self, *, resample: bool) -> None:
        self.frames = 0
        self.level = 0
        self._numbers = count()
        self.hear: Callable[[bytes, float], None] = self._hear
        self.speak: Callable[[], bytes] = self._speak
        if resample:
            self._resample()

    def _hear(self, frame: bytes, now: float) -> None:
        import audioop

        self.frames += 1
        self.level = audioop.rms(frame, 2)

    def _speak(self) -> bytes:
        return _voice(8000)[next(self._numbers) % _FRAMES_OF_VOICE]

    def _resample(self) -> None:
        """As a session's audio goes up, and a provider's voice comes down."""
        import audioop

        state: Any = None
        decimator = Decimator(_VOICE_RATE // SAMPLE_RATE)
        frames = _voice(_VOICE_RATE)
        pieces = cycle(b"".join(frames[at : at + _PIECE]) for at in range(0, len(frames), _PIECE))
        ready: deque[bytes] = deque()

        def hear(frame: bytes, now: float) -> None:
            nonlocal state
            _, state = audioop.ratecv(frame, 2, 1, SAMPLE_RATE, _RECOGNIZER_RATE, state)
            self.frames += 1
            self.level = audioop.rms(frame, 2)

        def speak() -> bytes:
            if not ready:
                pcm = decimator.feed(next(pieces))
                ready.extend(pcm[at : at + FRAME_BYTES] for at in range(0, len(pcm), FRAME_BYTES))
            return ready.popleft()

        self.hear, self.speak = hear, speak


_voices: dict[int, list[bytes]] = {}


def _voice(rate: int) -> list[bytes]:
    """A second of a tone, a frame at a time."""
    if rate not in _voices:
        samples = rate // 50
        wave = [int(6000 * math.sin(2 * math.pi * 300 * n / rate)) for n in range(rate)]
        _voices[rate] = [struct.pack(f"<{samples}h", *wave[at : at + samples]) for at in range(0, rate, samples)]
    return _voices[rate]


async def run(calls: int, seconds: float, codec_name: str, *, resample: bool) -> None:
    pump = Pump()
    pump.start()
    sessions = [RtpSession(asyncio.get_running_loop(), RtpPorts("127.0.0.1", 10000, 40000), pump) for _ in range(calls)]
    print(json.dumps([session.local_port for session in sessions]), flush=True)
    peers: list[int] = json.loads(sys.stdin.readline())
    talks = [Talk(resample=resample) for _ in sessions]
    for session, peer, talk in zip(sessions, peers, talks, strict=True):
        codec = open_codec(codec_name)
        assert codec is not None
        session.connect(("127.0.0.1", peer), RtpParameters(codec))
        session.start(talk.hear, talk.speak)
    calm_collector()
    await asyncio.sleep(_WARM_UP_SECONDS)
    cpu, began = time.process_time(), time.monotonic()
    before = sum(talk.frames for talk in talks)
    await asyncio.sleep(seconds)
    cpu, lasted = time.process_time() - cpu, time.monotonic() - began
    heard = sum(talk.frames for talk in talks) - before
    late = max(session.statistics().send_lateness_max_ms for session in sessions)
    print(
        json.dumps(
            {
                "cpu_seconds": cpu,
                "frames": lasted / FRAME_SECONDS * calls,
                "heard_share": heard * FRAME_SECONDS / lasted / calls,
                "send_lateness_max_ms": round(late, 2),
            }
        ),
        flush=True,
    )
    for session in sessions:
        session.close()
    pump.stop()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m callagent.bench.media")
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--codec", default="PCMU")
    parser.add_argument("--resample", action="store_true")
    options = parser.parse_args()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    prepare_decimators()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run(options.calls, options.seconds, options.codec, resample=options.resample))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


if __name__ == "__main__":
    main()
