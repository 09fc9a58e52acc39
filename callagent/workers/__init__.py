"""Killable processes for project code, and the same without processes for tests (`testing.in_process`).

The front is light: workers and commands import from here, and need little of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent import lazy_exports

if TYPE_CHECKING:
    from callagent.workers.confinement import find_programs
    from callagent.workers.lease import WORKER_FIGURES
    from callagent.workers.process_pool import ProcessPool
    from callagent.workers.protocol import (
        AskFailed,
        Channel,
        Lease,
        OnMessage,
        Plain,
        ProjectRuntime,
        Runtime,
        Session,
        WorkerPool,
        find_runtime,
        merge_checkpoint,
    )
    from callagent.workers.settings import WorkerSettings

_MODULES = {
    "AskFailed": "protocol",
    "Channel": "protocol",
    "Lease": "protocol",
    "OnMessage": "protocol",
    "Plain": "protocol",
    "ProcessPool": "process_pool",
    "ProjectRuntime": "protocol",
    "Runtime": "protocol",
    "Session": "protocol",
    "WORKER_FIGURES": "lease",
    "WorkerPool": "protocol",
    "WorkerSettings": "settings",
    "find_programs": "confinement",
    "find_runtime": "protocol",
    "merge_checkpoint": "protocol",
}

__all__ = [
    "WORKER_FIGURES",
    "AskFailed",
    "Channel",
    "Lease",
    "OnMessage",
    "Plain",
    "ProcessPool",
    "ProjectRuntime",
    "Runtime",
    "Session",
    "WorkerPool",
    "WorkerSettings",
    "find_programs",
    "find_runtime",
    "merge_checkpoint",
]
__getattr__ = lazy_exports(__name__, _MODULES)
