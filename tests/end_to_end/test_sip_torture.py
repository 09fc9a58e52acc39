"""The torture messages of RFC 4475 and RFC 5118 against the running server; it has to answer a probe after each."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.scripted import MILL, scripts
from tests.end_to_end.server_process import ServerProcess, serve
from tests.sip.mutations import mutants
from tests.sip.test_torture import MANIFEST, message

pytestmark = pytest.mark.end_to_end

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


def is_answer(data: bytes, number: int) -> bool:
    return data.lstrip().startswith(b"SIP/2.0 200 ") and b"Call-ID: probe%d\r\n" % number in data


class Prober:
    """Sends one message, then a probe, and waits for the probe's answer."""

    def __init__(self, server: ServerProcess, transport: str, tcp_port: int, first: int = 0) -> None:
        self._transport = transport
        self._address = ("127.0.0.1", tcp_port if transport == "TCP" else server.sip_port)
        self._number = first
        self.slowest = 0.0

    def send(self, data: bytes) -> None:
        self._number += 1
        started = time.monotonic()
        if self._transport == "UDP":
            self._over_udp(data)
        else:
            self._over_tcp(data)
        self.slowest = max(self.slowest, time.monotonic() - started)

    def _over_udp(self, data: bytes) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            sender.settimeout(10)
            sender.sendto(data, self._address)
            sender.sendto(probe(self._number, "UDP"), self._address)
            while not is_answer(sender.recv(65536), self._number):
                pass

    def _over_tcp(self, data: bytes) -> None:
        """The message may cost its connection, but never another one."""
        with (
            socket.create_connection(self._address, 10) as broken,
            socket.create_connection(self._address, 10) as other,
        ):
            broken.sendall(data)
            select.select([broken], [], [], 0.02)
            other.settimeout(10)
            other.sendall(probe(self._number, "TCP"))
            heard = b""
            while not is_answer(heard, self._number):
                more = other.recv(65536)
                assert more, "the probe's connection was closed"
                heard += more


def resident(pid: int) -> int:
    """MiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) // 1024
    raise AssertionError("no VmRSS")


@contextmanager
def running(folder: Path) -> Iterator[tuple[ServerProcess, int]]:
    settings = scripts(folder, ["yes"] * 5, [{"text": "Well."}] * 5)
    with serve(folder, project=MILL, SIP__LISTEN_TCP="127.0.0.1:0", **settings) as server:
        assert server.process.stdout
        words = server.process.stdout.readline().split()
        assert words[:3] == ["ready", "sip", "tcp"]
        yield server, int(words[-1].rpartition(":")[2])


@pytest.mark.parametrize("transport", ["UDP", "TCP"])
def test_the_server_answers_a_probe_after_each(transport: str, tmp_path: Path) -> None:
    with running(tmp_path) as (server, tcp_port):
        prober = Prober(server, transport, tcp_port)
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


@pytest.mark.acceptance
@pytest.mark.parametrize("transport", ["UDP", "TCP"])
def test_thousands_of_damaged_messages_are_survived(transport: str, tmp_path: Path) -> None:
    torture = [message(name) for name in sorted(MANIFEST)]
    with running(tmp_path) as (server, tcp_port):
        prober = Prober(server, transport, tcp_port)
        for data in mutants(4500, torture, seed=1):
            prober.send(data.replace(b"SIP/2.0/UDP", b"SIP/2.0/" + transport.encode()))
        # Then the calls that some of them began have ended, and their workers with them: no ACK, no answer to BYE.
        time.sleep(70)
        before = resident(server.process.pid)
        for data in mutants(4500, torture, seed=2):
            prober.send(data.replace(b"SIP/2.0/UDP", b"SIP/2.0/" + transport.encode()))
        time.sleep(70)
        grown = resident(server.process.pid) - before
        print(f"{transport}: 9000 messages, slowest with its probe {prober.slowest:.3f} s, memory {grown:+d} MiB")  # noqa: T201
        assert grown <= 8
        assert server.process.poll() is None
        assert prober.slowest < 2
    assert "Traceback" not in server.errors.read_text()
    assert not [line for line in server.log() if line.get("level") in ("error", "critical")]


@pytest.mark.acceptance
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
