"""The process that has the project imported and forks a worker per call on request.

Control messages are msgpack arrays on a SOCK_SEQPACKET pair. From the core: `["fork", n, folder]`, `["kill", n]`,
`["quit"]`. To the core: `["ready", threads]`, `["failed", text]`, `["forked", n, pid]` with three descriptors (the
worker's socket, its pidfd, its output), `["ended", n, status]` after the worker's process group is dead and reaped.
"""

from __future__ import annotations

import gc
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from callagent.workers.confinement import common_grants, confine_worker, confine_zygote, import_grants, widen_grants
from callagent.workers.kernel_limits import Grant, adopt_orphans, die_with_parent, limit_process
from callagent.workers.protocol import ProjectRuntime, Runtime, WorkerSettings, find_runtime
from callagent.workers.worker import CoreGone, serve

_CONTROL_BYTES = 64 * 1024
_SWEEP_SECONDS = 0.05
"""Time from the end of a worker to the search for processes that it left behind."""
_END_SECONDS: Final = 2
"""Time limit for ending all workers when the zygote stops; after it SIGALRM ends the zygote."""
_MAX_ERROR_CHARACTERS = 2000
PROCESS_PROGRAM: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from callagent.workers.zygote import main; main(sys.argv[2], sys.argv[3])"
)
"""`python -P -c PROCESS_PROGRAM <folder of callagent> zygote|worker <ProcessArguments as JSON>`"""


class ProcessArguments(msgspec.Struct, frozen=True):
    """Arguments of a zygote, or of a worker that is an interpreter of its own."""

    runtime: str
    project: str
    folder: str
    """The folder that the project's code may read."""
    settings: WorkerSettings
    private: str
    """The folder that the project's code may write to. The folders of the calls are inside the zygote's."""
    grants: tuple[Grant, ...]
    """What a worker may read and execute; empty for a zygote, which finds this out before it confines itself."""
    parent: int
    """The process id of the process that starts this one."""
    control: int
    """The descriptor of the control socket; in a worker that is an interpreter of its own, the one to the core."""


def main(role: str, arguments_text: str) -> NoReturn:
    """Run as a zygote, or as a worker whose project cannot be forked; never returns."""
    arguments = msgspec.json.decode(arguments_text, type=ProcessArguments)
    die_with_parent(arguments.parent, signal.SIGKILL)
    sock = socket.socket(fileno=arguments.control)
    # This imports code of callagent only. The project's code is imported when `make_runtime` is called, confined.
    make_runtime = find_runtime(ProjectRuntime(arguments.runtime, Path(arguments.project)))
    if role == "worker":
        _run_worker(make_runtime, sock, os.dup(1), arguments)
    adopt_orphans()
    environment = dict(os.environ)
    try:
        folder = Path(arguments.folder)
        grants, for_import = common_grants(folder, arguments.settings), import_grants(folder)
        confine_zygote([*grants, *for_import], arguments.settings, arguments.private)
        runtime = make_runtime()
    except BaseException as error:
        # The boundary of an import: whatever the project's code raises, even SystemExit, is reported to the core.
        traceback.print_exc()
        sock.send(msgspec.msgpack.encode(["failed", f"{type(error).__name__}: {error}"[:_MAX_ERROR_CHARACTERS]]))
        os._exit(1)
    # Frozen objects are not touched by the workers' garbage collectors, so their memory pages stay shared.
    gc.collect()
    gc.freeze()
    if threaded := len(os.listdir("/proc/self/task")) > 1:
        # A fork copies the calling thread only, and locks that other threads hold stay locked in the copy for ever.
        # Such a project is imported again for each call, so its workers need the accesses of an import.
        grants += for_import
    arguments = msgspec.structs.replace(arguments, grants=tuple(widen_grants(grants, arguments.private)))
    Zygote(runtime, sock, arguments, environment if threaded else None).run()


def _run_worker(
    make_runtime: Callable[[], Runtime], sock: socket.socket, output: int, arguments: ProcessArguments
) -> NoReturn:
    """Run as a worker until the core closes the socket; then exit, and never return into the zygote's loop."""
    status = 1
    try:
        adopt_orphans()
        limit_process(arguments.settings, sock.fileno(), output)
        confine_worker(arguments.grants, arguments.settings, arguments.private)
        serve(make_runtime(), sock, arguments.settings)
    except (CoreGone, ConnectionError):
        status = 0
    except BaseException:
        # The boundary of a worker: its output, and so the traceback, is in the log of the call.
        traceback.print_exc()
    finally:
        os._exit(status)


@dataclass(frozen=True, slots=True)
class _Child:
    """A worker that the zygote has started."""

    number: int
    process: subprocess.Popen[bytes] | None
    """Set when the worker is an interpreter of its own."""


class Zygote:
    """The loop, in a single thread, that forks, kills and reaps workers on the core's orders."""

    def __init__(
        self,
        runtime: Runtime,
        control: socket.socket,
        arguments: ProcessArguments,
        environment: Mapping[str, str] | None,
    ) -> None:
        """`environment`: the variables of workers that are interpreters of their own, because threads keep this process
        from being forked; None if workers are forked."""
        self._runtime = runtime
        self._control = control
        self._arguments = arguments
        self._environment = environment
        self._children: dict[int, _Child] = {}
        self._threaded = environment is not None
        self._sweep_at: float | None = None
        self._quitting = False
        self._wakeup, woken = socket.socketpair()
        self._wakeup.setblocking(False)
        woken.setblocking(False)
        self._woken = woken

    def run(self) -> NoReturn:
        """Carry out the core's orders until it sends `quit` or is gone; then end all workers and exit."""
        # Python handles a signal between two instructions and then goes on waiting (PEP 475); a byte in this socket
        # wakes the selector, so that no child waits to be reaped.
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.signal(signal.SIGTERM, lambda _signal, _frame: setattr(self, "_quitting", True))
        # If the core dies from here on, SIGTERM ends this loop, and `_end_all` kills even processes that left the group
        # of their worker.
        die_with_parent(self._arguments.parent, signal.SIGTERM)
        self._send(["ready", self._threaded])
        self._control.setblocking(False)
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ, self._handle_order)
        selector.register(self._woken, selectors.EVENT_READ, self._clear_wakeups)
        while not self._quitting:
            wait = None if self._sweep_at is None else max(self._sweep_at - time.monotonic(), 0)
            for key, _ in selector.select(wait):
                handle: Callable[[], None] = key.data
                handle()
            self._reap()
            if self._sweep_at is not None and time.monotonic() >= self._sweep_at:
                self._sweep_at = None
                if self._sweep():
                    self._sweep_soon()
        self._end_all()
        os._exit(0)

    def _clear_wakeups(self) -> None:
        try:
            self._woken.recv(4096)
        except BlockingIOError:
            pass

    def _handle_order(self) -> None:
        try:
            data = self._control.recv(_CONTROL_BYTES)
        except BlockingIOError:
            return
        order = msgspec.msgpack.decode(data) if data else ["quit"]
        match order:
            case ["fork", int(number), str(private)]:
                self._fork(number, private)
            case ["kill", int(number)]:
                for pid, child in self._children.items():
                    if child.number == number:
                        _kill_group(pid)
            case _:
                self._quitting = True

    # Forking ----------------------------------------------------------------------------------------------------------

    def _fork(self, number: int, private: str) -> None:
        arguments = msgspec.structs.replace(self._arguments, private=private)
        core, ours = socket.socketpair()
        output, output_end = os.pipe()
        try:
            process = self._spawn(arguments, ours, output_end) if self._threaded else None
            pid = process.pid if process is not None else self._fork_here(arguments, ours, output_end)
            self._children[pid] = _Child(number, process)
            pidfd = os.pidfd_open(pid)
            self._send(["forked", number, pid], [core.fileno(), pidfd, output])
            os.close(pidfd)
        finally:
            core.close()
            ours.close()
            os.close(output)
            os.close(output_end)

    def _fork_here(self, arguments: ProcessArguments, sock: socket.socket, output: int) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            os.setpgid(0, 0)
            die_with_parent(parent, signal.SIGKILL)
            _run_worker(lambda: self._runtime, sock, output, arguments)
        try:
            # Parent and child both set the group: it must exist before either of them goes on.
            os.setpgid(pid, pid)
        except (PermissionError, ProcessLookupError):
            pass
        return pid

    def _spawn(self, arguments: ProcessArguments, sock: socket.socket, output: int) -> subprocess.Popen[bytes]:
        arguments = msgspec.structs.replace(arguments, parent=os.getpid(), control=sock.fileno())
        return subprocess.Popen(
            [sys.executable, "-P", "-c", PROCESS_PROGRAM, sys.argv[1], "worker", msgspec.json.encode(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[sock.fileno()],
            env=self._environment,
            process_group=0,
        )

    def _send(self, message: list[object], descriptors: list[int] | None = None) -> None:
        data = msgspec.msgpack.encode(message)
        # A full socket must not lose the message: this process has nothing else to do until the core has read.
        self._control.setblocking(True)
        try:
            socket.send_fds(self._control, [data], descriptors or [])
        except OSError:
            self._quitting = True
        self._control.setblocking(False)

    # Ending -----------------------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        while (pid := _ended_child()) is not None:
            child = self._children.pop(pid, None)
            if child is not None:
                # The group is killed before its leader is reaped: until then no other group can have its number.
                _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            if child is None:
                continue
            if child.process is not None:
                child.process.returncode = status
            self._sweep_soon()
            self._send(["ended", child.number, os.waitstatus_to_exitcode(status)])

    def _sweep_soon(self) -> None:
        # The sweep is delayed, so that it does not delay the fork of a replacement for which a call waits.
        if self._sweep_at is None:
            self._sweep_at = time.monotonic() + _SWEEP_SECONDS

    def _sweep(self) -> bool:
        """Kill the processes that workers left behind and this one inherited; return whether there were any."""
        strays = [pid for pid in _children() if pid not in self._children]
        for pid in strays:
            os.kill(pid, signal.SIGKILL)
        return bool(strays)

    def _end_all(self) -> None:
        signal.alarm(_END_SECONDS)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        for pid in self._children:
            _kill_group(pid)
        self._children.clear()
        try:
            while True:
                self._sweep()
                os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _ended_child() -> int | None:
    """Return a child that has ended, without reaping it."""
    try:
        ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return ended.si_pid if ended is not None else None


def _kill_group(leader: int) -> None:
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _children() -> list[int]:
    """Return every child of this process, including those that wait to be reaped.

    The kernel lists them by thread where it was built with CONFIG_PROC_CHILDREN; to read the state of every process of
    the machine instead takes hundreds of times as long.
    """
    try:
        lists = [Path("/proc/self/task", thread, "children").read_text() for thread in os.listdir("/proc/self/task")]
    except OSError:
        return _children_of(os.getpid())
    return [int(pid) for each in lists for pid in each.split()]


def _children_of(parent: int) -> list[int]:
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = Path("/proc", entry, "stat").read_text(errors="replace")
        except OSError:
            continue
        # The name in parentheses may hold anything; the state and the parent follow the last one.
        if int(stat.rpartition(")")[2].split()[1]) == parent:
            found.append(int(entry))
    return found
