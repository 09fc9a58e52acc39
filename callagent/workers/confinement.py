"""What project code may do: the files and programs it gets at, and what a worker gives up before it runs. Linux.

Landlock (`landlock.py`) holds the rules for files and ports, seccomp (`seccomp.py`) what Landlock does not see.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import callagent
from callagent.errors import ConfigError
from callagent.workers.landlock import (
    EXECUTE,
    READ,
    READ_FOLDER,
    WRITE,
    WRITE_FILE,
    Grant,
    describe_gaps,
    enter_domain,
    landlock_version,
)
from callagent.workers.seccomp import has_socket_filter, refuse_other_sockets
from callagent.workers.settings import WorkerSettings

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


_PACKAGE = Path(callagent.__file__).resolve().parent
_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64",
              "/etc/ld.so.cache")  # fmt: skip
_CERTIFICATES = (
    # Not /etc/ssl or /etc/pki as a whole: private keys lie there too.
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
_OWN_PROCESS = ("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys")
_DEVICES = {"/dev/null": READ | WRITE_FILE, "/dev/zero": READ | WRITE_FILE, "/dev/urandom": READ, "/dev/random": READ}


def import_grants(project: Path) -> list[Grant]:
    """What only an import needs: formats and Python find their files by listing folders, of which parts are closed."""
    return [Grant(str(folder), READ_FOLDER) for folder in (project, _PACKAGE.parent)]


def zygote_grants(common: Iterable[Grant], private: str) -> list[Grant]:
    """For a zygote, whose workers can have no more: `private` lies beside theirs; it finds its children in /proc."""
    own = [Grant("/proc", READ), Grant(os.path.dirname(private), WRITE)]
    # A project whose import leaves threads behind cannot be forked: its workers are interpreters of their own.
    return [*common, *own, *program_grants([sys.executable])]


def within_zygote(grants: Iterable[Grant], private: str) -> list[Grant]:
    """`grants` as few wider ones, for a domain that is entered within a zygote's, with every call.

    The zygote's own rules still hold in it. Only what lies in the same place as the calls' private folders has to be
    told apart, and what may be executed.
    """
    outer = Path(os.path.realpath(private)).parts[1:2]
    found: dict[str, int] = {}
    for grant in grants:
        parts = Path(os.path.realpath(grant.path)).parts
        wide = parts[1:2] != outer and not grant.access & EXECUTE
        path = os.path.join(*parts[:2]) if wide else os.path.join(*parts)
        found[path] = found.get(path, 0) | grant.access
    return [Grant(path, access) for path, access in found.items()]


def worker_grants(common: Iterable[Grant], settings: WorkerSettings, private: str) -> list[Grant]:
    """For a call's worker: it writes in its own folder only."""
    own = [Grant("/proc", READ_FOLDER), Grant(private, WRITE)]
    # A program that the worker starts looks for itself in /proc under a number that nobody knows yet.
    own += [Grant("/proc", READ)] if settings.programs else [Grant(path, READ) for path in _OWN_PROCESS]
    return [*common, *own]


def common_grants(project: Path, settings: WorkerSettings) -> list[Grant]:
    """What a zygote and its workers may both read and start. To be called unconfined: folders are listed for it."""
    certificates = [os.environ[name] for name in _CERTIFICATE_VARIABLES if name in os.environ]
    system = (*_LIBRARIES, *_CERTIFICATES, *certificates, *_ZONES_AND_LOCALES, *_RESOLVER, *_PROCESSORS)
    readable = [*open_parts(project, settings.closed), *_python_paths(settings.closed)]
    grants = [Grant(path, READ) for path in dict.fromkeys([*system, *map(str, readable)])]
    grants += [Grant(path, access) for path, access in _DEVICES.items()]
    return [*grants, *program_grants(settings.programs)]


def _python_paths(closed: Collection[str]) -> Iterator[Path]:
    """The interpreter, its libraries and this package; not the folder around it: a checkout's may hold settings."""
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
    """Packages that `pip install -e` has left in their own folders, where setuptools does so without `sys.path`."""
    for name, module in tuple(sys.modules.items()):
        if name.startswith("__editable__") and name.endswith("_finder"):
            for place in getattr(module, "MAPPING", {}).values():
                path = Path(place)
                # A module stands there without its ending.
                yield path if path.exists() else path.with_suffix(".py")


def open_parts(folder: Path, closed: Collection[str]) -> list[Path]:
    """`folder`, or where something closed lies in it, everything else in it.

    Landlock cannot take a part of an allowed folder away. What is made later in a folder that was taken apart stays
    closed. What is called like a closed file with an ending is closed too, such as the journals of a database.
    """
    folder = folder.resolve()
    barred = [Path(os.path.realpath(path)) for path in closed]
    if any(folder.is_relative_to(each) for each in barred):
        return []
    inside = [each for each in barred if each.is_relative_to(folder) and each.parent.is_dir()]
    return _parts(folder, folder, inside)


def _parts(folder: Path, top: Path, inside: Sequence[Path]) -> list[Path]:
    if not inside:
        return [folder]
    found: list[Path] = []
    for entry in _entries(folder):
        path = entry.resolve()
        # A link may lead to what is closed, or out of the folder, which is not the project's to open.
        if path.is_relative_to(top) and not any(_is_part(path, each) for each in inside):
            found += _parts(path, top, [each for each in inside if each.is_relative_to(path)])
    return found


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return ()


def _is_part(path: Path, closed: Path) -> bool:
    """Whether `path` is the closed one, lies in it, or is a file beside it that has its name and an ending."""
    if path.is_relative_to(closed):
        return True
    return path.parent == closed.parent and path.name.startswith((closed.name + "-", closed.name + "."))


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
