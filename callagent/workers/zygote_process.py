"""The core's side of a zygote and its workers: start it, have workers forked and killed, read what they print."""

from __future__ import annotations

import asyncio
import dataclasses
import fcntl
import functools
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

import callagent
from callagent.errors import WorkerDied
from callagent.log import get_logger
from callagent.workers.confinement import confinement_gaps
from callagent.workers.kernel_limits import landlock_version
from callagent.workers.private_folder import PrivateFolder
from callagent.workers.protocol import ProjectRuntime, WorkerSettings
from callagent.workers.zygote import PROCESS_PROGRAM, ProcessArguments

log = get_logger(__name__)

_CONTROL_BYTES = 64 * 1024
_DESCRIPTORS = 3
"""Number of descriptors that come with the message `forked`: a worker's socket, its pidfd and its output."""
_SILENT_SECONDS = 5.0
"""A zygote that has been asked for a worker and sends nothing for this long is stuck: it is killed and replaced."""
_FORK_SECONDS = 15.0
"""How long a call waits for its worker while the zygote forks those of other calls; then this call alone fails."""
_END_SECONDS = 3.0
"""Time for a zygote to end its workers and itself; longer than the zygote's own limit for it."""
_SOCKET_BUFFER = 1024 * 1024
_READ_BYTES = 64 * 1024
_MAX_LINE_BYTES = 4096
_DISCARD_BYTES = 1024 * 1024
"""Size of the pipe, and of each read, when a process prints more than its limit."""
_DISCARD_SECONDS = 0.01
"""Time between two such reads."""
_INHERITED_VARIABLES = ("PATH", "HOME", "LANG", "TZ")
_NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}
# Numeric libraries start no threads when they are imported: a zygote with threads cannot be forked.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class OutputReader:
    """Standard output and error of a process as lines. Over the limit, one line says so and the rest is discarded."""

    def __init__(self, descriptor: int, limit: int) -> None:
        self._descriptor = descriptor
        self._bytes_left = limit
        self._limit = limit
        self._partial = b""
        self._lines: list[str] = []
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._open = True
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._read)

    @property
    def bytes_left(self) -> int:
        """Bytes until the limit, which are the limit for the reader of a replacement."""
        return self._bytes_left

    def take_lines(self) -> list[str]:
        """Return the lines written since the last call, the last one even if it is not complete."""
        if self._open and self._bytes_left > 0:
            self._read()
        if self._partial:
            self._add_line(self._partial)
            self._partial = b""
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        if self._open:
            self._stop()
            os.close(self._descriptor)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._stop_reading()
            return
        *lines, self._partial = (self._partial + data[: self._bytes_left]).split(b"\n")
        self._bytes_left -= len(data)
        for line in lines:
            self._add_line(line)
        if len(self._partial) > _MAX_LINE_BYTES or self._bytes_left <= 0:
            self._add_line(self._partial)
            self._partial = b""
        if self._bytes_left <= 0:
            if self._limit > 0:
                self._lines.append(f"output is over {self._limit} bytes; the rest is dropped")
            # A writer must neither block for ever on a full pipe nor keep the loop busy: the pipe is enlarged, and
            # emptied by a timer instead of whenever it has data.
            self._stop_reading()
            self._enlarge_pipe()
            self._discard()

    def _add_line(self, line: bytes) -> None:
        if line:
            self._lines.append(line[:_MAX_LINE_BYTES].decode("utf-8", "replace"))

    def _discard(self) -> None:
        try:
            if not os.read(self._descriptor, _DISCARD_BYTES):
                return
        except BlockingIOError:
            pass
        self._timer = self._loop.call_later(_DISCARD_SECONDS, self._discard)

    def _enlarge_pipe(self) -> None:
        try:
            fcntl.fcntl(self._descriptor, fcntl.F_SETPIPE_SZ, _DISCARD_BYTES)
        except OSError:
            # The user's limit for pipes is reached: with a smaller pipe the writer is only slower.
            pass

    def _stop(self) -> None:
        self._open = False
        self._stop_reading()
        if self._timer is not None:
            self._timer.cancel()

    def _stop_reading(self) -> None:
        self._loop.remove_reader(self._descriptor)


@dataclass(slots=True)
class WorkerProcess:
    """A worker as the core sees it. `pidfd`, unlike `pid`, never refers to another process later."""

    number: int
    pid: int
    socket: socket.socket
    pidfd: int
    output: int
    zygote: ZygoteProcess
    ended: asyncio.Future[int]
    """The exit status, negative for a signal, once its whole process group is dead."""

    def kill(self) -> None:
        """Kill the process at once, and what it has started (its process group) through the zygote."""
        try:
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.zygote.kill(self.number)


class ZygoteProcess:
    """A zygote, running until `alive` is False; then the pool starts another one in its place."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, output: OutputReader, folder: PrivateFolder
    ) -> None:
        self._process = process
        self._folder = folder
        self._control = control
        self._output = output
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[bool] = self._loop.create_future()
        self._forks: dict[int, asyncio.Future[WorkerProcess]] = {}
        self._ends: dict[int, asyncio.Future[int]] = {}
        self._orders: deque[bytes] = deque()
        self._last_number = 0
        self._gone = asyncio.Event()
        self._heard_at = self._loop.time()
        self.alive = True
        self.leases = 0
        """Calls that hold a worker of this zygote, counted by the pool."""
        control.setblocking(False)
        self._loop.add_reader(control, self._on_readable)

    @classmethod
    async def start(cls, runtime: ProjectRuntime, settings: WorkerSettings, folder: PrivateFolder) -> ZygoteProcess:
        """Start an interpreter and import the project; its import may write to `folder`, calls to folders beside it.

        Raises `WorkerDied` when the project cannot be imported.
        """
        zygote = _spawn(runtime, settings, folder)
        with ExitStack() as undo:
            undo.callback(zygote.abandon)
            try:
                async with asyncio.timeout(settings.import_timeout):
                    threaded = await zygote._ready
            except TimeoutError:
                raise WorkerDied(f"importing {runtime.project} took more than {settings.import_timeout:g} s") from None
            undo.pop_all()
        zygote.log_output()
        _log_confinement_gaps()
        if threaded:
            log.warning("project_started_threads", project=str(runtime.project),
                        effect="each call starts an interpreter of its own, which is slower")  # fmt: skip
        return zygote

    async def fork(self, private: str) -> WorkerProcess:
        """Return a new worker, which waits for the frame `open` and can write to the folder `private` only.

        Raises `WorkerDied` when the zygote has ended, does not answer, or forks too many others first.
        """
        if not self.alive:
            raise WorkerDied("the zygote has ended")
        self._last_number += 1
        number = self._last_number
        forked = self._forks[number] = self._loop.create_future()
        self._ends[number] = self._loop.create_future()
        self._send(["fork", number, private])
        try:
            return await self._wait_forked(forked)
        finally:
            self._forks.pop(number, None)

    async def _wait_forked(self, forked: asyncio.Future[WorkerProcess]) -> WorkerProcess:
        """Wait for a worker. A slow zygote is left alone, because the workers of all calls end with it; a silent one is
        killed."""
        began = self._loop.time()
        while not forked.done():
            now = self._loop.time()
            if now >= began + _FORK_SECONDS:
                raise WorkerDied(f"no worker within {_FORK_SECONDS:g} s: the machine has too much to do")
            silent_at = max(began, self._heard_at) + _SILENT_SECONDS
            if now >= silent_at:
                forked.cancel()
                self.abandon()
                raise WorkerDied(f"the zygote did not fork within {_SILENT_SECONDS:g} s")
            await asyncio.wait([forked], timeout=min(silent_at, began + _FORK_SECONDS) - now)
            # If our own loop was blocked, what the zygote sent meanwhile is read before it is judged silent: the first
            # pass of the loop calls the control socket's reader, the second resumes the tasks that await its futures.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        return forked.result()

    def kill(self, number: int) -> None:
        if self.alive:
            self._send(["kill", number])

    async def stop(self) -> None:
        """End the zygote and all that it has forked; return when it is reaped."""
        if self.alive:
            self._send(["quit"])
            try:
                async with asyncio.timeout(_END_SECONDS):
                    await self._gone.wait()
            except TimeoutError:
                pass
        self.abandon()
        await self._folder.remove()

    def abandon(self) -> None:
        """Kill and reap the zygote now. Its workers die with it. Idempotent."""
        if not self.alive:
            return
        self.alive = False
        self._gone.set()
        self._process.kill()
        self._process.wait()
        self._loop.remove_reader(self._control)
        self._loop.remove_writer(self._control)
        self._control.close()
        self.log_output()
        self._output.close()
        gone = WorkerDied("the zygote has ended")
        if not self._ready.done():
            self._ready.set_exception(WorkerDied(f"importing the project ended its process: {self._status()}"))
        for forked in self._forks.values():
            if not forked.done():
                forked.set_exception(gone)
        for ended in self._ends.values():
            if not ended.done():
                ended.set_result(-signal.SIGKILL)
        self._ends.clear()

    def log_output(self) -> None:
        for line in self._output.take_lines():
            log.info("project_output", text=line)

    def _status(self) -> str:
        return describe_status(self._process.returncode)

    def _send(self, order: list[object]) -> None:
        # The queue is bounded by two orders for each worker: its fork and its end.
        self._orders.append(msgspec.msgpack.encode(order))
        self._flush()

    def _flush(self) -> None:
        self._loop.remove_writer(self._control)
        while self._orders:
            try:
                self._control.send(self._orders[0])
            except BlockingIOError:
                self._loop.add_writer(self._control, self._flush)
                return
            except OSError:
                self.abandon()
                return
            self._orders.popleft()

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = _receive(self._control)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        self._heard_at = self._loop.time()
        match msgspec.msgpack.decode(data) if data else None:
            case ["ready", bool(threaded)] if not self._ready.done():
                self._ready.set_result(threaded)
            case ["failed", str(text)] if not self._ready.done():
                self._ready.set_exception(WorkerDied(f"the project cannot be imported: {text}"))
            case ["forked", int(number), int(pid)]:
                self._on_forked(number, pid, descriptors)
            case ["ended", int(number), int(status)]:
                ended = self._ends.pop(number, None)
                if ended is not None and not ended.done():
                    ended.set_result(status)
            case None:
                # A process that exits closes its socket a moment before its status can be read; the status is in the
                # message of the error.
                self._wait_briefly()
                self.abandon()
            case _:
                pass

    def _wait_briefly(self) -> None:
        try:
            self._process.wait(0.01)
        except subprocess.TimeoutExpired:
            pass

    def _on_forked(self, number: int, pid: int, descriptors: list[int]) -> None:
        forked = self._forks.get(number)
        if forked is None or forked.done() or len(descriptors) != _DESCRIPTORS:
            for descriptor in descriptors:
                os.close(descriptor)
            self._send(["kill", number])
            if forked is not None and not forked.done():
                # The kernel drops descriptors for which this process has no room. One call fails; the zygote goes on.
                forked.set_exception(WorkerDied("no file descriptor is free for a worker"))
            return
        core = socket.socket(fileno=descriptors[0])
        core.setblocking(False)
        core.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER)
        ended = self._ends.get(number) or self._loop.create_future()
        forked.set_result(WorkerProcess(number, pid, core, descriptors[1], descriptors[2], self, ended))


def describe_status(status: int | None) -> str:
    """Return how a process ended, as words for an error or the log."""
    if status is None:
        return "still running"
    if status < 0:
        try:
            return f"killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"killed by signal {-status}"
    return f"exited with status {status}"


def _receive(control: socket.socket) -> tuple[bytes, list[int], int, object]:
    size = _DESCRIPTORS * 4
    data, ancillary, flags, address = control.recvmsg(_CONTROL_BYTES, socket.CMSG_SPACE(size), socket.MSG_CMSG_CLOEXEC)
    descriptors: list[int] = []
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors += [
                int.from_bytes(content[at : at + 4], sys.byteorder) for at in range(0, len(content) // 4 * 4, 4)
            ]
    return data, descriptors, flags, address


@functools.cache
def _log_confinement_gaps() -> None:
    """Log, once for each server, what this kernel does not enforce."""
    if gaps := confinement_gaps():
        remedy = "run a kernel with Landlock ABI 6 (Linux 6.12), or each project's server as a user of its own"
        log.warning("project_code_not_confined", open=gaps, landlock=landlock_version(), remedy=remedy)


def _spawn(runtime: ProjectRuntime, settings: WorkerSettings, folder: PrivateFolder) -> ZygoteProcess:
    core, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, output_end = os.pipe()
    arguments = ProcessArguments(
        runtime=runtime.runtime,
        project=str(runtime.project.resolve()),
        folder=str(runtime.readable),
        settings=dataclasses.replace(settings, environment={}),
        private=folder.path,
        grants=(),
        parent=os.getpid(),
        control=theirs.fileno(),
    )
    root = str(Path(callagent.__file__).parent.parent)
    with ExitStack() as undo, ExitStack() as close:
        close.callback(theirs.close)
        close.callback(os.close, output_end)
        undo.callback(core.close)
        undo.callback(os.close, output)
        # -P: the folder of the project is the working directory, and must not be searched for our own imports.
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROCESS_PROGRAM, root, "zygote", msgspec.json.encode(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output_end,
            stderr=output_end,
            pass_fds=[theirs.fileno()],
            env=_environment(settings),
            cwd=runtime.project if runtime.project.is_dir() else None,
            start_new_session=True,
        )
        undo.pop_all()
    return ZygoteProcess(process, core, OutputReader(output, settings.output_bytes), folder)


def _environment(settings: WorkerSettings) -> dict[str, str]:
    """Return a zygote's variables. Of the server's own it gets what every program needs: others may be secrets."""
    passed_on = {name: os.environ[name] for name in _INHERITED_VARIABLES if name in os.environ}
    return {**passed_on, **_NO_BYTECODE, **_ONE_THREAD, **settings.environment}
