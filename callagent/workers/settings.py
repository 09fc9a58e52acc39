"""What a project's workers may use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

MIB = 1024 * 1024
_NO_ENVIRONMENT: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    environment: Mapping[str, str] = field(default_factory=lambda: _NO_ENVIRONMENT)
    """Variables that project code sees, beside PATH, HOME, LANG and TZ."""
    memory: int = 1024 * MIB
    """Bytes of private memory per process (RLIMIT_DATA)."""
    file_size: int = 64 * MIB
    """Bytes of the largest file that it may write, and of all files together in its private folder."""
    files: int = 256
    """Files and folders in a call's private folder after a function."""
    closed: tuple[str, ...] = ()
    """Files and folders that stay closed where they lie in the project or on Python's path."""
    programs: tuple[str, ...] = ()
    """Absolute paths of the programs, or of folders of programs, that it may start."""
    ports: tuple[int, ...] | None = None
    """TCP ports that it may connect to; None: all."""
    open_files: int = 256
    processes: int = 4096
    """Processes and threads of the user that the server runs as (RLIMIT_NPROC); it does not bind root."""
    forks: int = 64
    """`os.fork()` calls per function, by it and its children together; one more ends them all."""
    nice: int = 5
    output_bytes: int = 64 * 1024
    """Standard output and error kept per call."""
    import_timeout: float = 60.0
    """Seconds for a project to be imported."""
