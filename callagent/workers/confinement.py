"""What a worker process gives up before project code runs in it. Linux."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import signal
import sys
import tempfile
from collections.abc import Sequence

from callagent.workers.access import worker_grants, zygote_grants
from callagent.workers.landlock import Grant, describe_gaps, enter_domain, landlock_version
from callagent.workers.settings import WorkerSettings
from callagent.workers.socket_filter import has_socket_filter, refuse_other_sockets

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent(parent: int, number: signal.Signals) -> None:
    """Get `number` when the process `parent` ends; exits when it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Descendants whose parent ends become our children: none gets away by forking twice."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def confine_zygote(common: Sequence[Grant], settings: WorkerSettings, private: str) -> None:
    """Before the project is imported, which runs its code too: files, network and the size of what it writes."""
    sys.dont_write_bytecode = True
    limit_file_size(settings)
    _use_private_folder(private)
    if enter_domain(zygote_grants(common, private), settings.ports) and settings.ports is not None:
        refuse_other_sockets()


def confine_worker(common: Sequence[Grant], settings: WorkerSettings, private: str) -> None:
    """The tighter domain of one call, within the zygote's: calls do not see each other's folders and processes."""
    _use_private_folder(private)
    enter_domain(worker_grants(common, settings, private), None)


def what_is_open() -> str:
    """What this kernel cannot hold of a worker's confinement, as words for the log; empty: nothing."""
    gaps = describe_gaps(landlock_version())
    return gaps if has_socket_filter() else "; ".join(filter(None, [gaps, "TCP connections over Multipath TCP"]))


def _use_private_folder(private: str) -> None:
    os.environ.update(TMPDIR=private, HOME=private)
    # Chosen anew at the next use: the zygote's choice is inherited.
    tempfile.tempdir = None


def limit_file_size(settings: WorkerSettings) -> None:
    """A file over the limit is an OSError for the function, not the end of its process."""
    _limit(resource.RLIMIT_FSIZE, settings.file_size)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def limit_process(settings: WorkerSettings, keep: int, output: int) -> None:
    """Low priority, resource limits, no inherited descriptors but `keep`, output to `output`, signals at default."""
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    os.nice(settings.nice)
    _write_quietly("/proc/self/oom_score_adj", "500")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, keep)
    os.closerange(keep + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    for limit, value in (
        (resource.RLIMIT_DATA, settings.memory),
        (resource.RLIMIT_NOFILE, settings.open_files),
        (resource.RLIMIT_NPROC, settings.processes),
        (resource.RLIMIT_CORE, 0),
    ):
        _limit(limit, value)
    limit_file_size(settings)


def _limit(limit: int, value: int) -> None:
    hard = resource.getrlimit(limit)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))


class ForkGuard:
    """Counts `os.fork()` in the worker and its descendants; too many end the whole process group.

    RLIMIT_NPROC does not bind root, and a fork bomb would reach the machine's limit before a deadline does.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Shared by all that descend from here. Updates may be lost to races: a bomb goes off some forks later.
        self._count = mmap.mmap(-1, 8)
        os.register_at_fork(before=self._before)

    def reset(self) -> None:
        self._count[:8] = bytes(8)

    def _before(self) -> None:
        count = int.from_bytes(self._count[:8], "little") + 1
        self._count[:8] = count.to_bytes(8, "little")
        if count > self._limit:
            os.killpg(0, signal.SIGKILL)


def _write_quietly(path: str, text: str) -> None:
    try:
        with open(path, "w") as file:
            file.write(text)
    except OSError:
        pass
