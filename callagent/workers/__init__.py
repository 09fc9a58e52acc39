"""Killable processes for project code, and the same without processes for tests (`testing.in_process`)."""

from __future__ import annotations

from callagent.workers.confinement import find_programs
from callagent.workers.lease import FIGURES
from callagent.workers.process_pool import ProcessPool
from callagent.workers.protocol import (
    AskFailed,
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

__all__ = [
    "FIGURES",
    "AskFailed",
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
