"""Limits that the Linux kernel enforces for a worker and for everything that it starts.

Landlock domains bound its files, programs and TCP ports. A seccomp filter refuses sockets that would lead around
Landlock. Resource limits bound its memory, files and processes, and a setting of `prctl(2)` ends it with its parent.
`confinement.py` decides which files and ports are allowed.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import resource
import signal
import socket
import stat
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from callagent.workers.protocol import WorkerSettings

_libc = ctypes.CDLL(None, use_errno=True)

# Landlock -------------------------------------------------------------------------------------------------------------
# A domain is never widened: each further one can only take away. A process in a domain can neither trace one outside of
# it nor read the other's environment, memory or descriptors through /proc (Documentation/security/landlock.rst).
# The numbers are those of `linux/landlock.h` and of the system call table that all architectures share.

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH, _NET_PORT = 1, 1, 2
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES_OF_FILES = 0b11111
"""CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID."""
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
EXECUTE, WRITE_FILE, READ_FILE, READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_MAKE_AND_REMOVE = 0b1_1111_1111 << 4
"""Remove a folder or a file; make a device, folder, file, socket, pipe or symbolic link."""
_MAKE_DEVICES = 1 << 6 | 1 << 11
_MOVE, _TRUNCATE = 1 << 13, 1 << 14
READ = READ_FILE | READ_FOLDER
WRITE = READ | WRITE_FILE | (_MAKE_AND_REMOVE & ~_MAKE_DEVICES) | _MOVE | _TRUNCATE
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | _TRUNCATE
# The Landlock ABI version that first knew an access; a ruleset that asks an older kernel for it is refused as a whole.
_MOVES_SINCE, _TRUNCATION_SINCE, _NETWORK_SINCE, _SCOPES_SINCE = 2, 3, 4, 6
_NO_FLAGS = ctypes.c_uint32(0)


@dataclass(frozen=True, slots=True)
class Grant:
    """What is allowed for one file, or for a folder and everything in it."""

    path: str
    access: int


def landlock_version() -> int:
    """Return the kernel's Landlock ABI version; 0 if it has no Landlock."""
    return max(int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))), 0)


def describe_gaps(version: int) -> str:
    """Return what a kernel with this ABI version cannot close, as words for the log; empty if it closes everything."""
    gaps = (
        (1, "every file that the server's user may open, and other processes through /proc"),
        (_TRUNCATION_SINCE, "shortening files that may only be read"),
        (_NETWORK_SINCE, "TCP connections to any port"),
        (_SCOPES_SINCE, "signals to other processes of the server's user"),
    )
    return "; ".join(gap for since, gap in gaps if version < since)


def enter_domain(grants: Iterable[Grant], ports: Collection[int] | None) -> bool:
    """Confine this thread, and all that it starts from now on, to `grants` and to TCP connections to `ports`.

    `ports=None` leaves the network as it is. Paths that do not exist are left out. Returns False when the kernel has no
    Landlock. Raises OSError when Landlock refuses, so that nothing runs unconfined by mistake.
    """
    version = landlock_version()
    if version == 0:
        return False
    ruleset = _create_ruleset(version, network=ports is not None)
    try:
        for grant in grants:
            _allow_path(ruleset, grant, _known_accesses(version))
        if version >= _NETWORK_SINCE:
            for port in ports or ():
                _check(_libc.syscall(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), _NO_FLAGS))
        # Without CAP_SYS_ADMIN, Landlock and seccomp demand this; it also makes set-user-ID programs harmless.
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _drop_capabilities()
        _check(_libc.syscall(_RESTRICT_SELF, ruleset, _NO_FLAGS))
    finally:
        os.close(ruleset)
    return True


def _known_accesses(version: int) -> int:
    known = EXECUTE | WRITE_FILE | READ | _MAKE_AND_REMOVE
    known |= _MOVE if version >= _MOVES_SINCE else 0
    return known | (_TRUNCATE if version >= _TRUNCATION_SINCE else 0)


def _create_ruleset(version: int, *, network: bool) -> int:
    # `struct landlock_ruleset_attr` has grown by a field in some versions; an older kernel takes only the shorter one.
    attributes = struct.pack("=Q", _known_accesses(version))
    if version >= _NETWORK_SINCE:
        attributes += struct.pack("=Q", _BIND_TCP | _CONNECT_TCP if network else 0)
    if version >= _SCOPES_SINCE:
        attributes += struct.pack("=Q", _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    return _check(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), _NO_FLAGS))


def _allow_path(ruleset: int, grant: Grant, known: int) -> None:
    try:
        descriptor = os.open(grant.path, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
            return
        raise
    try:
        access = grant.access & known
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            # A rule for a file that names an access to folders is refused (EINVAL).
            access &= _OF_FILES
        if access:
            rule = struct.pack("=Qi", access, descriptor)
            _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, _NO_FLAGS))
    finally:
        os.close(descriptor)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return int(result)


def _drop_capabilities() -> None:
    """Give up all capabilities but those about files.

    Since Linux 6.15 CAP_PERFMON, for example, lets a process in a domain read the memory of others.
    """
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if _libc.capget(header, held) != 0:
        return
    # Effective, permitted and inheritable: the lower 32 of each first, then the upper 32.
    low, high = struct.unpack("=III", held.raw[:12]), (0, 0, 0)
    kept = [each & _CAPABILITIES_OF_FILES for each in low]
    _libc.capset(header, struct.pack("=IIIIII", *kept, *high))


# Seccomp --------------------------------------------------------------------------------------------------------------
# Landlock restricts plain TCP only. Multipath TCP and SMC (`IPPROTO_MPTCP` 262, `IPPROTO_SMC` 256, `AF_SMC`) fall back
# to TCP with any listener, and io_uring makes sockets without a system call that a filter sees.

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _DOMAIN, _PROTOCOL = 0, 4, 16, 32
"""Offsets in `struct seccomp_data`; for the arguments of socket(2), of their lower half (little-endian)."""
_IO_URING_SETUP = 425
_X32_NUMBERS = 0x40000000
_MAX_IP_PROTOCOL = 255
_SOCKET_CALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""AUDIT_ARCH and the number of socket(2), by machine."""


class _Program(ctypes.Structure):
    """`struct sock_fprog`: a program of the classic Berkeley packet filter."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def has_socket_filter() -> bool:
    """Return whether `refuse_other_sockets` knows this machine's system call numbers; otherwise it does nothing."""
    return platform.machine() in _SOCKET_CALLS


def refuse_other_sockets() -> None:
    """Let this thread, and all that it starts, make Unix, netlink and plain IP sockets only; others fail with EACCES.

    To be called after `enter_domain()`, which sets the "no new privileges" that a filter needs. Raises OSError.
    """
    known = _SOCKET_CALLS.get(platform.machine())
    if known is None:
        return
    code = b"".join(struct.pack("=HBBI", *one) for one in _instructions(*known))
    program = _Program(len(code) // 8, code)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp: the filter for sockets was refused")


def _instructions(architecture: int, socket_call: int) -> tuple[tuple[int, int, int, int], ...]:
    """Return the filter: operation, instructions to skip where a test holds and where it does not, operand."""
    return (
        (_LOAD, 0, 0, _ARCHITECTURE),
        # A 32-bit program has other numbers for the same calls: all its calls are refused.
        (_EQUAL, 0, 12, architecture),
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 10, 0, _X32_NUMBERS),
        (_EQUAL, 9, 0, _IO_URING_SETUP),
        (_EQUAL, 0, 7, socket_call),
        (_LOAD, 0, 0, _DOMAIN),
        (_EQUAL, 5, 0, socket.AF_UNIX),
        (_EQUAL, 4, 0, socket.AF_NETLINK),
        (_EQUAL, 1, 0, socket.AF_INET),
        (_EQUAL, 0, 3, socket.AF_INET6),
        (_LOAD, 0, 0, _PROTOCOL),
        (_AT_LEAST, 1, 0, _MAX_IP_PROTOCOL + 1),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    )


# Processes and resources ----------------------------------------------------------------------------------------------

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent(parent: int, death_signal: signal.Signals) -> None:
    """Have the kernel send `death_signal` when the process `parent` ends; exit at once if it has ended already."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
    # The parent may have ended before the call above: then no signal will come.
    if os.getppid() != parent:
        os._exit(1)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ends: a process that forks twice must not escape."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def limit_file_size(settings: WorkerSettings) -> None:
    """Limit the size of files. A write over the limit raises OSError in the function and does not end its process."""
    _limit(resource.RLIMIT_FSIZE, settings.file_size)
    # By default SIGXFSZ kills; where it is ignored, write(2) fails with EFBIG.
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def limit_process(settings: WorkerSettings, keep: int, output: int) -> None:
    """Make this process a worker: low priority, resource limits, default signals, and no inherited descriptors.

    Only the descriptor `keep` stays open; standard output and error lead to the descriptor `output`, standard input to
    /dev/null.
    """
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    os.nice(settings.nice)
    # When memory runs out, the kernel kills a worker rather than the server with all its calls.
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

    RLIMIT_NPROC does not bind root, and a fork bomb would reach the machine's limit before a deadline ends it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # All descendants share this memory. Races may lose updates: a fork bomb is then ended some forks later.
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
