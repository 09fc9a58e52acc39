"""Scenarios that others wrote, as they are, against the server: SIPp's own, and those of a directory of your choice.

`CALLAGENT_SIPP_SCENARIOS=/some/where pytest tests/end_to_end/test_foreign_scenarios.py` runs each scenario below that
directory that calls (its first step sends); each has to succeed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.baresip import free_port, is_open
from tests.end_to_end.scripted import until
from tests.end_to_end.server_process import ServerProcess
from tests.end_to_end.test_sip_peers import Caller, desk_of, finished, serving
from tests.end_to_end.test_sip_scenarios import settings
from tests.end_to_end.test_sip_torture import running

pytestmark = [
    pytest.mark.end_to_end,
    pytest.mark.skipif(shutil.which("sipp") is None, reason="sipp is not installed"),
]
SECONDS = 60
CAPTURES = Path("/usr/share/sip-tester")
"""Where Debian keeps what SIPp's `uac_pcap` plays."""
DIRECTORY = os.environ.get("CALLAGENT_SIPP_SCENARIOS", "")
_FIRST_STEP = re.compile(r"<(send|recv|sendCmd|recvCmd)\b")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def callers(directory: str) -> list[Path]:
    """The scenarios that begin by sending: the others wait for a call."""
    found = []
    for path in sorted(Path(directory).rglob("*.xml")) if directory else []:
        text = _COMMENT.sub("", path.read_text(errors="replace"))
        first = _FIRST_STEP.search(text)
        if "<scenario" in text and first is not None and first[1] == "send":
            found.append(path)
    return found


def command(server: ServerProcess, *arguments: str) -> list[str]:
    return [
        "sipp", *arguments, "-i", "127.0.0.1", "-mi", "127.0.0.1", "-m", "1", "-nd", "-nostdin",
        "-timeout", str(SECONDS), "-timeout_error", server.sip,
    ]  # fmt: skip


def run(server: ServerProcess, folder: Path, *arguments: str) -> None:
    done = subprocess.run(
        command(server, "-s", "agent", *arguments),
        capture_output=True, text=True, errors="replace", timeout=SECONDS + 30, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]


def unharmed(server: ServerProcess) -> None:
    assert server.process.poll() is None
    assert "Traceback" not in server.errors.read_text()
    assert not [line for line in server.log() if line.get("level") in ("error", "critical")]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("server")) as (started, _):
        yield started


@pytest.mark.parametrize("name", ["uac", "regexp"])
def test_a_built_in_caller_succeeds(name: str, server: ServerProcess, tmp_path: Path) -> None:
    run(server, tmp_path, "-sn", name)
    unharmed(server)


@pytest.mark.skipif(not (CAPTURES / "g711a.pcap").exists(), reason="SIPp's captures are not installed")
@pytest.mark.skipif(os.geteuid() != 0, reason="SIPp plays captures as root only")
def test_a_built_in_caller_with_audio_and_a_digit_succeeds(server: ServerProcess, tmp_path: Path) -> None:
    (tmp_path / "pcap").symlink_to(CAPTURES)
    run(server, tmp_path, "-sn", "uac_pcap")
    unharmed(server)


@contextmanager
def started(arguments: list[str], folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=folder) as one:
        try:
            yield one
        finally:
            one.kill()


async def test_a_built_in_controller_joins_a_call_to_us_with_one_to_a_desk(
    server: ServerProcess, tmp_path: Path
) -> None:
    """Third-party call control: our call offers late, the desk gets that offer. Two calls to us are not joined: our own
    addresses are never media targets."""
    desk, desk_port = await desk_of(("-sn", "uas"), "u1")
    port = free_port(socket.SOCK_STREAM)
    twin = f"127.0.0.1:{port}"
    arguments = [*command(server, "-s", "desk", "-3pcc", twin)[:-1], f"127.0.0.1:{desk_port}"]
    with started([*arguments, "-sn", "3pcc-C-B"], tmp_path) as second:
        # The first connects once, when it begins.
        await until(lambda: is_open(socket.SOCK_STREAM, port), SECONDS)
        run(server, tmp_path, "-sn", "3pcc-C-A", "-3pcc", twin)
        _, errors = second.communicate(timeout=SECONDS)
        assert second.returncode == 0, errors[-2000:]
    await finished(desk)
    unharmed(server)


@pytest.mark.parametrize("way", ["u1", "t1"])
async def test_a_built_in_desk_is_called(way: str) -> None:
    async with serving(settings()) as served:
        process, port = await desk_of(("-sn", "uas"), way)
        target = f"sip:desk@127.0.0.1:{port};transport={'tcp' if way == 't1' else 'udp'}"
        async with asyncio.timeout(SECONDS):
            await Caller().call(served.endpoint, target, None, gives_up=False)
        await finished(process)


@pytest.mark.skipif(not DIRECTORY, reason="CALLAGENT_SIPP_SCENARIOS names no directory")
@pytest.mark.parametrize("path", callers(DIRECTORY), ids=str)
def test_a_scenario_of_the_directory_succeeds(path: Path, server: ServerProcess) -> None:
    run(server, path.parent, "-sf", str(path))
    unharmed(server)
