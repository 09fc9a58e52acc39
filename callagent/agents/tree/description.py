"""What a worker reports after it has imported the Python of a tree project: agents, tools and errors."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from callagent.agents.kernel import Finding
from callagent.agents.tree.events import PlainObject
from callagent.errors import ProjectError, WorkerError
from callagent.log import get_logger
from callagent.workers import WorkerPool

log = get_logger(__name__)
T = TypeVar("T")
DESCRIBE_TIMEOUT = 60.0
"""Seconds for a worker to import the project and describe it."""
RETRY_SECONDS = 30.0
"""Seconds after which unreachable tool servers may be tried again; the next call that opens starts the attempt."""


@dataclass(frozen=True, slots=True)
class ProjectDescription:
    """A worker's description of a project that it has imported."""

    answer: PlainObject
    """The worker's whole answer, whose fields depend on the project's format."""
    errors: list[Finding]
    """Errors in the project's Python."""
    unreachable: list[Finding]
    """Toolsets whose servers cannot be reached."""


async def describe(
    pool: WorkerPool,
    on_file: Callable[[str, int], None] | None = None,
    context: PlainObject | None = None,
) -> ProjectDescription:
    """Have a worker import the project and describe it. Raises `WorkerError`.

    `on_file` is called with each file and line that the worker is about to run, if it runs files one by one.
    """

    def on_message(message: PlainObject) -> None:
        # Other messages are what modules print while they are imported.
        if on_file is not None and message.get("type") == "describing":
            on_file(str(message["file"]), int(message["line"]))

    lease = await pool.lease(dict(context or {}))
    try:
        answer = await lease.run({"op": "describe"}, timeout=DESCRIBE_TIMEOUT, on_message=on_message)
    finally:
        await lease.close()
    return ProjectDescription(answer, _findings(answer, "errors"), _findings(answer, "unreachable"))


def _findings(answer: PlainObject, key: str) -> list[Finding]:
    return [Finding(each["file"], each["line"], each["message"]) for each in answer.get(key) or ()]


class DescribedProject(Generic[T]):
    """The format's tree of agents (`T`), built from a worker's description of the project.

    A project opens without the tools of unreachable servers. These are tried again while calls go on, and calls that
    open afterwards have the tools.
    """

    def __init__(
        self, name: str, ask: Callable[[], Awaitable[ProjectDescription]], build: Callable[[PlainObject], T]
    ) -> None:
        """`ask` gets the description and may raise `WorkerError`; `build` makes the tree from the worker's answer."""
        self._name = name
        self._ask_worker = ask
        self._build = build
        self._built: T | None = None
        self._lock = asyncio.Lock()
        self._retry_at: float | None = None
        """Loop time from which unreachable servers are tried again; None: none is unreachable."""
        self._retry: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Return the tree that was built last. Raises `ProjectError` and `WorkerError`, the first time only."""
        # Calls that come while the project is described for the first time wait for that one description.
        async with self._lock:
            if self._built is None:
                self._built = await self._describe()
        # In a task of its own, so that no call that opens waits for a server that does not answer.
        now = asyncio.get_running_loop().time()
        is_retrying = self._retry is not None and not self._retry.done()
        if self._retry_at is not None and now >= self._retry_at and not is_retrying:
            self._retry = asyncio.create_task(self._describe_again())
        return self._built

    async def close(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            await asyncio.wait({self._retry})

    async def _describe(self) -> T:
        described = await self._ask_worker()
        if described.errors:
            listed = "\n".join(f"  {error}" for error in described.errors)
            raise ProjectError(f"{self._name} cannot be loaded:\n{listed}")
        for each in described.unreachable:
            log.warning("toolset_unreachable", file=each.file, line=each.line, error=each.message)
        # Counted from the end of the attempt, because waiting for servers that do not answer takes time as well.
        now = asyncio.get_running_loop().time()
        self._retry_at = now + RETRY_SECONDS if described.unreachable else None
        return self._build(described.answer)

    async def _describe_again(self) -> None:
        try:
            self._built = await self._describe()
        except (WorkerError, ProjectError) as error:
            # The last description that succeeded stays in use.
            log.warning("project_not_described", error=str(error))
            self._retry_at = asyncio.get_running_loop().time() + RETRY_SECONDS
