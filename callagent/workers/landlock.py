"""A Landlock domain: what runs in it can neither look into processes outside of it nor send them signals. Linux.

Whoever is in a domain may not read another process's environment, memory or descriptors through /proc, nor trace it,
whatever its user (`security/landlock.rst`, "Ptrace restrictions"). Nothing else of the file system is closed.
Where the server runs as root, its capabilities go as well, but for those of files: some lead around a domain.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path

_CREATE, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_MAKE_CHAR, _MAKE_BLOCK, _REFER = 1 << 6, 1 << 11, 1 << 13
_SCOPE_SIGNAL = 1 << 1
_PR_SET_NO_NEW_PRIVS = 38
_CAPABILITY_VERSION = 0x20080522
_CAPABILITIES_OF_FILES = 0b11111
"""CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER, FSETID."""
_libc = ctypes.CDLL(None, use_errno=True)


def landlock_version() -> int:
    """What the kernel knows of it: 2 with moves between folders, 6 with signals; 0: nothing."""
    return max(int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))), 0)


def close_domain() -> bool:
    """Put this thread, and all that it starts from now on, into a domain of its own; False: the kernel has none."""
    version = landlock_version()
    if version == 0:
        return False
    # A domain must forbid something: device files, which nobody makes. Moves are forbidden unless they are let.
    handled = _MAKE_CHAR | _MAKE_BLOCK | (_REFER if version >= 2 else 0)
    attributes = struct.pack("=Q", handled)
    if version >= 6:
        attributes += struct.pack("=QQ", 0, _SCOPE_SIGNAL)
    ruleset = _libc.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if ruleset < 0:
        return False
    try:
        if version >= 2:
            _let_move_everywhere(ruleset)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _drop_capabilities()
        return int(_libc.syscall(_RESTRICT_SELF, ruleset, ctypes.c_uint32(0))) == 0
    finally:
        os.close(ruleset)


def _drop_capabilities() -> None:
    """PERFMON lets who has it read other processes' memory since Linux 6.15; what is not there cannot be dropped."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION, 0)
    held = ctypes.create_string_buffer(24)
    if _libc.capget(header, held) != 0:
        return
    low, high = struct.unpack("=III", held.raw[:12]), (0, 0, 0)
    kept = [each & _CAPABILITIES_OF_FILES for each in low]
    _libc.capset(header, struct.pack("=IIIIII", *kept, *high))


def _let_move_everywhere(ruleset: int) -> None:
    root = os.open(Path("/"), os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", _REFER, root)
        _libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, ctypes.c_uint32(0))
    finally:
        os.close(root)
