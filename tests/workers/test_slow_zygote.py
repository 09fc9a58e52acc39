"""A zygote that is slow keeps its workers; a silent one is replaced; a worker that nobody can hold fails alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from callagent.errors import WorkerDied
from callagent.workers import zygote, zygote_process
from callagent.workers.private_folder import PrivateFolder
from callagent.workers.process_pool import ProcessPool
from callagent.workers.protocol import ProjectRuntime
from callagent.workers.zygote_process import OutputReader, ZygoteProcess
from tests.workers import runtimes
from tests.workers.support import Messages

TICK = 0.02


class Peer:
    """The zygote's end of the control socket, in the test's hands; behind it is a process that only sleeps."""

    def __init__(self, folder: Path) -> None:
        core, self.control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        output, self._output_end = os.pipe()
        self.process = subprocess.Popen(["sleep", "600"])
        folder.mkdir()
        private = PrivateFolder(str(folder), 1, 1)
        self.zygote = ZygoteProcess(self.process, core, OutputReader(output, 1024), private)

    def tell(self, message: list[object], descriptors: list[int] | None = None) -> None:
        socket.send_fds(self.control, [msgspec.msgpack.encode(message)], descriptors or [])

    def forked(self, number: int, descriptors: int = 3) -> None:
        """Tell of a worker that is the sleeping process, with so many of its three descriptors."""
        ends = socket.socketpair()
        opened = [ends[0].fileno(), os.pidfd_open(self.process.pid), os.open(os.devnull, os.O_RDONLY)]
        self.tell(["forked", number, self.process.pid], opened[:descriptors])
        for end in ends:
            end.close()
        for descriptor in opened[1:]:
            os.close(descriptor)

    def orders(self) -> list[object]:
        """What the core has asked for since the last time."""
        found: list[object] = []
        self.control.setblocking(False)
        try:
            while True:
                found.append(msgspec.msgpack.decode(self.control.recv(65536)))
        except BlockingIOError:
            return found
        finally:
            self.control.setblocking(True)

    def close(self) -> None:
        self.zygote.abandon()
        self.control.close()
        os.close(self._output_end)


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    made = Peer(tmp_path / "private")
    yield made
    made.close()


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[ProcessPool]:
    made = ProcessPool(ProjectRuntime(f"{runtimes.__name__}:Echo", tmp_path))
    yield made
    await made.close()


def release(process: zygote_process.WorkerProcess) -> None:
    process.socket.close()
    os.close(process.pidfd)
    os.close(process.output)


async def test_a_fork_behind_many_others_is_waited_for_while_the_zygote_goes_on(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "_SILENT_SECONDS", 0.2)
    forking = asyncio.create_task(peer.zygote.fork("folder"))
    for _ in range(50):
        await asyncio.sleep(TICK)
        peer.tell(["ended", 1000, 0])
    peer.forked(1)
    release(await forking)
    assert peer.zygote.alive


async def test_a_silent_zygote_is_killed(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_process, "_SILENT_SECONDS", 0.2)
    with pytest.raises(WorkerDied, match=r"the zygote did not fork within 0\.2 s"):
        await peer.zygote.fork("folder")
    assert not peer.zygote.alive
    assert peer.process.returncode == -signal.SIGKILL


async def test_a_stopped_zygote_is_replaced_for_the_next_call(
    pool: ProcessPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    await pool.start()
    assert pool._zygote is not None
    os.kill(pool._zygote._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as patch:
        patch.setattr(zygote_process, "_SILENT_SECONDS", 0.2)
        with pytest.raises(WorkerDied, match="did not fork"):
            await pool.lease({})
    lease = await pool.lease({})
    assert (await lease.run({"op": "echo", "value": 1}, timeout=30.0, on_message=Messages()))["value"] == 1


async def test_a_fork_that_comes_too_late_fails_alone_and_its_worker_is_killed(
    peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote_process, "_FORK_SECONDS", 0.1)
    with pytest.raises(WorkerDied, match=r"no worker within 0\.1 s: the machine has too much to do"):
        await peer.zygote.fork("folder")
    peer.orders()
    peer.forked(1)
    while not (orders := peer.orders()):
        await asyncio.sleep(TICK)
    assert orders == [["kill", 1]]
    assert peer.zygote.alive


@pytest.mark.parametrize("descriptors", [0, 1, 2])
async def test_a_worker_whose_descriptors_did_not_arrive_fails_alone(peer: Peer, descriptors: int) -> None:
    before = len(os.listdir("/proc/self/fd"))
    first, second = (asyncio.create_task(peer.zygote.fork("folder")) for _ in range(2))
    await asyncio.sleep(0)
    peer.forked(1, descriptors)
    with pytest.raises(WorkerDied, match="no file descriptor is free for a worker"):
        await first
    assert peer.orders()[-1] == ["kill", 1]
    assert len(os.listdir("/proc/self/fd")) == before
    peer.forked(2)
    release(await second)
    assert peer.zygote.alive


def test_a_kernel_that_lists_no_children_is_asked_for_all_processes() -> None:
    processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]
    try:
        processes[0].kill()
        os.waitid(os.P_PID, processes[0].pid, os.WEXITED | os.WNOWAIT)
        listed, found = set(zygote._children()), set(zygote._children_of(os.getpid()))
        assert {process.pid for process in processes} <= found
        assert listed == found
    finally:
        for process in processes:
            process.kill()
            process.wait()
