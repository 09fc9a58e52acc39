"""Killable processes for project code, and the same without processes for tests (`testing.in_process`).

Names are imported when they are first used: worker processes and commands import from here, and need few of them.
"""

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
        WorkerSettings,
        find_runtime,
        merge_checkpoint,
    )

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
    "WorkerSettings": "protocol",
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
