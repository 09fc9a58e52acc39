"""A tree project as its own code describes it, for `check` and for models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from callagent.agents.kernel import Finding
from callagent.errors import ProjectError, WorkerError
from callagent.log import get_logger
from callagent.workers.protocol import WorkerPool

log = get_logger(__name__)
T = TypeVar("T")
DESCRIBE_TIMEOUT = 60.0
"""Seconds for a worker to import the project and describe it."""
AGAIN_SECONDS = 30.0
"""From one look for servers of tools that are away to the next, which a call that opens begins."""


@dataclass(frozen=True, slots=True)
class ProjectDescription:
    answer: Mapping[str, Any]
    errors: list[Finding]
    """What is wrong with the project's Python."""
    unreachable: list[Finding]
    """Sets of tools whose servers are away."""


async def describe(
    pool: WorkerPool,
    on_file: Callable[[str, int], None] | None = None,
    context: Mapping[str, Any] | None = None,
) -> ProjectDescription:
    """Raises `WorkerError`.

    `on_file` is told of each file before it is run, by workers that run them one by one, and of lines that hang.
    """

    def on_message(message: Mapping[str, Any]) -> None:
        # What modules print while they are imported is passed over.
        if on_file is not None and message.get("type") == "describing":
            on_file(str(message["file"]), int(message["line"]))

    lease = await pool.lease(dict(context or {}))
    try:
        answer = await lease.run({"op": "describe"}, timeout=DESCRIBE_TIMEOUT, on_message=on_message)
    finally:
        await lease.close()
    return ProjectDescription(answer, _findings(answer, "errors"), _findings(answer, "unreachable"))


def _findings(answer: Mapping[str, Any], key: str) -> list[Finding]:
    return [Finding(each["file"], each["line"], each["message"]) for each in answer.get(key) or ()]


class DescribedProject(Generic[T]):
    """What a project is made of by its description. It opens without the tools of servers that are away; they are
    looked for again, beside the calls, and the calls that open afterwards have them."""

    def __init__(
        self, name: str, ask: Callable[[], Awaitable[ProjectDescription]], build: Callable[[Mapping[str, Any]], T]
    ) -> None:
        """`ask`: raises `WorkerError`."""
        self._name = name
        self._ask = ask
        self._build = build
        self._made: T | None = None
        self._one_at_a_time = asyncio.Lock()
        self._look_at: float | None = None
        """When to look again; None: nothing is away."""
        self._looking: asyncio.Task[None] | None = None

    async def get(self) -> T:
        """Raises `ProjectError` and `WorkerError`, the first time only."""
        async with self._one_at_a_time:
            if self._made is None:
                self._made = await self._look()
        now = asyncio.get_running_loop().time()
        is_looking = self._looking is not None and not self._looking.done()
        if self._look_at is not None and now >= self._look_at and not is_looking:
            self._looking = asyncio.create_task(self._look_again())
        return self._made

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})

    async def _look(self) -> T:
        described = await self._ask()
        if described.errors:
            listed = "\n".join(f"  {error}" for error in described.errors)
            raise ProjectError(f"{self._name} cannot be loaded:\n{listed}")
        for each in described.unreachable:
            log.warning("toolset_unreachable", file=each.file, line=each.line, error=each.message)
        now = asyncio.get_running_loop().time()
        self._look_at = now + AGAIN_SECONDS if described.unreachable else None
        return self._build(described.answer)

    async def _look_again(self) -> None:
        try:
            self._made = await self._look()
        except (WorkerError, ProjectError) as error:
            log.warning("project_not_described", error=str(error))
            self._look_at = asyncio.get_running_loop().time() + AGAIN_SECONDS
