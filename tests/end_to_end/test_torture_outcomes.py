"""What the running server does with each torture message: one of the outcomes that the RFC's text allows."""

from __future__ import annotations

import json
import random
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.server_process import ServerProcess
from tests.end_to_end.test_sip_torture import is_answer, probe, running
from tests.sip.test_torture import CORPUS, MANIFEST, message

pytestmark = pytest.mark.end_to_end

OUTCOMES = json.loads((CORPUS / "outcomes.json").read_text())
PORTS = (5050, 5060, 5061, 6050, 19823)
"""Of the topmost Via fields: a UDP response goes there (RFC 3261 §18.2.2)."""
NETWORK = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
"""Of loopback, where nobody else has those ports."""
LONGEST = 60.0
"""Seconds until a response is given up, on a machine with other work to do."""


class Heard:
    """What came back, cut at the blank lines that end our responses."""

    def __init__(self) -> None:
        self.data = b""
        self.closed = False

    def statuses(self) -> list[int]:
        lines = self.data.split(b"\r\n")
        return [int(line[8:11]) for line in lines if line.startswith(b"SIP/2.0 ") and line[8:11].isdigit()]

    def outcomes(self) -> list[int | str]:
        final = [status for status in self.statuses() if status >= 200]
        return [*final, *(["closed"] if self.closed else []), *([] if final or self.closed else ["nothing"])]


def answered(address: tuple[str, int], number: int) -> bool:
    """Whether a probe is answered: what was sent before it has been read by then."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as prober:
        prober.settimeout(LONGEST)
        prober.sendto(probe(number, "UDP"), address)
        try:
            while not is_answer(prober.recv(65536), number):
                pass
        except TimeoutError:
            return False
    return True


@contextmanager
def ears(host: str) -> Iterator[list[socket.socket]]:
    """Sockets of a host of its own, the first to send from."""
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in (0, *PORTS)]
        for ear, port in zip(opened, (0, *PORTS), strict=True):
            ear.bind((host, port))
        yield opened


def collect(sockets: list[socket.socket], heard: Heard, wanted: list[int | str]) -> None:
    """Until one of the wanted outcomes is there; where nothing is wanted, for as long as a quick answer would take."""
    deadline = time.monotonic() + (0.2 if wanted in (["nothing"], ["any"]) else LONGEST)
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each, selectors.EVENT_READ)
        while not heard.closed and time.monotonic() < deadline:
            for key, _ in selector.select(0.05):
                data = key.fileobj.recv(65536)  # type: ignore[union-attr]
                heard.data += data + b"\r\n"
                heard.closed = not data and key.fileobj.type is socket.SOCK_STREAM  # type: ignore[union-attr]
            if any(status >= 200 for status in heard.statuses()) and "closed" not in wanted:
                return


def source_of(name: str, sources: dict[bytes, str]) -> str:
    """A host for each transaction: where two messages are one request, its response goes where the first came from."""
    lines = message(name).split(b"\r\n")
    via = next((line for line in lines if line.lower().startswith(b"via")), b"")
    return sources.setdefault(lines[0].split(b" ")[0] + via, f"{NETWORK}.{len(sources) + 1}")


def over_udp(server: ServerProcess, source: str, number: int, name: str, wanted: list[int | str]) -> Heard:
    heard = Heard()
    address = ("127.0.0.1", server.sip_port)
    with ears(source) as sockets:
        sockets[0].sendto(message(name), address)
        assert answered(address, number), name
        collect(sockets, heard, wanted)
    return heard


def over_tcp(server: ServerProcess, tcp_port: int, number: int, name: str, wanted: list[int | str]) -> Heard:
    heard = Heard()
    with socket.create_connection(("127.0.0.1", tcp_port), LONGEST) as stream:
        stream.sendall(message(name))
        collect([stream], heard, wanted)
        assert answered(("127.0.0.1", server.sip_port), number), name
    return heard


def test_there_is_an_outcome_for_each_message() -> None:
    assert sorted(OUTCOMES) == sorted(MANIFEST)
    assert len(OUTCOMES) == 62


@pytest.mark.parametrize("transport", ["udp", "tcp"])
def test_each_message_has_an_allowed_outcome(transport: str, tmp_path: Path) -> None:
    wrong: dict[str, object] = {}
    statuses, sources = 0, dict[bytes, str]()
    with running(tmp_path) as (server, tcp_port):
        for number, name in enumerate(sorted(MANIFEST), 1):
            wanted = OUTCOMES[name].get(transport, OUTCOMES[name]["udp"])
            if transport == "udp":
                heard = over_udp(server, source_of(name, sources), number, name, wanted)
            else:
                heard = over_tcp(server, tcp_port, number, name, wanted)
            outcomes = heard.outcomes()
            statuses += bool(heard.statuses())
            if "any" not in wanted and not set(wanted).intersection(outcomes):
                wrong[name] = (outcomes, wanted)
        assert server.process.poll() is None
    assert not wrong
    # Silence would be an allowed outcome of a few only.
    assert statuses >= 54
    assert "Traceback" not in server.errors.read_text()
