"""Which files project code may read, write and execute, as Landlock rules."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import callagent
from callagent.workers.landlock import EXECUTE, READ, READ_FOLDER, WRITE, WRITE_FILE, Grant
from callagent.workers.programs import program_grants
from callagent.workers.settings import WorkerSettings

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
