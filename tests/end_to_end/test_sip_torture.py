"""The torture messages of RFC 4475 and RFC 5118 against the running server; it has to answer a probe after each."""

from __future__ import annotations

import select
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.scripted import MILL, scripts
from tests.end_to_end.server_process import ServerProcess, serve
from tests.end_to_end.watched_server import longest_step
from tests.sip.anomalies import anomalies
from tests.sip.mutations import mutants
from tests.sip.test_connections import make_certificate
from tests.sip.test_torture import MANIFEST, message

pytestmark = pytest.mark.end_to_end

LONGEST_STEP = 0.05
"""Seconds of work that the event loop may do at a stretch, the first time included."""
MOST_GROWTH = 8
"""MiB, from a server that has seen nothing yet."""
HOSTILE = {
    "empty": b"",
    "blank": b"\r\n\r\n",
    "noise": bytes(range(256)) * 40,
    "endless header": b"INVITE sip:a@b SIP/2.0\r\nX: " + b"a" * 15_000,
    "many headers": b"INVITE sip:a@b SIP/2.0\r\n" + b"X: y\r\n" * 2000 + b"\r\n",
    "commas": b"OPTIONS sip:a@b SIP/2.0\r\nVia: " + b"," * 8000 + b"\r\n\r\n",
    "quotes": b'OPTIONS sip:a@b SIP/2.0\r\nFrom: "' + b'\\"' * 4000 + b"\r\n\r\n",
    "huge number": b"OPTIONS sip:a@b SIP/2.0\r\nCSeq: " + b"9" * 8000 + b" OPTIONS\r\n\r\n",
}


def probe(number: int, transport: str) -> bytes:
    return (
        f"OPTIONS sip:probe@127.0.0.1 SIP/2.0\r\n"
        f"Via: SIP/2.0/{transport} 127.0.0.1;branch=z9hG4bKprobe{number};rport\r\n"
        f"From: <sip:probe@127.0.0.1>;tag=1\r\nTo: <sip:probe@127.0.0.1>\r\nCall-ID: probe{number}\r\n"
        f"CSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    ).encode()


def is_answer(data: bytes, number: int, statuses: tuple[int, ...] = (200,)) -> bool:
    starts = tuple(b"SIP/2.0 %d " % status for status in statuses)
    return data.lstrip().startswith(starts) and b"Call-ID: probe%d\r\n" % number in data


class Prober:
    """Sends one message, then a probe, and waits for the probe's answer."""

    def __init__(
        self, server: ServerProcess, transport: str, port: int, first: int = 0, statuses: tuple[int, ...] = (200,)
    ) -> None:
        """`port` is that of the stream; UDP has the server's own. `statuses` are those of the probes' answers."""
        self._statuses = statuses
        self._transport = transport
        self._address = ("127.0.0.1", server.sip_port if transport == "UDP" else port)
        self._number = first
        self._other: socket.socket | None = None
        self.slowest = 0.0
        """Seconds until the probe was answered, whatever else the machine did."""

    def send(self, data: bytes) -> None:
        self._number += 1
        started = time.monotonic()
        if self._transport == "UDP":
            self._over_udp(data)
        else:
            self._over_stream(data)
        self.slowest = max(self.slowest, time.monotonic() - started)

    def close(self) -> None:
        if self._other is not None:
            self._other.close()

    def _over_udp(self, data: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(10)
            sender.sendto(data, self._address)
            sender.sendto(probe(self._number, "UDP"), self._address)
            while not is_answer(sender.recv(65536), self._number, self._statuses):
                pass

    def _over_stream(self, data: bytes) -> None:
        """The message may cost its connection, but never another one."""
        if self._other is None:
            self._other = self._connect()
        with self._connect() as broken:
            try:
                broken.sendall(data)
            except OSError:
                # A long one is cut off while it is still being written.
                pass
            select.select([broken], [], [], 0.02)
            self._other.sendall(probe(self._number, self._transport))
            heard = b""
            while not is_answer(heard, self._number, self._statuses):
                more = self._other.recv(65536)
                assert more, "the probe's connection was closed"
                heard += more

    def _connect(self) -> socket.socket:
        stream = socket.create_connection(self._address, 10)
        return _anyone().wrap_socket(stream) if self._transport == "TLS" else stream


def _anyone() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def resident(pid: int) -> int:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmRSS")


@contextmanager
def running(
    folder: Path, stream: str = "TCP", program: Sequence[str] = ("callagent",), **more: str
) -> Iterator[tuple[ServerProcess, int]]:
    """A server on UDP and one kind of stream, and the stream's port."""
    settings = more | scripts(folder, ["yes"] * 5, [{"text": "Well."}] * 5) | {f"SIP__LISTEN_{stream}": "127.0.0.1:0"}
    if stream == "TLS":
        certificate, key = make_certificate(folder, "server")
        settings |= {"SIP__CERTIFICATE": str(certificate), "SIP__KEY": str(key)}
    with serve(folder, project=MILL, program=program, **settings) as server:
        assert server.process.stdout
        words = server.process.stdout.readline().split()
        assert words[:3] == ["ready", "sip", stream.lower()]
        yield server, int(words[-1].rpartition(":")[2])


@pytest.mark.acceptance("signalling")
@pytest.mark.parametrize("transport", ["UDP", "TCP"])
def test_the_server_answers_a_probe_after_each(transport: str, tmp_path: Path) -> None:
    with running(tmp_path) as (server, tcp_port), ExitStack() as stack:
        prober = Prober(server, transport, tcp_port)
        stack.callback(prober.close)
        messages = [message(name) for name in sorted(MANIFEST)] + list(HOSTILE.values())
        for data in messages:
            prober.send(data)
        before = resident(server.process.pid)
        for _ in range(3):
            for data in messages:
                prober.send(data)
        assert resident(server.process.pid) - before <= 8
        assert server.process.poll() is None
        assert prober.slowest < 2
    assert "Traceback" not in server.errors.read_text()
    assert not [line for line in server.log() if line.get("level") in ("error", "critical")]


def as_sent(data: bytes, transport: str) -> bytes:
    return data.replace(b"SIP/2.0/UDP", b"SIP/2.0/" + transport.encode())


@pytest.mark.acceptance("signalling")
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS"])
def test_thousands_of_damaged_messages_are_survived(transport: str, tmp_path: Path) -> None:
    """From a cold start: nothing is sent before the growth is measured."""
    torture = [message(name) for name in sorted(MANIFEST)]
    stream = "TCP" if transport == "UDP" else transport
    # What they cost is to be seen, not what hundreds of calls do: a server that is full says 503 to probes too.
    with running(tmp_path, stream, LIMITS__CALLS="10") as (server, port), ExitStack() as stack:
        prober = Prober(server, transport, port, statuses=(200, 503))
        stack.callback(prober.close)
        before = resident(server.process.pid)
        for data in (*mutants(4500, torture, seed=2), *anomalies()):
            prober.send(as_sent(data, transport))
        grown = resident(server.process.pid) - before
        print(f"{transport}: slowest with its probe {prober.slowest:.3f} s, {grown:+d} MiB")  # noqa: T201
        assert grown <= MOST_GROWTH
        assert server.process.poll() is None
        assert prober.slowest < 2
    assert "Traceback" not in server.errors.read_text()
    assert not [line for line in server.log() if line.get("level") in ("error", "critical")]


@pytest.mark.acceptance("signalling")
@pytest.mark.parametrize("transport", ["UDP", "TCP", "TLS"])
def test_no_damaged_message_holds_the_event_loop_up(transport: str, tmp_path: Path) -> None:
    """Nor does the first call, the first encrypted one, the first host name: no message is tried twice."""
    torture = [message(name) for name in sorted(MANIFEST)]
    steps, stream = tmp_path / "steps", "TCP" if transport == "UDP" else transport
    watched = ("tests.end_to_end.watched_server", str(steps))
    with running(tmp_path, stream, watched, LIMITS__CALLS="10") as (server, port), ExitStack() as stack:
        ready = time.monotonic()
        prober = Prober(server, transport, port, statuses=(200, 503))
        stack.callback(prober.close)
        for data in (*mutants(4500, torture, seed=3), *anomalies()):
            prober.send(as_sent(data, transport))
        seconds, what = longest_step(steps, since=ready)
        print(f"{transport}: longest step {seconds * 1000:.0f} ms of {what}")  # noqa: T201
        assert seconds <= LONGEST_STEP, what
    assert "Traceback" not in server.errors.read_text()


@pytest.mark.acceptance("signalling")
def test_a_thousand_idle_connections_disturb_nobody(tmp_path: Path) -> None:
    with running(tmp_path) as (server, tcp_port), ExitStack() as stack:
        before = resident(server.process.pid)
        for number in range(1000):
            idle = stack.enter_context(socket.create_connection(("127.0.0.1", tcp_port), 10))
            if number % 2:
                # Half a message, which never becomes a whole one.
                idle.sendall(b"OPTIONS sip:a@b SIP/2.0\r\nVia: SIP/2.0/TCP")
        for transport in ("UDP", "TCP"):
            # A branch that was there before would be the same request again.
            prober = Prober(server, transport, tcp_port, first=1000 if transport == "TCP" else 0)
            stack.callback(prober.close)
            for _ in range(50):
                prober.send(b"OPTIONS")
            assert prober.slowest < 2
        assert resident(server.process.pid) - before <= 32
        # Without a whole message in time they are closed, and their descriptors are free again.
        deadline = time.monotonic() + 90
        while len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) > 200:
            assert time.monotonic() < deadline
            time.sleep(1)
    assert "Traceback" not in server.errors.read_text()
