"""A loaded app, which opens an agent for each call; a deployment may split its traffic between versions."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TypedDict, Unpack

from callagent.agents import tree
from callagent.agents.cx import engine, format
from callagent.agents.cx.guardrails import GuardrailChecker
from callagent.agents.kernel import Finding
from callagent.agents.protocol import MetricWriter, ProjectGraph, PromptPosition
from callagent.call_info import CallInfo
from callagent.errors import ProjectError, WorkerError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, object_at
from callagent.models import LanguageModel, for_call
from callagent.workers import Lease, ProjectRuntime, WorkerPool

RUNTIME = "callagent.agents.cx.runtime:CxRuntime"
Mocks = Mapping[str, Sequence[JsonObject]]
"""Tool name -> answers in place of the tool's own, in order; the last one is repeated."""


class OpenOptions(TypedDict, total=False):
    """Options of an agent that is opened for a session or a test."""

    variables: JsonObject | None
    """Variables of the session, which replace the app's defaults."""
    fakes: bool
    """Whether the app's fakes run in place of its tools (`toolFakeConfig`)."""
    mocks: Mocks | None
    """Answers in place of tools; they take precedence over fakes."""
    clients: bool
    """Whether a client carries out the app's client functions and shows its widgets."""
    observe: Callable[[tree.ModelRequest], None] | None
    """A function that is called with every request to the model."""


@dataclass(frozen=True, slots=True)
class _DescribedApp:
    """An app with the descriptions of its Python tools and of its tool servers' tools."""

    described: JsonObject
    """Declarations by name of Python tools and of MCP tools (Model Context Protocol)."""
    tools: Mapping[str, tree.Tool]
    root: tree.LlmNode


class CxVersion:
    """One version of an app. Model and worker pool are shared with the other versions and closed by their owner."""

    def __init__(
        self, served: format.ServedApp, model: LanguageModel, pool: WorkerPool, settings: tree.TreeSettings
    ) -> None:
        self.app: format.CxApp = served.app
        self.variant = served.variant
        """The version's name in records; empty where all calls get the same version."""
        self._deployment = served.deployment
        self._model = model
        self._pool = pool
        call_settings = engine.read_call_settings(self.app)
        self.settings = replace(
            settings,
            parallel_tools=self.app.data.get("toolExecutionMode") != "SEQUENTIAL",
            fallback_utterance=call_settings.fallback or settings.fallback_utterance,
        )
        self._recordings = format.Recordings(self.app.files)
        describe = partial(describe_app, pool, self.variant, self._deployment)
        self._description = tree.DescribedProject(f"The app '{self.app.name}'", describe, self._build)

    async def prepare(self) -> tree.LlmNode:
        """Run the app's Python once and return the tree. Raises `ProjectError` and `WorkerError`."""
        return (await self._description.get()).root

    def _build(self, answer: JsonObject) -> _DescribedApp:
        described = object_at(answer, "tools")
        return _DescribedApp(described, engine.app_tools(self.app, described), engine.build_tree(self.app, described))

    async def open(self, info: CallInfo, write_metric: MetricWriter, **options: Unpack[OpenOptions]) -> engine.CxAgent:
        """Lease a worker and return the agent of one call."""
        app = await self._description.get()
        # Client functions and widgets need a tree of their own; all other calls share a tree.
        root = engine.build_tree(self.app, app.described, clients=True) if options.get("clients") else app.root
        context: MutableJsonObject = {
            "variant": self.variant,
            "deployment": self._deployment,
            "session_id": info.call_id,
            "app_id": self.app.name,
            "language_code": self.app.language,
            "use_tool_fakes": options.get("fakes", False),
            "mocks": {name: list(answers) for name, answers in (options.get("mocks") or {}).items()},
        }
        # A replacement of this worker is leased with the same context, so that it has the same version and mocks.
        lease = await self._pool.lease(context)
        variables = options.get("variables") or {}
        # A copy of the defaults, because all calls share the app and code changes values in place.
        state = tree.State({**copy.deepcopy(dict(self.app.variables)), **engine.telephony_variables(info), **variables})
        conversation = tree.Conversation(root, state, tree.SharedState(), "", time.time)
        effects = engine.TurnEffects(write_metric, self._recordings)
        worker = self._worker(lease, conversation, context)
        model = for_call(self._model)
        guardrail_checker = GuardrailChecker(worker, conversation, model)
        widgets = format.widgets_of(self.app) if options.get("clients") else {}
        code = engine.PlatformCode(self.app, worker, conversation, guardrail_checker, effects, app.tools, widgets)
        return engine.CxAgent(
            self.app,
            conversation,
            code,
            effects,
            model,
            self.settings,
            options.get("observe"),
            recording=engine.recording_folder(self.app, info),
            variant=self.variant,
        )

    def _worker(self, lease: Lease, conversation: tree.Conversation, context: MutableJsonObject) -> tree.WorkerClient:
        settings = self.settings
        return tree.WorkerClient(
            lease,
            conversation,
            settings.function_timeout,
            settings.agent_timeout,
            partial(self._pool.lease, context),
            tool_timeout=settings.tool_timeout,
            # Each parallel worker would begin with a tool's first mock; one worker returns the mocks in order.
            parallel_in_spares=settings.parallel_tools and not context["mocks"],
        )

    async def close(self) -> None:
        await self._description.close()


class UnknownDeployment(ProjectError):
    """The app has no deployment of this name."""


class CxProject:
    """The `agents.protocol.AgentProject` of an app.

    Where traffic is split, each call gets one of several versions; otherwise there is one version. The project owns the
    worker pool and closes it; the model is shared with other projects.
    """

    def __init__(
        self, exported: format.AppExport, model: LanguageModel, pool: WorkerPool, settings: tree.TreeSettings
    ) -> None:
        """Load the served versions. Raises `ProjectError` that lists all errors in their files."""
        self._exported = exported
        self._served = served = exported.load()
        self._make_project = partial(CxProject, model=model, pool=pool, settings=settings)
        self._versions = {each.variant: CxVersion(each, model, pool, settings) for each in served}
        self._first_version = self._versions[served[0].variant]
        self._settings = self._first_version.settings
        self._pool = pool
        self._deployments = exported.deployments()
        self._deployed: dict[str, CxProject] = {}
        """Projects of other deployments, each loaded when a session first names it."""
        self.deployment_of: CxProject | None = None
        """The project that was asked for this deployment; None for a project that was opened by itself."""
        self._deployment_lock = asyncio.Lock()
        self.app = self._first_version.app
        self.name = self.app.name

    async def prepare(self) -> tree.LlmNode:
        """Run the Python of all versions once and return the first version's tree.

        Raises `ProjectError` and `WorkerError`.
        """
        first, *_ = [await each.prepare() for each in self._versions.values()]
        return first

    async def deployed(self, named: str) -> CxProject:
        """Return the project of a deployment of the app, ready for calls; it is closed with this one.

        `named`: its folder, the last part of its resource name, or its display name. Raises `UnknownDeployment`, and
        `ProjectError` and `WorkerError` for a deployment that cannot be served.
        """
        folder = self._deployments.get(named) if named else None
        if folder is None:
            known = ", ".join(dict.fromkeys(self._deployments.values())) or "none"
            raise UnknownDeployment(f"the app '{self.name}' has no deployment '{named}'; it has: {known}")
        if folder == self._exported.deployment:
            return self
        # If two sessions name a deployment at the same time, the second waits until the first has loaded it.
        async with self._deployment_lock:
            if folder not in self._deployed:
                # In a thread, because reading a large app would interrupt the audio of running calls.
                project = await asyncio.to_thread(self._make_project, replace(self._exported, deployment=folder))
                # The records of all deployments have the app's name.
                project.name = self.name
                project.deployment_of = self
                await project.prepare()
                self._deployed[folder] = project
            return self._deployed[folder]

    def graph(self) -> ProjectGraph:
        return ProjectGraph()

    def real_time_folder(self, environment: str) -> None:
        return None

    def phrases(self) -> Sequence[str]:
        texts = (self._settings.fallback_utterance, self._settings.hangup_utterance)
        return [text for text in texts if text]

    def pronounce(self, text: str, language: str | None) -> str:
        """Return the text as it is: the format has no rules of pronunciation."""
        return text

    async def prompt_positions(
        self, at: datetime | None = None, state: JsonObject | None = None
    ) -> list[PromptPosition]:
        variables = {**self.app.variables, **(state or {})}
        root = await self._first_version.prepare()
        # Where traffic is split, the positions are those of the first version.
        return list(
            tree.tree_prompt_positions(
                root, variables, lambda node: engine.render_instruction(self.app, node.name, variables)
            )
        )

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> engine.CxAgent:
        return await self.open_with(info, write_metric)

    async def open_with(
        self, info: CallInfo, write_metric: MetricWriter, **options: Unpack[OpenOptions]
    ) -> engine.CxAgent:
        """Open an agent for a session or a test. The call's identifier alone decides the version."""
        version = self._versions[format.choose_version(self._served, info.call_id).variant]
        return await version.open(info, write_metric, **options)

    @asynccontextmanager
    async def open_for_test(self, variables: JsonObject, mocks: Mocks | None = None) -> AsyncIterator[engine.CxAgent]:
        """Open an agent without a call, with fakes and mocks in place of tools, and close it afterwards."""

        async def write_metric(name: str, value: JsonValue) -> None:
            """Drop the metric: a test has no store."""

        info = CallInfo("test", "inbound", None, None, "text", datetime.now(UTC))
        agent = await self.open_with(info, write_metric, variables=variables, fakes=True, mocks=mocks)
        try:
            yield agent
        finally:
            await agent.close()

    def for_test(self, variables: JsonObject, mocks: Mocks | None = None) -> CxTestProject:
        """Return the app for simulated calls: with these variables, and with fakes and mocks in place of tools."""
        return CxTestProject(self, variables, mocks)

    async def close(self) -> None:
        # The pool is closed last: its workers may still be connecting the versions' tool servers.
        for project in (self, *self._deployed.values()):
            await project.close_versions()
        await self._pool.close()

    async def close_versions(self) -> None:
        """Close each version, but not the worker pool."""
        for version in self._versions.values():
            await version.close()


class CxTestProject:
    """The app's project as simulated calls use it. The app itself stays open when this is closed."""

    def __init__(self, project: CxProject, variables: JsonObject, mocks: Mocks | None) -> None:
        self.name = project.name
        self._project = project
        self._variables = variables
        self._mocks = mocks

    async def prepare(self) -> None:
        """Do nothing: the project was prepared when it was opened."""

    def graph(self) -> ProjectGraph:
        return ProjectGraph()

    def real_time_folder(self, environment: str) -> None:
        return None

    def phrases(self) -> Sequence[str]:
        return self._project.phrases()

    def pronounce(self, text: str, language: str | None) -> str:
        return self._project.pronounce(text, language)

    async def prompt_positions(
        self, at: datetime | None = None, state: JsonObject | None = None
    ) -> list[PromptPosition]:
        return await self._project.prompt_positions(at, {**self._variables, **(state or {})})

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> engine.CxAgent:
        return await self._project.open_with(
            info, write_metric, variables=self._variables, fakes=True, mocks=self._mocks
        )

    async def close(self) -> None:
        """Close nothing: the app belongs to whoever opened it."""


def cx_runtime(path: Path) -> ProjectRuntime:
    """Return what a worker pool loads for the app in `path`."""
    return ProjectRuntime(RUNTIME, path, format.app_folder(path))


def load_cx_app(
    path: Path, model: LanguageModel, pool: WorkerPool, settings: tree.TreeSettings | None = None
) -> CxProject:
    """Load the app or deployment in `path`. Raises `ProjectError` that lists all errors in its files."""
    return CxProject(format.read_export(path), model, pool, settings or tree.TreeSettings())


async def describe_app(pool: WorkerPool, variant: str = "", deployment: str = "") -> tree.ProjectDescription:
    """Run an app's Python once in a worker, for `check` and before the first call. Raises `WorkerError`.

    The answer has `tools`, declarations by tool name, and `places`, the folder of each served version by variant.
    Findings have their check rules.

    Args:
        variant: the version to describe; empty: the first.
        deployment: the deployment that serves it; empty: the one with which the project was opened.
    """
    # The worker reports each file before it runs it: if the process ends, the last report names the file at fault.
    reports: list[tuple[str, int]] = []
    try:
        context = {"variant": variant, "deployment": deployment}
        described = await tree.describe(pool, lambda file, line: reports.append((file, line)), context)
    except WorkerError as error:
        if not reports:
            raise
        message = (
            f"the file's Python ends its process or does not return, when it is run before the first call: {error}"
        )
        return tree.ProjectDescription(
            {"tools": {}}, [Finding(*reports[-1], message, format.CheckRule.ENDLESS.value)], []
        )
    errors = [replace(each, rule=_error_rule(each).value) for each in described.errors]
    return tree.ProjectDescription(
        described.answer, errors, [replace(each, rule=format.CheckRule.AWAY.value) for each in described.unreachable]
    )


def _error_rule(failure: Finding) -> format.CheckRule:
    ends = failure.message.startswith(("SystemExit", "OutOfTime", "KeyboardInterrupt"))
    return format.CheckRule.ENDLESS if ends else format.CheckRule.FAILS
