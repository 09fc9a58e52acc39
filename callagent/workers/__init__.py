"""Killable processes for project code, and the same without processes for tests (`workers.in_process`)."""

from __future__ import annotations

from callagent.workers.figures import FIGURES
from callagent.workers.process_pool import ProcessPool
from callagent.workers.programs import find_programs
from callagent.workers.protocol import Lease, OnMessage, Plain, ProjectRuntime, WorkerPool
from callagent.workers.settings import WorkerSettings

__all__ = [
    "FIGURES",
    "Lease",
    "OnMessage",
    "Plain",
    "ProcessPool",
    "ProjectRuntime",
    "WorkerPool",
    "WorkerSettings",
    "find_programs",
]
