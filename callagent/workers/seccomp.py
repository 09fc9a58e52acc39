"""A seccomp filter: sockets that reach TCP ports past Landlock, which holds plain TCP only, cannot be made. Linux.

Multipath TCP and SMC fall back to TCP with any listener (`IPPROTO_MPTCP` 262, `IPPROTO_SMC` 256, `AF_SMC`), and
io_uring makes sockets without a system call that a filter sees.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

_PR_SET_SECCOMP, _MODE_FILTER = 22, 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EACCES
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _ARCHITECTURE, _DOMAIN, _PROTOCOL = 0, 4, 16, 32
"""Offsets in `struct seccomp_data`; of an argument its lower half, little-endian."""
_IO_URING_SETUP = 425
_X32_NUMBERS = 0x40000000
_MAX_IP_PROTOCOL = 255
_SOCKET_CALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""AUDIT_ARCH and the number of socket(2), by machine."""
_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def has_socket_filter() -> bool:
    return platform.machine() in _SOCKET_CALLS


def refuse_other_sockets() -> None:
    """Let this thread, and all that it starts, make Unix, netlink and plain IP sockets only; the others are EACCES.

    To be called after `enter_domain()`, which gives up new privileges. Raises OSError.
    """
    known = _SOCKET_CALLS.get(platform.machine())
    if known is None:
        return
    code = b"".join(struct.pack("=HBBI", *one) for one in _instructions(*known))
    program = _Program(len(code) // 8, code)
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp: the filter for sockets was refused")


def _instructions(architecture: int, socket_call: int) -> tuple[tuple[int, int, int, int], ...]:
    """Operation, instructions to skip where a test holds and where it does not, operand."""
    return (
        (_LOAD, 0, 0, _ARCHITECTURE),
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
