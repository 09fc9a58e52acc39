"""What the tests of workers share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callagent.workers.process_pool import ProcessPool
from callagent.workers.protocol import MIB, Lease, OnMessage, Plain, ProjectRuntime, WorkerSettings

ZOO = Path(__file__).parent.parent / "projects" / "zoo"
SETTINGS = WorkerSettings(memory=256 * MIB, file_size=4 * MIB, environment={"DECLARED": "yes"})


class Messages(list[Plain]):
    """A recorder: what the running code sent."""

    def __call__(self, message: Plain) -> None:
        self.append(message)

    def of(self, kind: str) -> list[Plain]:
        return [message for message in self if message["type"] == kind]


def zoo(tmp_path: Path) -> ProjectRuntime:
    """A copy of the zoo: some of its functions damage what they find. It imports with a short limit."""
    project = tmp_path / "zoo"
    shutil.copytree(ZOO, project, dirs_exist_ok=True)
    return ProjectRuntime("tests.workers.zoo_runtime:ZooRuntime", project)


def zoo_pool(tmp_path: Path, settings: WorkerSettings = SETTINGS) -> ProcessPool:
    return ProcessPool(zoo(tmp_path), settings)


async def call(
    lease: Lease,
    name: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    timeout: float = 10.0,
    on_message: OnMessage | None = None,
) -> Plain:
    """Run one global function."""
    request = {"op": "run", "function": {"kind": "global", "flow": None, "name": name}, "conv": {"id": "c1"},
               "arguments": dict(arguments or {})}  # fmt: skip
    return await lease.run(request, timeout=timeout, on_message=Messages() if on_message is None else on_message)


def processes() -> dict[int, int]:
    """Every process and its parent, zombies included."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parents[int(entry)] = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return parents


def descendants() -> set[int]:
    """Every process below this one, zombies included; not what multiprocessing keeps for the whole run."""
    parents = processes()
    found = {os.getpid()}
    while new := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= new
    return {pid for pid in found - {os.getpid()} if not _is_resource_tracker(pid)}


def _is_resource_tracker(pid: int) -> bool:
    try:
        return b"multiprocessing.resource_tracker" in Path("/proc", str(pid), "cmdline").read_bytes()
    except OSError:
        return False


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
