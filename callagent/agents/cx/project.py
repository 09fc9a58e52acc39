"""A loaded app, in one version or several: makes one agent per call."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from callagent.agents.cx.engine import CxAgent, render
from callagent.agents.cx.format import Exported, app_folder, draw, read_export
from callagent.agents.cx.version import CxVersion, Mocks, OpenOptions
from callagent.agents.kernel import PromptPosition
from callagent.agents.protocol import MetricWriter
from callagent.agents.tree import LlmNode, TreeSettings, tree_places
from callagent.call_info import CallInfo
from callagent.errors import ProjectError
from callagent.models.protocol import LanguageModel
from callagent.workers.protocol import ProjectRuntime, WorkerPool

RUNTIME = "callagent.agents.cx.runtime:CxRuntime"


class UnknownDeployment(ProjectError):
    """The app has no such deployment."""


class CxProject:
    """Implements `agents.protocol.AgentProject`. It closes the pool, which serves it alone; the model is shared.

    Where traffic is split, each call gets one of several versions; elsewhere the first stands for all.
    """

    def __init__(self, exported: Exported, model: LanguageModel, pool: WorkerPool, settings: TreeSettings) -> None:
        """Raises `ProjectError` listing everything that is wrong with the app's files."""
        self._exported = exported
        self._served = served = exported.load()
        self._make_other = partial(CxProject, model=model, pool=pool, settings=settings)
        self._versions = {each.variant: CxVersion(each, model, pool, settings) for each in served}
        self._first = self._versions[served[0].variant]
        self._settings = self._first.settings
        self._pool = pool
        self._deployments = exported.deployments()
        self._deployed: dict[str, CxProject] = {}
        """Other deployments, which sessions have named."""
        self._one_at_a_time = asyncio.Lock()
        self.app = self._first.app
        self.name = self.app.name

    async def prepare(self) -> LlmNode:
        """The first version's tree, with the Python of all run once. Raises `ProjectError` and `WorkerError`."""
        first, *_ = [await each.prepare() for each in self._versions.values()]
        return first

    async def deployed(self, named: str) -> CxProject:
        """What a deployment of the app serves, ready for calls; closed with this one.

        `named`: its folder, the last part of its resource name, or its display name. Raises `UnknownDeployment`;
        `ProjectError` and `WorkerError` for one that cannot be served.
        """
        folder = self._deployments.get(named) if named else None
        if folder is None:
            known = ", ".join(dict.fromkeys(self._deployments.values())) or "none"
            raise UnknownDeployment(f"the app '{self.name}' has no deployment '{named}'; it has: {known}")
        if folder == self._exported.deployment:
            return self
        async with self._one_at_a_time:
            if folder not in self._deployed:
                # Reading a large app would hold up the calls.
                project = await asyncio.to_thread(self._make_other, replace(self._exported, deployment=folder))
                project.name = self.name
                await project.prepare()
                self._deployed[folder] = project
            return self._deployed[folder]

    def phrases(self) -> Sequence[str]:
        texts = (self._settings.fallback_utterance, self._settings.hangup_utterance)
        return [text for text in texts if text]

    def pronounce(self, text: str, language: str | None) -> str:
        """The format has no rules of pronunciation."""
        return text

    async def prompt_positions(
        self, at: datetime | None = None, state: Mapping[str, Any] | None = None
    ) -> list[PromptPosition]:
        variables = {**self.app.variables, **(state or {})}
        root = await self._first.prepare()
        return list(tree_places(root, variables, lambda node: render(self.app, node.name, variables)))

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> CxAgent:
        return await self.open_with(info, write_metric)

    async def open_with(self, info: CallInfo, write_metric: MetricWriter, **options: Unpack[OpenOptions]) -> CxAgent:
        version = self._versions[draw(self._served, info.call_id).variant]
        return await version.open(info, write_metric, **options)

    @asynccontextmanager
    async def alone(self, variables: Mapping[str, Any], mocks: Mocks | None = None) -> AsyncIterator[CxAgent]:
        """An agent for a test: nobody calls."""

        async def write_metric(name: str, value: Any) -> None:
            """A test has no store."""

        info = CallInfo("test", "inbound", None, None, "text", datetime.now(UTC))
        agent = await self.open_with(info, write_metric, variables=variables, fakes=True, mocks=mocks)
        try:
            yield agent
        finally:
            await agent.close()

    def twin(self, variables: Mapping[str, Any], mocks: Mocks | None = None) -> CxTwin:
        """The app with variables of its calls, and fakes and mocks in the place of tools."""
        return CxTwin(self, variables, mocks)

    async def close(self) -> None:
        for project in (self, *self._deployed.values()):
            await project.close_versions()
        await self._pool.close()

    async def close_versions(self) -> None:
        """Of a deployment: the pool is the project's."""
        for version in self._versions.values():
            await version.close()


class CxTwin:
    """Implements `agents.protocol.AgentProject` for tests; the project itself is closed by who opened it."""

    def __init__(self, project: CxProject, variables: Mapping[str, Any], mocks: Mocks | None) -> None:
        self.name = project.name
        self._project = project
        self._variables = variables
        self._mocks = mocks

    def phrases(self) -> Sequence[str]:
        return self._project.phrases()

    def pronounce(self, text: str, language: str | None) -> str:
        return self._project.pronounce(text, language)

    async def prompt_positions(
        self, at: datetime | None = None, state: Mapping[str, Any] | None = None
    ) -> list[PromptPosition]:
        return await self._project.prompt_positions(at, {**self._variables, **(state or {})})

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> CxAgent:
        return await self._project.open_with(
            info, write_metric, variables=self._variables, fakes=True, mocks=self._mocks
        )

    async def close(self) -> None:
        """Nothing is its own."""


def cx_runtime(path: Path) -> ProjectRuntime:
    """What a worker pool for the app in `path` loads."""
    return ProjectRuntime(RUNTIME, path, app_folder(path))


def load_cx_app(path: Path, model: LanguageModel, pool: WorkerPool, settings: TreeSettings | None = None) -> CxProject:
    """Raises `ProjectError` listing everything that is wrong with the app's files."""
    return CxProject(read_export(path), model, pool, settings or TreeSettings())
