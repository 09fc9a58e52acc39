"""Decides which files, programs and ports project code may use, and confines zygotes and workers to them.

Linux only. `kernel_limits.py` has the kernel enforce what is decided here.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import callagent
from callagent.errors import ConfigError
from callagent.workers import kernel_limits as kernel
from callagent.workers.protocol import WorkerSettings

# Programs -------------------------------------------------------------------------------------------------------------

_HEAD_BYTES = 4096
"""Bytes that are read of a program, to find its first line or its ELF headers."""
_PT_INTERP = 3
"""Type of the ELF header that names the loader (elf(5))."""


def find_programs(names: Iterable[str], setting: str) -> tuple[str, ...]:
    """Return absolute paths of programs, or of folders of programs. Raises `ConfigError`, which names `setting`."""
    found = []
    for name in names:
        path = name if os.path.isdir(name) else shutil.which(name)
        if path is None:
            raise ConfigError(f"{setting}: '{name}' is not an executable program; give its path, or remove it")
        found.append(os.path.abspath(path))
    return tuple(found)


def program_grants(programs: Iterable[str]) -> Iterator[kernel.Grant]:
    """Yield the grants for `programs` and for what runs them: a script's interpreter, a program's ELF loader."""
    waiting, seen = list(programs), set[str]()
    while waiting:
        program = waiting.pop()
        if program in seen:
            continue
        seen.add(program)
        yield kernel.Grant(program, kernel.EXECUTE | kernel.READ)
        if os.path.isfile(program):
            yield from (kernel.Grant(str(path), kernel.READ) for path in _installation(Path(program)))
        # The programs in a folder are not examined: they are assumed to need the loader that Python itself has.
        waiting += _interpreters(program if os.path.isfile(program) else sys.executable)


def _installation(program: Path) -> Iterator[Path]:
    """Yield the libraries that belong to a program in a `bin/`, as in a virtual environment.

    A virtual environment's interpreter is a link: the libraries of the real one are needed as well.
    """
    for path in (program, program.resolve()):
        if path.parent.name in ("bin", "sbin"):
            yield path.parent.parent / "lib"
            yield path.parent.parent / "pyvenv.cfg"


def _interpreters(program: str) -> list[str]:
    """Return the programs that the kernel executes to run `program`.

    For a script these are the programs in its first line (`#!`), for an ELF file the loader in its PT_INTERP header.
    """
    try:
        with open(program, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return []
    if head.startswith(b"#!"):
        return _shebang_programs(head[2:].partition(b"\n")[0].decode(errors="replace").split())
    return _elf_loader(head) if head.startswith(b"\x7fELF") else []


def _shebang_programs(words: list[str]) -> list[str]:
    # `#!/usr/bin/env -S NAME=VALUE python3 -u`: env and the program that it looks up are both executed.
    if not words or os.path.basename(words[0]) != "env":
        return words[:1]
    named = next((word for word in words[1:] if not word.startswith("-") and "=" not in word), "")
    return [words[0], *filter(None, [shutil.which(named)])]


def _elf_loader(head: bytes) -> list[str]:
    # Offsets of e_phoff, e_phentsize, e_phnum, p_offset and p_filesz in files of 64 and of 32 bits (elf(5)).
    wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
    try:
        offset = struct.unpack_from(order + ("Q" if wide else "I"), head, 32 if wide else 28)[0]
        size, count = struct.unpack_from(order + "HH", head, 54 if wide else 42)
        for start in range(offset, offset + size * count, size):
            if struct.unpack_from(order + "I", head, start)[0] == _PT_INTERP:
                at, length = struct.unpack_from(order + ("Q16xQ" if wide else "I8xI"), head, start + (8 if wide else 4))
                return [head[at : at + length].rstrip(b"\0").decode()]
    except (struct.error, UnicodeDecodeError):
        # The file is damaged, or its headers lie beyond what was read: without a grant the kernel refuses to run it.
        pass
    return []


# Files ----------------------------------------------------------------------------------------------------------------

_PACKAGE = Path(callagent.__file__).resolve().parent
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64",
              "/etc/ld.so.cache")  # fmt: skip
_CERTIFICATES = (
    # /etc/ssl and /etc/pki are not open as a whole: private keys lie there as well.
    *("/etc/ssl/certs", "/etc/ssl/cert.pem", "/etc/ssl/openssl.cnf", "/etc/ca-certificates", "/etc/crypto-policies"),
    *("/etc/pki/tls/certs", "/etc/pki/tls/cert.pem", "/etc/pki/tls/openssl.cnf", "/etc/pki/ca-trust/extracted"),
    *("/usr/share/ca-certificates", "/usr/local/share/ca-certificates", "/usr/local/ssl/certs"),
)
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_ZONES_AND_LOCALES = ("/usr/share/zoneinfo", "/usr/share/locale", "/usr/share/mime", "/etc/localtime", "/etc/timezone",
                      "/etc/locale.alias", "/etc/mime.types")  # fmt: skip
_RESOLVER = ("/etc/resolv.conf", "/run/systemd/resolve", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services",
             "/etc/protocols", "/etc/host.conf", "/etc/gai.conf")  # fmt: skip
_PROCESSORS = ("/sys/devices/system/cpu", "/sys/devices/system/node", "/sys/fs/cgroup")
_PROC_FILES = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys")
_DEVICES = {
    "/dev/null": kernel.READ | kernel.WRITE_FILE,
    "/dev/zero": kernel.READ | kernel.WRITE_FILE,
    "/dev/urandom": kernel.READ,
    "/dev/random": kernel.READ,
}


def import_grants(project: Path) -> list[kernel.Grant]:
    """Return the grants that only an import needs: to list the project's folder and the one around this package.

    Python lists folders to find modules, and a project's format to find its files. The files in the two
    folders that may be read are those of `common_grants`.
    """
    return [kernel.Grant(str(folder), kernel.READ_FOLDER) for folder in (project, _PACKAGE.parent)]


def zygote_grants(common: Iterable[kernel.Grant], private: str) -> list[kernel.Grant]:
    """Return the grants of a zygote, which bound those of all its workers.

    A zygote writes to the folder that contains its private folder and those of its workers, and finds its children in
    /proc.
    """
    own = [kernel.Grant("/proc", kernel.READ), kernel.Grant(os.path.dirname(private), kernel.WRITE)]
    # A zygote in which the project's import left threads is not forked: it executes an interpreter for each worker.
    return [*common, *own, *program_grants([sys.executable])]


def widen_grants(grants: Iterable[kernel.Grant], private: str) -> list[kernel.Grant]:
    """Return fewer, wider grants with the same effect inside a zygote's domain: every worker spends time on each.

    A domain within another allows only what both allow, so `/usr` as a whole grants no more than the zygote has of it.
    Two kinds of grants are not widened: those to execute programs, and those in the top folder that contains the
    private folders of calls, because no call may reach the folder of another.
    """
    outer = Path(os.path.realpath(private)).parts[1:2]
    found: dict[str, int] = {}
    for grant in grants:
        parts = Path(os.path.realpath(grant.path)).parts
        wide = parts[1:2] != outer and not grant.access & kernel.EXECUTE
        path = os.path.join(*parts[:2]) if wide else os.path.join(*parts)
        found[path] = found.get(path, 0) | grant.access
    return [kernel.Grant(path, access) for path, access in found.items()]


def worker_grants(common: Iterable[kernel.Grant], settings: WorkerSettings, private: str) -> list[kernel.Grant]:
    """Return the grants of a call's worker, which writes to its own folder only."""
    own = [kernel.Grant("/proc", kernel.READ_FOLDER), kernel.Grant(private, kernel.WRITE)]
    # A program that the worker starts reads /proc under its own process number, which is not known yet.
    own += (
        [kernel.Grant("/proc", kernel.READ)]
        if settings.programs
        else [kernel.Grant(path, kernel.READ) for path in _PROC_FILES]
    )
    return [*common, *own]


def common_grants(project: Path, settings: WorkerSettings) -> list[kernel.Grant]:
    """Return what a zygote and its workers may both read and start. Call it unconfined: it lists folders."""
    certificates = [os.environ[name] for name in _CERTIFICATE_VARIABLES if name in os.environ]
    system = (*_LIBRARIES, *_CERTIFICATES, *certificates, *_ZONES_AND_LOCALES, *_RESOLVER, *_PROCESSORS)
    readable = [*open_parts(project, settings.closed), *_python_paths(settings.closed)]
    grants = [kernel.Grant(path, kernel.READ) for path in dict.fromkeys([*system, *map(str, readable)])]
    grants += [kernel.Grant(path, access) for path, access in _DEVICES.items()]
    return [*grants, *program_grants(settings.programs)]


def _python_paths(closed: Collection[str]) -> Iterator[Path]:
    """Yield the interpreter's libraries and this package, without its parent folder, which may hold settings."""
    yield _PACKAGE
    for prefix in dict.fromkeys((sys.prefix, sys.exec_prefix, sys.base_prefix)):
        for name in ("lib", "lib64", "ssl", "pyvenv.cfg"):
            yield Path(prefix, name)
    for entry in filter(None, sys.path):
        path = Path(entry).resolve()
        if path != _PACKAGE.parent or path.name in ("site-packages", "dist-packages"):
            yield from open_parts(path, closed)
    for path in _editable_packages():
        yield from open_parts(path, closed)


def _editable_packages() -> Iterator[Path]:
    """Yield packages installed with `pip install -e` that setuptools maps to their folders, without `sys.path`."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith("__editable__") and name.endswith("_finder"):
            for place in getattr(module, "MAPPING", {}).values():
                path = Path(place)
                # A package is mapped to its folder, a single module to its file without the ending `.py`.
                yield path if path.exists() else path.with_suffix(".py")


def open_parts(folder: Path, closed: Collection[str]) -> list[Path]:
    """Return `folder`, or, if something closed lies in it, the entries in it that are not closed.

    Landlock cannot exclude a part of an allowed folder, so each open entry is allowed by itself. A file that is created
    later beside a closed one therefore stays closed. Files whose names begin with that of a closed one and `-` or `.`
    are closed as well, such as a database's journal.
    """
    folder = folder.resolve()
    barred = [Path(os.path.realpath(path)) for path in closed]
    if any(folder.is_relative_to(each) for each in barred):
        return []
    inside = [each for each in barred if each.is_relative_to(folder) and each.parent.is_dir()]
    return _open_entries(folder, folder, inside)


def _open_entries(folder: Path, top: Path, inside: Sequence[Path]) -> list[Path]:
    if not inside:
        return [folder]
    found: list[Path] = []
    for entry in _entries(folder):
        path = entry.resolve()
        # A symbolic link may lead to a closed file, or out of the folder: neither target is opened.
        if path.is_relative_to(top) and not any(_is_closed(path, each) for each in inside):
            found += _open_entries(path, top, [each for each in inside if each.is_relative_to(path)])
    return found


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return ()


def _is_closed(path: Path, closed: Path) -> bool:
    """Return whether `path` is `closed`, lies in it, or is a file beside it such as its journal `NAME-wal`."""
    if path.is_relative_to(closed):
        return True
    return path.parent == closed.parent and path.name.startswith((closed.name + "-", closed.name + "."))


# Entering -------------------------------------------------------------------------------------------------------------


def confine_zygote(common: Sequence[kernel.Grant], settings: WorkerSettings, private: str) -> None:
    """Confine this process to the files and network ports of a zygote, and limit the size of files that it writes.

    Call it before the import, which runs project code. Raises OSError where the kernel refuses.
    """
    sys.dont_write_bytecode = True
    kernel.limit_file_size(settings)
    _use_private_folder(private)
    if kernel.enter_domain(zygote_grants(common, private), settings.ports) and settings.ports is not None:
        kernel.refuse_other_sockets()


def confine_worker(common: Sequence[kernel.Grant], settings: WorkerSettings, private: str) -> None:
    """Enter the domain of one call within the zygote's: calls do not see each other's folders and processes."""
    _use_private_folder(private)
    kernel.enter_domain(worker_grants(common, settings, private), None)


def confinement_gaps() -> str:
    """Return what this kernel cannot enforce of a worker's confinement, worded for the log; empty if nothing."""
    gaps = kernel.describe_gaps(kernel.landlock_version())
    return gaps if kernel.has_socket_filter() else "; ".join(filter(None, [gaps, "TCP connections over Multipath TCP"]))


def _use_private_folder(private: str) -> None:
    os.environ.update(TMPDIR=private, HOME=private)
    # The module `tempfile` remembers its first choice, and a forked worker inherits the zygote's.
    tempfile.tempdir = None
