"""Landlock domains: what the kernel lets a process, and everything that it starts, open, execute and connect to. Linux.

A domain is never widened: each further one can only take away. Whoever is in a domain may also neither read the
environment, memory or descriptors of a process outside of it through /proc nor trace it (`security/landlock.rst`).
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from collections.abc import Collection, Iterable
from dataclasses import dataclass

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
_MOVES_SINCE, _TRUNCATION_SINCE, _NETWORK_SINCE, _SCOPES_SINCE = 2, 3, 4, 6
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Grant:
    """What is allowed for one file, or for a folder and everything in it."""

    path: str
    access: int


def landlock_version() -> int:
    """The kernel's Landlock ABI; 0: it has none."""
    return max(int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))), 0)


def describe_gaps(version: int) -> str:
    """What a kernel with this ABI cannot close, as words for the log; empty: nothing that we ask for."""
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
    Landlock; raises OSError when it has and refuses: nothing may run unconfined by mistake.
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
                _check(_libc.syscall(_ADD_RULE, ruleset, _NET_PORT, struct.pack("=QQ", _CONNECT_TCP, port), _FLAGS))
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        _drop_capabilities()
        _check(_libc.syscall(_RESTRICT_SELF, ruleset, _FLAGS))
    finally:
        os.close(ruleset)
    return True


_FLAGS = ctypes.c_uint32(0)


def _known_accesses(version: int) -> int:
    known = EXECUTE | WRITE_FILE | READ | _MAKE_AND_REMOVE
    known |= _MOVE if version >= _MOVES_SINCE else 0
    return known | (_TRUNCATE if version >= _TRUNCATION_SINCE else 0)


def _create_ruleset(version: int, *, network: bool) -> int:
    attributes = struct.pack("=Q", _known_accesses(version))
    if version >= _NETWORK_SINCE:
        attributes += struct.pack("=Q", _BIND_TCP | _CONNECT_TCP if network else 0)
    if version >= _SCOPES_SINCE:
        attributes += struct.pack("=Q", _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS)
    return _check(_libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), _FLAGS))


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
            access &= _OF_FILES
        if access:
            rule = struct.pack("=Qi", access, descriptor)
            _check(_libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, _FLAGS))
    finally:
        os.close(descriptor)


def _check(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"Landlock: {os.strerror(number)}")
    return int(result)


def _drop_capabilities() -> None:
    """PERFMON lets who has it read other processes' memory since Linux 6.15; what is not there cannot be dropped."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if _libc.capget(header, held) != 0:
        return
    low, high = struct.unpack("=III", held.raw[:12]), (0, 0, 0)
    kept = [each & _CAPABILITIES_OF_FILES for each in low]
    _libc.capset(header, struct.pack("=IIIIII", *kept, *high))
