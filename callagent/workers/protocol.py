"""What an engine asks of the processes that run project code.

A worker holds one call's live objects (`conv` and its state) from the start function to the end function. Requests and
answers are plain data (what msgpack can carry: None, bool, int, float, str, bytes, list, dict with str keys).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

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
