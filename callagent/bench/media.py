"""`callagent bench media`: what a call's media costs for each frame of 20 ms, both directions; and the load for it.

Many calls' media runs in a process that does nothing else: packets are received, put in order, decoded, resampled to
16 kHz and measured; a voice's 24 kHz is resampled as it comes, in pieces of 200 ms, encoded and sent on the clock: all
of it by what calls use. That process prints its ports as JSON, reads the peers' from standard input, runs, and prints
the processor time it took. An echo in C takes the same load in the same run. Where there is a compiler the load itself
is in C: it shares the machine. Its processes:

    python -m callagent.bench.media serve --calls 100 --seconds 5 --resample
    python -m callagent.bench.media load --remote 127.0.0.1:10000 --remote 127.0.0.1:10002 --local-port 40000
    python -m callagent.bench.media load --reference 100 --seconds 10

The load sends paced G.711 streams and measures how evenly the server's own come back. A packet's deviation is its
kernel receive timestamp against the 20 ms grid that its stream's first packet fixes: the load may be late itself
without spoiling the figures. `--reference` measures a sender in C on the same machine: a server's p99 means little
without it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import math
import select
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, cycle, repeat
from pathlib import Path

from callagent.audio import FRAME_BYTES, FRAME_SECONDS, SAMPLE_RATE, Decimator, prepare_decimators
from callagent.bench.measurement import percentiles
from callagent.json_values import JsonObject, MutableJsonObject
from callagent.rtp import PCMU, Pump, RtpPacket, RtpParameters, RtpPorts, RtpSender, RtpSession, is_rtcp, open_codec
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


def measure(calls: int, seconds: float, rounds: int) -> JsonObject:
    """Measure plain media, resampled media and the echo in C, and return the figures.

    They take turns, so that what disturbs the machine disturbs all three; of each the round that was disturbed least
    counts.
    """
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
    command = [sys.executable, "-m", "callagent.bench.media", "serve", "--calls", str(calls), "--seconds", str(seconds)]
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
    """Return the microseconds of the echo in C; None without a compiler."""
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
    """Run a stream to each port for as long as the block lasts, and give the streams' own ports."""
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


def _text(result: JsonObject) -> str:
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
"""Frames of a piece of voice, which is resampled as it comes, not as it is sent."""


class Talk:
    """One call: its frames are heard at 16 kHz with their level, and its voice is made at 24 kHz."""

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
        """Resample as calls do: upwards what a recogniser hears, downwards a provider's voice."""
        import audioop

        state: tuple[int, tuple[tuple[int, int], ...]] | None = None
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
    # Jitter buffers fill and caches warm up before the time is taken.
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


def _serve(options: argparse.Namespace) -> int:
    # As the server does it: the thread that sends must not wait for the loop's 5 ms.
    sys.setswitchinterval(_SWITCH_INTERVAL)
    prepare_decimators()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(run(options.calls, options.seconds, options.codec, resample=options.resample))
    return 0


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
_CLOCK_RATE = 8000
_RECEIVE_BUFFER = 1 << 20
_SETTLE_SECONDS = 0.2
"""For what is still on its way at the end."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A packet that came back."""

    at: float
    """Wall clock of the kernel, in seconds."""
    sequence: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """One returned stream."""

    deviations: tuple[float, ...]
    """Milliseconds off the grid, of each packet but the first."""
    lost: int

    @classmethod
    def of(cls, arrivals: Sequence[Arrival]) -> StreamFigures:
        """Measure packets in the order of their arrival; ones out of order and duplicates count as lost."""
        if not arrivals:
            return cls((), 0)
        first = last = arrivals[0]
        deviations: list[float] = []
        expected = 1
        for arrival in arrivals[1:]:
            # Sequence numbers wrap around (RFC 3550 section 5.1): more than half the circle ahead is behind.
            step = (arrival.sequence - last.sequence) & 0xFFFF
            if not 0 < step < 0x8000:
                continue
            expected += step
            # Timestamps count samples and wrap around at 32 bits (RFC 3550 section 5.1).
            due = first.at + ((arrival.timestamp - first.timestamp) & 0xFFFFFFFF) / _CLOCK_RATE
            deviations.append(abs(arrival.at - due) * 1000)
            last = arrival
        return cls(tuple(deviations), expected - 1 - len(deviations))


class LoadStream:
    """One phone's media: it sends on the pump's grid, and keeps when packets came."""

    def __init__(self, host: str, port: int = 0) -> None:
        """`port` 0 takes any. Raises `OSError`."""
        self.remote: tuple[str, int] | None = None
        """Where to send; nothing is sent while it is None."""
        self.frames: Iterator[bytes | None] = repeat(None)
        """What to send, a frame of 20 ms at a time; None is silence."""
        self.arrivals: list[Arrival] = []
        self.late = 0.0
        """Seconds that our own packets were late, at most."""
        self.socket = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        self.socket.bind((host, port))
        self.port: int = self.socket.getsockname()[1]
        self.sender = RtpSender(PCMU)

    def send(self, due: float, skipped: int) -> None:
        self.sender.skip(skipped)
        if self.remote is None:
            return
        try:
            self.socket.sendto(self.sender.frame_to_send(next(self.frames)), self.remote)
        except OSError:
            return
        self.late = max(self.late, time.monotonic() - due)

    def fail(self, error: Exception) -> None:
        raise error

    def receive(self) -> None:
        while True:
            try:
                data, control, _, _ = self.socket.recvmsg(2048, 64)
                # RTP and RTCP may share a port (RFC 5761).
                if is_rtcp(data):
                    continue
                packet = RtpPacket.parse(data)
            except OSError:
                return
            except ValueError:
                continue
            for level, kind, value in control:
                if level == socket.SOL_SOCKET and kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = _TIMESPEC.unpack(value[: _TIMESPEC.size])
                    at = seconds + nanoseconds * 1e-9
                    self.arrivals.append(Arrival(at, packet.sequence, packet.timestamp))


class RtpLoad:
    """Streams of one process. Set `remote` of each, then `run`."""

    def __init__(self, host: str, count: int, first_port: int = 0) -> None:
        """With `first_port` the streams use it and every second port above. Raises `OSError`."""
        self.streams = [LoadStream(host, first_port + 2 * index if first_port else 0) for index in range(count)]
        self._stopped = threading.Event()

    def run(self, seconds: float) -> None:
        """Send for `seconds` on the pump's thread, and receive on this one."""
        pump = Pump()
        handles = [pump.add(stream) for stream in self.streams]
        pump.start()
        try:
            self._receive(time.monotonic() + seconds)
        finally:
            for handle in handles:
                pump.remove(handle)
            pump.stop()
        self._receive(time.monotonic() + _SETTLE_SECONDS)

    def stop(self) -> None:
        """Make `run` on another thread return soon."""
        self._stopped.set()

    def close(self) -> None:
        for stream in self.streams:
            stream.socket.close()

    def figures(self) -> JsonObject:
        """Return what came back; deviations are in milliseconds."""
        streams = [StreamFigures.of(stream.arrivals) for stream in self.streams]
        return {
            "streams": len(streams),
            "streams_heard": sum(1 for stream in self.streams if stream.arrivals),
            "sent": sum(stream.sender.packets for stream in self.streams),
            "received": sum(len(stream.arrivals) for stream in self.streams),
            "lost": sum(stream.lost for stream in streams),
            "deviation_ms": percentiles([each for stream in streams for each in stream.deviations]),
            "per_stream": [
                {"port": own.port, "lost": stream.lost, **percentiles(stream.deviations)}
                for own, stream in zip(self.streams, streams, strict=True)
            ],
            "own_lateness_max_ms": round(max((stream.late for stream in self.streams), default=0.0) * 1000, 2),
        }

    def _receive(self, end: float) -> None:
        with select.epoll() as poll:
            readers = {stream.socket.fileno(): stream for stream in self.streams}
            for number in readers:
                poll.register(number, select.EPOLLIN)
            while (left := end - time.monotonic()) > 0 and not self._stopped.is_set():
                for number, _ in poll.poll(min(left, 0.1)):
                    readers[number].receive()


@contextmanager
def reference_sender() -> Iterator[Path | None]:
    """Give the sender in C, built for as long as the block lasts; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        yield None
        return
    source = Path(__file__).with_name("paced_sender.c")
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory) / "paced_sender"
        subprocess.run([compiler, "-O2", "-o", str(built), str(source)], check=True, timeout=60)
        yield built


def reference_figures(count: int, seconds: int, host: str = "127.0.0.1") -> JsonObject | None:
    """Return how evenly `count` streams of the sender in C arrive here; None without a compiler."""
    with reference_sender() as sender:
        if sender is None:
            return None
        load = RtpLoad(host, count)
        try:
            command = [str(sender), host, str(seconds), *(str(stream.port) for stream in load.streams)]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
                load.run(seconds)
                process.wait(seconds + 10)
            return load.figures()
        finally:
            load.close()


def _remote(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit():
        raise argparse.ArgumentTypeError(f"'{text}' is not HOST:PORT")
    return host.strip("[]"), int(port)


def _load(options: argparse.Namespace) -> int:
    result: MutableJsonObject = {}
    if options.remote:
        load = RtpLoad(options.local_host, len(options.remote), options.local_port)
        for stream, remote in zip(load.streams, options.remote, strict=True):
            stream.remote = remote
        load.run(options.seconds)
        result["server"] = load.figures()
        load.close()
    if options.reference:
        result["reference"] = reference_figures(options.reference, options.seconds)
    print(json.dumps(result))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m callagent.bench.media", description="The processes that the benchmarks of media start."
    )
    roles = parser.add_subparsers(title="roles", required=True)
    serve = roles.add_parser("serve", help="many calls' media, and the processor time it takes")
    serve.add_argument("--calls", type=int, required=True)
    serve.add_argument("--seconds", type=float, required=True)
    serve.add_argument("--codec", default="PCMU")
    serve.add_argument("--resample", action="store_true")
    serve.set_defaults(run=_serve)
    load = roles.add_parser("load", help="paced G.711 streams to a server, and how evenly its own come back")
    load.add_argument("--remote", action="append", type=_remote, default=[], help="HOST:PORT of a stream; repeatable")
    load.add_argument("--local-host", default="127.0.0.1")
    load.add_argument("--local-port", type=int, default=0, help="of the first stream, the next ones 2 above; 0: any")
    load.add_argument("--seconds", type=int, default=10)
    load.add_argument("--reference", type=int, default=0, metavar="N", help="measure N streams of a sender in C too")
    load.set_defaults(run=_load)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of the processes."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is _load and not options.remote and not options.reference:
        parser.error("nothing to do: give --remote or --reference")
    run_role: Callable[[argparse.Namespace], int] = options.run
    return run_role(options)


if __name__ == "__main__":
    raise SystemExit(main())
