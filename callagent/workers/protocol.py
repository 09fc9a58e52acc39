"""The contract between an engine, the processes that run project code, and what runs inside of them.

A worker holds one call's live objects (`conv` and its state) from the start function to the end function. Requests and
answers are plain data (what msgpack can carry: None, bool, int, float, str, bytes, list, dict with str keys). `Lease`
and `WorkerPool` are the engine's side; `Runtime`, `Session` and `Channel` are the side of the worker.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from callagent.errors import WorkerError

Plain = dict[str, Any]
OnMessage = Callable[[Plain], Awaitable[Any] | None]
"""Called on the loop, in order, with each message that the running code sends (a metric, a log line). When the
message has `"ask": True` the returned awaitable's result is sent back to the waiting code (`prompt_llm`)."""


@dataclass(frozen=True, slots=True)
class ProjectRuntime:
    """What a worker loads: one project, run by one kind of runtime."""

    runtime: str
    """`package.module:Class` in the child; `Class(project: Path)` imports the project, `open(context, checkpoint,
    channel)` makes a call's session, `session.handle(request) -> answer` runs one request."""
    project: Path
    folder: Path | None = None
    """What the project's code may read where that is more than `project`."""

    @property
    def readable(self) -> Path:
        return (self.folder or self.project).resolve()


class Lease(Protocol):
    """One call's worker."""

    async def run(self, request: Plain, *, timeout: float, on_message: OnMessage) -> Plain:
        """Run one request, one at a time. An answer's `"checkpoint"` (`{key: bytes | None}`, None deletes) is taken
        out and merged into what a replacement starts from.

        Raises `FunctionTimeout` when `timeout` seconds have passed (the process is killed) and `WorkerDied` when the
        process ended. After either the lease is usable again: a new process starts from the last checkpoint.
        """

    async def close(self) -> None:
        """Give the process back; it ends. Idempotent."""


class WorkerPool(Protocol):
    """The workers of one project."""

    async def lease(self, context: Plain) -> Lease:
        """A worker for one call; `context` is what `open()` receives."""

    async def close(self) -> None: ...


class AskFailed(WorkerError):
    """The core could not answer what the running code asked; the text is the core's."""


class Channel(Protocol):
    """The running code's way to the core. Both may be called from any thread of the worker."""

    def send(self, message: Plain) -> None:
        """Hand a message over; order is kept, no answer is awaited."""

    def ask(self, message: Plain) -> Any:
        """Hand a message with `"ask": True` over and wait for the answer. Raises `AskFailed`."""


class Session(Protocol):
    """One call's live objects."""

    def handle(self, request: Plain) -> Plain: ...


class Runtime(Protocol):
    """A project, imported once per process; `Runtime(project)` does it."""

    def open(self, context: Plain, checkpoint: Mapping[str, bytes], channel: Channel) -> Session: ...


def find_runtime(runtime: ProjectRuntime) -> Callable[[], Runtime]:
    """Import the runtime's class. Calling what is returned imports the project."""
    module, _, name = runtime.runtime.partition(":")
    return partial(getattr(importlib.import_module(module), name), runtime.project)


def merge_checkpoint(checkpoint: dict[str, bytes], changes: Mapping[str, bytes | None]) -> None:
    """Apply an answer's changes: bytes replace a key, None deletes it."""
    for key, value in changes.items():
        if value is None:
            checkpoint.pop(key, None)
        else:
            checkpoint[key] = value
