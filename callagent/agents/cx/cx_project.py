"""A loaded app: makes one agent per call."""

from __future__ import annotations

import copy
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from callagent.agents.action import MetricWriter
from callagent.agents.cx.app import CxApp
from callagent.agents.cx.cx_agent import CxAgent, call_settings
from callagent.agents.cx.cx_code import CxCode
from callagent.agents.cx.deployments import Served, draw, load_served
from callagent.agents.cx.description import describe_app
from callagent.agents.cx.gate import Gate
from callagent.agents.cx.goldens import Mocks
from callagent.agents.cx.instruction import render
from callagent.agents.cx.recording_place import recording_place
from callagent.agents.cx.recordings import Recordings
from callagent.agents.cx.stage import Stage
from callagent.agents.cx.telephony import read_uui
from callagent.agents.cx.tree import app_tools, build_tree
from callagent.agents.place import Place
from callagent.agents.tree import (
    Conversation,
    LlmNode,
    ModelRequest,
    SharedState,
    State,
    Tool,
    TreeSettings,
    WorkerCode,
    tree_places,
)
from callagent.agents.tree.describe import Description
from callagent.call_info import CallInfo
from callagent.models.protocol import LanguageModel, for_call
from callagent.workers.protocol import ProjectRuntime, WorkerPool

RUNTIME = "callagent.agents.cx.runtime:CxRuntime"


@dataclass(frozen=True, slots=True)
class _Made:
    """The app as its Python and its servers describe it."""

    described: Mapping[str, Any]
    """Declarations of tools by name."""
    tools: Mapping[str, Tool]
    root: LlmNode


class CxProject:
    """Implements `agents.action.AgentProject`. It closes the pool, which serves it alone; the model is shared."""

    def __init__(
        self, app: CxApp, model: LanguageModel, pool: WorkerPool, settings: TreeSettings, variant: str = ""
    ) -> None:
        """`variant`: how records call it where not all calls get the same app."""
        self.name = app.name
        self._variant = variant
        self.app = app
        self._model = model
        self._pool = pool
        own = call_settings(app)
        self._settings = replace(
            settings,
            parallel_tools=app.data.get("toolExecutionMode") != "SEQUENTIAL",
            fallback_utterance=own.fallback or settings.fallback_utterance,
        )
        self._recordings = Recordings(app.files)
        self._description = Description(f"The app '{self.name}'", partial(describe_app, pool, variant), self._made_of)

    async def prepare(self) -> LlmNode:
        """The tree, with the app's Python run once. Raises `ProjectError` and `WorkerError`."""
        return (await self._description.get()).root

    def _made_of(self, answer: Mapping[str, Any]) -> _Made:
        described = answer["tools"]
        return _Made(described, app_tools(self.app, described), build_tree(self.app, described))

    def phrases(self) -> Sequence[str]:
        texts = (self._settings.fallback_utterance, self._settings.hangup_utterance)
        return [text for text in texts if text]

    def pronounce(self, text: str, language: str | None) -> str:
        """The format has no rules of pronunciation."""
        return text

    async def places(self, at: datetime | None = None, state: Mapping[str, Any] | None = None) -> list[Place]:
        variables = {**self.app.variables, **(state or {})}
        return list(tree_places(await self.prepare(), variables, lambda node: render(self.app, node.name, variables)))

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> CxAgent:
        return await self.open_with(info, write_metric)

    async def open_with(
        self,
        info: CallInfo,
        write_metric: MetricWriter,
        *,
        variables: Mapping[str, Any] | None = None,
        fakes: bool = False,
        mocks: Mocks | None = None,
        clients: bool = False,
        observe: Callable[[ModelRequest], None] | None = None,
    ) -> CxAgent:
        """As `open`, with variables of the session, and with the app's fakes in the place of its tools.

        `mocks`: what tools answer instead, before any fake.
        `clients`: whoever drives the agent carries out the app's client functions.
        `observe` is told of every request to the model.
        """
        made = await self._description.get()
        root = build_tree(self.app, made.described, clients=True) if clients else made.root
        context = {
            "variant": self._variant,
            "session_id": info.call_id,
            "app_id": self.name,
            "language_code": self.app.language,
            "use_tool_fakes": fakes,
            "mocks": {name: list(answers) for name, answers in (mocks or {}).items()},
        }
        lease = await self._pool.lease(context)
        state = State({**copy.deepcopy(dict(self.app.variables)), **telephony_variables(info), **(variables or {})})
        conversation = Conversation(root, state, SharedState(), "", time.time)
        stage = Stage(write_metric, self._recordings)
        settings = self._settings
        spare = partial(self._pool.lease, context)
        # Each worker begins with the first of a tool's mocks: what is mocked takes its turn.
        worker = WorkerCode(
            lease,
            conversation,
            settings.function_timeout,
            settings.agent_timeout,
            spare,
            tool_timeout=settings.tool_timeout,
            side_by_side=settings.parallel_tools and not mocks,
        )
        model = for_call(self._model)
        code = CxCode(self.app, worker, conversation, Gate(worker, conversation, model), stage, made.tools)
        place = recording_place(self.app, info)
        return CxAgent(
            self.app, conversation, code, stage, model, settings, observe, recording=place, variant=self._variant
        )

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
        await self._description.close()
        await self._pool.close()


class SplitProject(CxProject):
    """A deployment with split traffic: each call gets one of several versions; elsewhere the first stands for all."""

    def __init__(self, served: Sequence[Served], projects: Sequence[CxProject]) -> None:
        first = projects[0]
        super().__init__(first.app, first._model, first._pool, first._settings, first._variant)
        self._served = served
        self._projects = {each._variant: each for each in projects}

    async def prepare(self) -> LlmNode:
        first, *_ = [await each.prepare() for each in self._projects.values()]
        return first

    async def open_with(self, info: CallInfo, write_metric: MetricWriter, **options: Any) -> CxAgent:
        project = self._projects[draw(self._served, info.call_id).variant]
        return await project.open_with(info, write_metric, **options)

    async def close(self) -> None:
        for each in self._projects.values():
            await each._description.close()
        await super().close()


class CxTwin:
    """Implements `agents.action.AgentProject` for tests; the project itself is closed by who opened it."""

    def __init__(self, project: CxProject, variables: Mapping[str, Any], mocks: Mocks | None) -> None:
        self.name = project.name
        self._project = project
        self._variables = variables
        self._mocks = mocks

    def phrases(self) -> Sequence[str]:
        return self._project.phrases()

    def pronounce(self, text: str, language: str | None) -> str:
        return self._project.pronounce(text, language)

    async def places(self, at: datetime | None = None, state: Mapping[str, Any] | None = None) -> list[Place]:
        return await self._project.places(at, {**self._variables, **(state or {})})

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> CxAgent:
        return await self._project.open_with(
            info, write_metric, variables=self._variables, fakes=True, mocks=self._mocks
        )

    async def close(self) -> None:
        """Nothing is its own."""


def telephony_variables(info: CallInfo) -> dict[str, Any]:
    """What the platform tells an app of its caller."""
    x_headers = {name: value for name, value in info.headers.items() if name.lower().startswith("x-")}
    uui = next((value for name, value in info.headers.items() if name.lower() == "user-to-user"), "")
    return {"telephony-caller-id": info.caller or "", "x-headers": x_headers, "uui-headers": read_uui(uui)}


def cx_runtime(path: Path) -> ProjectRuntime:
    """What a worker pool for the app in `path` loads."""
    return ProjectRuntime(RUNTIME, path)


def load_cx_app(path: Path, model: LanguageModel, pool: WorkerPool, settings: TreeSettings | None = None) -> CxProject:
    """Raises `ProjectError` listing everything that is wrong with the app's files."""
    served, settings = load_served(path), settings or TreeSettings()
    projects = [CxProject(each.app, model, pool, settings, each.variant) for each in served]
    return projects[0] if len(projects) == 1 else SplitProject(served, projects)
