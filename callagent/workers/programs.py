"""Programs that project code may start: found by their names, with the interpreters and libraries they need."""

from __future__ import annotations

import os
import shutil
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from callagent.errors import ConfigError
from callagent.workers.landlock import EXECUTE, READ, Grant

_HEAD = 4096
_PT_INTERP = 3


def find_programs(names: Iterable[str], setting: str) -> tuple[str, ...]:
    """Absolute paths of programs, or of folders of them. Raises `ConfigError`, which names `setting`."""
    found = []
    for name in names:
        path = name if os.path.isdir(name) else shutil.which(name)
        if path is None:
            raise ConfigError(f"{setting}: '{name}' is no program that can be executed; give its path, or remove it")
        found.append(os.path.abspath(path))
    return tuple(found)


def program_grants(programs: Iterable[str]) -> Iterator[Grant]:
    """Rules for `programs`; a script brings its interpreter, a program the loader of its libraries."""
    waiting, seen = list(programs), set[str]()
    while waiting:
        program = waiting.pop()
        if program in seen:
            continue
        seen.add(program)
        yield Grant(program, EXECUTE | READ)
        if os.path.isfile(program):
            yield from (Grant(str(path), READ) for path in _installation(Path(program)))
        # The programs of a folder are taken to need the loader that Python itself has.
        waiting += _interpreters(program if os.path.isfile(program) else sys.executable)


def _installation(program: Path) -> Iterator[Path]:
    """`bin/` has its libraries beside it, as in a virtual environment; there the real interpreter's as well."""
    for path in (program, program.resolve()):
        if path.parent.name in ("bin", "sbin"):
            yield path.parent.parent / "lib"
            yield path.parent.parent / "pyvenv.cfg"


def _interpreters(program: str) -> list[str]:
    """Of a script those of its first line; of a program its loader (ELF, PT_INTERP)."""
    try:
        with open(program, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return []
    if head.startswith(b"#!"):
        return _of_first_line(head[2:].partition(b"\n")[0].decode(errors="replace").split())
    return _loader(head) if head.startswith(b"\x7fELF") else []


def _of_first_line(words: list[str]) -> list[str]:
    if not words or os.path.basename(words[0]) != "env":
        return words[:1]
    named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    return [words[0], *filter(None, [shutil.which(named)])]


def _loader(head: bytes) -> list[str]:
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    try:
        offset = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)[0]
        size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
        for start in range(offset, offset + size * count, size):
            if struct.unpack_from(order + "I", head, start)[0] == _PT_INTERP:
                at, length = struct.unpack_from(order + ("Q16xQ" if wide else "I8xI"), head, start + (8 if wide else 4))
                return [head[at : at + length].rstrip(b"\0").decode()]
    except (struct.error, UnicodeDecodeError):
        pass  # damaged, or its headers lie elsewhere: the kernel will refuse it
    return []
