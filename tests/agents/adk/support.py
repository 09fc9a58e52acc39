"""Small projects, and agents driven turn by turn."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callagent.agents import Agent
from callagent.agents.adk import adk_runtime, load_adk_project
from callagent.agents.tree import TreeSettings
from callagent.testing.in_process import InProcessPool
from callagent.workers.protocol import ProjectRuntime, WorkerPool
from tests.agents.driving import DrivenAgent
from tests.agents.flows.support import call_info, scripted

PROJECTS = Path(__file__).parents[2] / "projects"


def write_project(root: Path, files: Mapping[str, str]) -> Path:
    """A project folder `root/agency` from `path: text`."""
    project = root / "agency"
    for name, text in files.items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return project


Driven = DrivenAgent[Agent]


@asynccontextmanager
async def driven(
    project: Path,
    *entries: Mapping[str, Any],
    settings: TreeSettings | None = None,
    make_pool: Callable[[ProjectRuntime], WorkerPool] = InProcessPool,
) -> AsyncIterator[Driven]:
    """An agent of the project with a scripted model."""
    model = scripted(*entries)
    loaded = load_adk_project(project, model, make_pool(adk_runtime(project)), settings)

    async def write_metric(name: str, value: Any) -> None:
        raise AssertionError(f"nobody writes metrics here: {name}")

    agent = await loaded.open(call_info(), write_metric)
    try:
        yield Driven(agent, model)
    finally:
        await agent.close()
        await loaded.close()
