"""A tree project as its own code describes it, for `check` and for models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from callagent.agents.finding import Finding
from callagent.workers.protocol import WorkerPool

DESCRIBE_TIMEOUT = 60.0
"""Seconds for a worker to import the project and describe it."""


async def describe(pool: WorkerPool) -> tuple[Mapping[str, Any], list[Finding]]:
    """What a worker answers, and what is wrong with the project's Python. Raises `WorkerError`."""
    lease = await pool.lease({})
    try:
        # What modules print while they are imported is passed over.
        answer = await lease.run({"op": "describe"}, timeout=DESCRIBE_TIMEOUT, on_message=lambda message: None)
    finally:
        await lease.close()
    return answer, [Finding(each["file"], each["line"], each["message"]) for each in answer["errors"]]
