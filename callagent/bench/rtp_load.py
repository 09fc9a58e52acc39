"""Load on the media of a server: paced G.711 streams to it, and how evenly its own come back.

    python -m callagent.bench.rtp_load --remote 127.0.0.1:10000 --remote 127.0.0.1:10002 --local-port 40000 --seconds 10
    python -m callagent.bench.rtp_load --reference 100 --seconds 10

A packet's deviation is its kernel receive timestamp against the 20 ms grid that its stream's first packet fixes: this
process may be late itself without spoiling the figures. `--reference` measures a sender in C on the same machine: a
server's p99 means little without it.
"""

from __future__ import annotations

import argparse
import json
import select
import shutil
import socket
import struct
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

from callagent.bench.measurement import percentiles
from callagent.rtp import PCMU, Pump, RtpPacket, RtpSender, is_rtcp

SO_TIMESTAMPNS = 35
_TIMESPEC = struct.Struct("@qq")
_CLOCK_RATE = 8000
_RECEIVE_BUFFER = 1 << 20
_SETTLE_SECONDS = 0.2
"""For what is still on its way at the end."""


@dataclass(frozen=True, slots=True)
class Arrival:
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
        """From packets in the order of their arrival; ones out of order and duplicates count as lost."""
        if not arrivals:
            return cls((), 0)
        first = last = arrivals[0]
        deviations: list[float] = []
        expected = 1
        for arrival in arrivals[1:]:
            step = (arrival.sequence - last.sequence) & 0xFFFF
            if not 0 < step < 0x8000:
                continue
            expected += step
            due = first.at + ((arrival.timestamp - first.timestamp) & 0xFFFFFFFF) / _CLOCK_RATE
            deviations.append(abs(arrival.at - due) * 1000)
            last = arrival
        return cls(tuple(deviations), expected - 1 - len(deviations))


class LoadStream:
    """One phone's media: sends on the pump's grid, keeps when packets came."""

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
    """Streams of one process. Give each its `remote`, then `run`."""

    def __init__(self, host: str, count: int, first_port: int = 0) -> None:
        """With `first_port` the streams use it and every second port above. Raises `OSError`."""
        self.streams = [LoadStream(host, first_port + 2 * index if first_port else 0) for index in range(count)]
        self._stopped = threading.Event()

    def run(self, seconds: float) -> None:
        """Send and receive for so long, on this thread and the pump's."""
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

    def figures(self) -> dict[str, Any]:
        """What came back, ready for JSON; deviations are in milliseconds."""
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
    """The sender in C, built for as long as the block lasts; None without a compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        yield None
        return
    source = Path(__file__).with_name("paced_sender.c")
    with tempfile.TemporaryDirectory() as directory:
        built = Path(directory) / "paced_sender"
        subprocess.run([compiler, "-O2", "-o", str(built), str(source)], check=True, timeout=60)
        yield built


def reference_figures(count: int, seconds: int, host: str = "127.0.0.1") -> dict[str, Any] | None:
    """How evenly `count` streams of the sender in C arrive here; None without a compiler."""
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m callagent.bench.rtp_load", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--remote", action="append", type=_remote, default=[], help="HOST:PORT of a stream; repeatable")
    parser.add_argument("--local-host", default="127.0.0.1")
    parser.add_argument("--local-port", type=int, default=0, help="of the first stream, the next ones 2 above; 0: any")
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--reference", type=int, default=0, metavar="N", help="measure N streams of a sender in C too")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    parser = _parser()
    options = parser.parse_args(arguments)
    if not options.remote and not options.reference:
        parser.error("nothing to do: give --remote or --reference")
    result: dict[str, Any] = {}
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


if __name__ == "__main__":
    raise SystemExit(main())
