"""`callagent bench media`: the processor time of a call's media for each frame of 20 ms, both directions; and its load.

A process that does nothing else runs many calls' media with the code that calls use: packets are received, put in
order, decoded, resampled to 16 kHz and measured; a voice's 24 kHz audio is resampled in pieces of 200 ms, encoded and
sent on the clock. It prints its ports as JSON, reads those of its peers from standard input, runs, and prints the
processor time that it took. An echo in C takes the same load in the same run. Where there is a compiler the load, too,
is in C, because it shares the machine. The processes:

    python -m callagent.bench.media serve --calls 100 --seconds 5 --resample
    python -m callagent.bench.media load --remote 127.0.0.1:10000 --remote 127.0.0.1:10002 --local-port 40000
    python -m callagent.bench.media load --reference 100 --seconds 10

The load sends paced G.711 streams and measures how evenly the server's own come back. A packet's deviation is its
kernel receive timestamp against the 20 ms grid that its stream's first packet fixes, so a load that is late itself does
not spoil the figures. `--reference` measures a sender in C on the same machine, for comparison with a server's p99.
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
from callagent.server import reduce_garbage_collection

GOAL_MICROSECONDS = 50.0
"""Processor time per call and frame, with resampling."""
ROUNDS = 3
_MIN_HEARD_SHARE = 0.97
"""The share of frames that must arrive for a figure to count."""
_MARGIN_SECONDS = 3.0
"""How much longer than the measurement the load runs."""


def bench_media(options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures; return the exit status, 1 when the goal is missed."""
    result = measure(options.calls, options.seconds, ROUNDS)
    print(json.dumps(result) if options.json else _text(result))
    return 0 if result["met"] else 1


def measure(calls: int, seconds: float, rounds: int) -> JsonObject:
    """Measure plain media, resampled media and the echo in C, and return the figures.

    They take turns, so that disturbances of the machine meet all three; of each the least disturbed round counts.
    """
    runs = [
        (_time_server(calls, seconds, []), _time_server(calls, seconds, ["--resample"]), _time_echo(calls, seconds))
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
        "met": resampling["us"] <= GOAL_MICROSECONDS and resampling["heard_share"] >= _MIN_HEARD_SHARE,
    }


def _time_server(calls: int, seconds: float, more: Sequence[str]) -> dict[str, float]:
    """Return the microseconds per frame of the process `serve`, and the share of frames that it received."""
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


def _time_echo(calls: int, seconds: float) -> float | None:
    """Return the microseconds per packet of the echo in C; None without a compiler."""
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
    """Run a stream to each port for as long as the block lasts; yield the streams' own ports."""
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


_SWITCH_SECONDS = 0.0002
_RECOGNIZER_RATE = 16000
_VOICE_RATE = 24000
_WARM_UP_SECONDS = 1.0
_TONE_FRAME_COUNT = 50
_PIECE_FRAMES = 10
"""Frames of a piece of the voice, which is resampled as a whole, as one from a provider is."""


class CallAudio:
    """The audio of one call: received frames are measured, frames to send are cut from a tone.

    With `resample`, received frames are also brought to 16 kHz, and the tone is brought down from 24 kHz.
    """

    def __init__(self, *, resample: bool) -> None:
        self.frames = 0
        """Number of frames received."""
        self.level = 0
        """Root mean square of the last frame received."""
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
        return _tone_frames(8000)[next(self._numbers) % _TONE_FRAME_COUNT]

    def _resample(self) -> None:
        """Resample as calls do: received frames up to a recogniser's rate, a voice down from a provider's."""
        import audioop

        state: tuple[int, tuple[tuple[int, int], ...]] | None = None
        decimator = Decimator(_VOICE_RATE // SAMPLE_RATE)
        frames = _tone_frames(_VOICE_RATE)
        pieces = cycle(b"".join(frames[at : at + _PIECE_FRAMES]) for at in range(0, len(frames), _PIECE_FRAMES))
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


_tones: dict[int, list[bytes]] = {}


def _tone_frames(rate: int) -> list[bytes]:
    """Return a second of a tone with `rate` samples per second, as frames."""
    if rate not in _tones:
        samples = rate // 50
        wave = [int(6000 * math.sin(2 * math.pi * 300 * n / rate)) for n in range(rate)]
        _tones[rate] = [struct.pack(f"<{samples}h", *wave[at : at + samples]) for at in range(0, rate, samples)]
    return _tones[rate]


async def run(calls: int, seconds: float, codec_name: str, *, resample: bool) -> None:
    """Run the media of `calls` calls for `seconds`; exchange ports and print figures as the module describes."""
    pump = Pump()
    pump.start()
    sessions = [RtpSession(asyncio.get_running_loop(), RtpPorts("127.0.0.1", 10000, 40000), pump) for _ in range(calls)]
    print(json.dumps([session.local_port for session in sessions]), flush=True)
    peers: list[int] = json.loads(sys.stdin.readline())
    talks = [CallAudio(resample=resample) for _ in sessions]
    for session, peer, talk in zip(sessions, peers, talks, strict=True):
        codec = open_codec(codec_name)
        assert codec is not None
        session.connect(("127.0.0.1", peer), RtpParameters(codec))
        session.start(talk.hear, talk.speak)
    reduce_garbage_collection()
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
    # As in the server, the thread that sends must not wait for the interpreter lock as long as the default of 5 ms.
    sys.setswitchinterval(_SWITCH_SECONDS)
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
"""Linux's socket option for receive timestamps in nanoseconds, which the module `socket` does not name."""
_TIMESPEC = struct.Struct("@qq")
_CLOCK_RATE = 8000
_RECEIVE_BUFFER = 1 << 20
_SETTLE_SECONDS = 0.2
"""Time at the end for packets that are still on their way."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A packet that came back."""

    at: float
    """Wall clock of the kernel, in seconds."""
    sequence: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """The measurement of one stream that came back."""

    deviations: tuple[float, ...]
    """Milliseconds by which each packet but the first is off the grid."""
    lost: int

    @classmethod
    def of(cls, arrivals: Sequence[Arrival]) -> StreamFigures:
        """Measure packets in the order of their arrival; packets out of order and duplicates count as lost."""
        if not arrivals:
            return cls((), 0)
        first = last = arrivals[0]
        deviations: list[float] = []
        expected = 1
        for arrival in arrivals[1:]:
            # Sequence numbers wrap around (RFC 3550 section 5.1): one more than half the range ahead is an old one.
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
    """One phone's media: it sends on the pump's grid, and notes when packets arrive."""

    def __init__(self, host: str, port: int = 0) -> None:
        """`port` 0 takes any. Raises `OSError`."""
        self.remote: tuple[str, int] | None = None
        """Where to send; nothing is sent while it is None."""
        self.frames: Iterator[bytes | None] = repeat(None)
        """The frames to send, of 20 ms each; None is silence."""
        self.arrivals: list[Arrival] = []
        self.late = 0.0
        """Greatest lateness of our own packets, in seconds."""
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
    """All streams of one process. Set `remote` of each, then call `run`."""

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
        """Return how many packets came back, and how evenly; deviations are in milliseconds."""
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
    """Build the sender in C and yield its path, which holds as long as the block lasts; None without a compiler."""
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
    """Run one of the processes that the module describes, and return the exit status."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.run is _load and not options.remote and not options.reference:
        parser.error("nothing to do: give --remote or --reference")
    run_role: Callable[[argparse.Namespace], int] = options.run
    return run_role(options)


if __name__ == "__main__":
    raise SystemExit(main())
