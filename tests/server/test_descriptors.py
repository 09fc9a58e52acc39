"""The limit of file descriptors: raised at start, and what becomes of callers when none is free."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from callagent.server.admission import CALL_DESCRIPTORS, FREE_DESCRIPTORS, SERVER_DESCRIPTORS
from tests.end_to_end.baresip import free_port
from tests.end_to_end.scripted import MILL, scripts, talker, until
from tests.end_to_end.server_process import serve
from tests.sip.test_connections import make_certificate

RAISE = """
import resource, sys
from callagent.server.admission import raise_descriptor_limit
soft, hard, calls = map(int, sys.argv[1:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
print(raise_descriptor_limit(calls), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""
FEW = SERVER_DESCRIPTORS + FREE_DESCRIPTORS + 10 * CALL_DESCRIPTORS


@pytest.mark.parametrize(
    ("soft", "hard", "calls", "fit", "raised"),
    [(FEW, FEW, 10, 10, FEW), (64, FEW, 10, 10, FEW), (64, FEW, 200, 10, FEW), (64, 80, 200, 1, 80)],
)
def test_the_limit_is_raised_to_what_the_calls_need(soft: int, hard: int, calls: int, fit: int, raised: int) -> None:
    command = [sys.executable, "-c", RAISE, str(soft), str(hard), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert [int(each) for each in done.stdout.split()] == [fit, raised]


@pytest.mark.end_to_end
async def test_callers_are_sent_elsewhere_while_no_descriptor_is_free(tmp_path: Path) -> None:
    with serve(tmp_path, project=MILL, **scripts(tmp_path, [], [])) as server:
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 2, hard))
        with pytest.raises(Exception, match="503"):
            async with talker(server.sip):
                pass
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        async with talker(server.sip) as caller:
            await caller.listen(1)
        await asyncio.to_thread(server.wait_for_records, 1)
        assert "no_free_file_descriptors" in server.errors.read_text()


OPTIONS = """\
OPTIONS sip:agent@127.0.0.1 SIP/2.0
Via: SIP/2.0/UDP {host}:{port};branch=z9hG4bK{number}
Max-Forwards: 70
From: <sip:probe@{host}>;tag={number}
To: <sip:agent@127.0.0.1>
Call-ID: {number}@{host}
CSeq: 1 OPTIONS
Content-Length: 0

"""


@pytest.mark.end_to_end
async def test_strangers_to_a_wildcard_socket_are_answered_while_no_descriptor_is_free(tmp_path: Path) -> None:
    def probe(socket_: socket.socket, number: int) -> str:
        host, port = socket_.getsockname()
        text = OPTIONS.format(host=host, port=port, number=number)
        socket_.sendto(text.replace("\n", "\r\n").encode(), ("127.0.0.1", server.sip_port))
        return socket_.recv(65535).decode().partition("\r\n")[0]

    arguments = ("--sip", "0.0.0.0:0", "--http", "127.0.0.1:0")
    with serve(tmp_path, *arguments, project=MILL, **scripts(tmp_path, [], [])) as server, ExitStack() as stack:
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), hard))
        stack.enter_context(socket.create_connection(("127.0.0.1", server.http_port)))
        # Our address is looked up for each of them anew.
        for number in range(2, 12):
            peer = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            peer.bind((f"127.0.0.{number}", 0))
            peer.settimeout(60)
            assert "503" in await asyncio.to_thread(probe, peer, number)
        await until(lambda: "http_not_accepted" in server.errors.read_text(), 60)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        assert "200" in await asyncio.to_thread(probe, peer, 99)
        events = Counter(line["event"] for line in server.log())
        assert events["no_free_file_descriptors"] < 10
        assert events["http_not_accepted"] == 1
        assert "Traceback" not in server.errors.read_text()


def processor_seconds(pid: int) -> float:
    """Of all its threads so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.end_to_end
def test_connections_wait_while_no_descriptor_is_free_and_are_served_afterwards(tmp_path: Path) -> None:
    ports = dict(zip(("tcp", "tls", "http"), (free_port(socket.SOCK_STREAM) for _ in range(3)), strict=True))
    certificate, key = make_certificate(tmp_path, "server")
    settings = {f"SIP__LISTEN_{kind.upper()}": f"127.0.0.1:{ports[kind]}" for kind in ("tcp", "tls")}
    settings |= {"SIP__CERTIFICATE": str(certificate), "SIP__KEY": str(key), **scripts(tmp_path, [], [])}
    with ExitStack() as stack:
        server = stack.enter_context(serve(tmp_path, "--http", f"127.0.0.1:{ports['http']}", project=MILL, **settings))
        pid = server.process.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")), hard))
        # The kernel takes them; the server cannot yet.
        peers = {kind: stack.enter_context(socket.create_connection(("127.0.0.1", ports[kind]), 60)) for kind in ports}
        request = OPTIONS.format(host="127.0.0.1", port=5060, number=1).replace("\n", "\r\n")
        peers["tcp"].sendall(request.replace("/UDP", "/TCP").encode())
        peers["http"].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        before = processor_seconds(pid)
        time.sleep(2)
        assert processor_seconds(pid) - before < 0.5, "it spins"
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))
        context = ssl.create_default_context(cafile=certificate)
        context.check_hostname = False
        peers["tls"] = stack.enter_context(context.wrap_socket(peers["tls"]))
        peers["tls"].sendall(request.replace("/UDP", "/TLS").encode())
        for kind, status in (("tcp", b"SIP/2.0 200 OK"), ("tls", b"SIP/2.0 200 OK"), ("http", b"HTTP/1.1 200 OK")):
            assert peers[kind].recv(65535).startswith(status), kind
        events = Counter(line["event"] for line in server.log())
    assert (events["sip_not_accepted"], events["http_not_accepted"]) == (2, 1)
