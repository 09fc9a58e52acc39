"""A loaded app: one agent per call, of one version or, where a deployment splits its traffic, of several."""

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
"""By tool name, the answers given in place of the tool's own, in order; the last one is repeated."""


class OpenOptions(TypedDict, total=False):
    """Options of an agent that is opened for a session or a test."""

    variables: JsonObject | None
    """Variables of the session, which win over the app's defaults."""
    fakes: bool
    """Use the app's fakes in place of its tools (`toolFakeConfig`)."""
    mocks: Mocks | None
    """Answers in place of tools; they go before fakes."""
    clients: bool
    """A client carries out the app's client functions and shows its widgets."""
    observe: Callable[[tree.ModelRequest], None] | None
    """Called with every request to the model."""


@dataclass(frozen=True, slots=True)
class _DescribedApp:
    """An app together with what its Python and its tool servers say of its tools."""

    described: JsonObject
    """Declarations of Python and MCP tools by name."""
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
        own = engine.read_call_settings(self.app)
        self.settings = replace(
            settings,
            parallel_tools=self.app.data.get("toolExecutionMode") != "SEQUENTIAL",
            fallback_utterance=own.fallback or settings.fallback_utterance,
        )
        self._recordings = format.Recordings(self.app.files)
        ask = partial(describe_app, pool, self.variant, self._deployment)
        self._description = tree.DescribedProject(f"The app '{self.app.name}'", ask, self._build)

    async def prepare(self) -> tree.LlmNode:
        """Run the app's Python once and return the tree. Raises `ProjectError` and `WorkerError`."""
        return (await self._description.get()).root

    def _build(self, answer: JsonObject) -> _DescribedApp:
        described = object_at(answer, "tools")
        return _DescribedApp(described, engine.app_tools(self.app, described), engine.build_tree(self.app, described))

    async def open(self, info: CallInfo, write_metric: MetricWriter, **options: Unpack[OpenOptions]) -> engine.CxAgent:
        """Lease a worker and make the agent of one call."""
        app = await self._description.get()
        # With a client the tree has tools that it has not on the telephone; without one all calls share a tree.
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
        # A worker that replaces this call's is leased with the same context, so it runs the same version and mocks.
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
            # Workers side by side would each begin with a tool's first mock; one worker goes through them in order.
            parallel_in_spares=settings.parallel_tools and not context["mocks"],
        )

    async def close(self) -> None:
        await self._description.close()


class UnknownDeployment(ProjectError):
    """The app has no deployment of this name."""


class CxProject:
    """The `agents.protocol.AgentProject` of an app.

    Where traffic is split, each call gets one of several versions; elsewhere there is one version for all. The project
    closes the worker pool, which is its own; the model is shared with other projects.
    """

    def __init__(
        self, exported: format.AppExport, model: LanguageModel, pool: WorkerPool, settings: tree.TreeSettings
    ) -> None:
        """Read what is served. Raises `ProjectError` that lists everything that is wrong with its files."""
        self._exported = exported
        self._served = served = exported.load()
        self._make_project = partial(CxProject, model=model, pool=pool, settings=settings)
        self._versions = {each.variant: CxVersion(each, model, pool, settings) for each in served}
        self._first = self._versions[served[0].variant]
        self._settings = self._first.settings
        self._pool = pool
        self._deployments = exported.deployments()
        self._deployed: dict[str, CxProject] = {}
        """Projects of other deployments, loaded when a session first named them."""
        self._deployment_lock = asyncio.Lock()
        self.app = self._first.app
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
        # Two sessions may name a deployment at the same time; the second waits for the first to load it.
        async with self._deployment_lock:
            if folder not in self._deployed:
                # In a thread: reading a large app takes long enough to be heard in running calls.
                project = await asyncio.to_thread(self._make_project, replace(self._exported, deployment=folder))
                # Records of all deployments stand under the app's name.
                project.name = self.name
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
        root = await self._first.prepare()
        # Where traffic is split, the first version stands for all.
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
        """Open an agent for a session or a test. The version depends on the call's identifier alone."""
        version = self._versions[format.choose_version(self._served, info.call_id).variant]
        return await version.open(info, write_metric, **options)

    @asynccontextmanager
    async def open_for_test(self, variables: JsonObject, mocks: Mocks | None = None) -> AsyncIterator[engine.CxAgent]:
        """Open an agent for a test without a call, with fakes and mocks in place of tools, and close it afterwards."""

        async def write_metric(name: str, value: JsonValue) -> None:
            """Drop the metric: a test has no store."""

        info = CallInfo("test", "inbound", None, None, "text", datetime.now(UTC))
        agent = await self.open_with(info, write_metric, variables=variables, fakes=True, mocks=mocks)
        try:
            yield agent
        finally:
            await agent.close()

    def for_test(self, variables: JsonObject, mocks: Mocks | None = None) -> CxTestProject:
        """Return the app with given variables in its calls, and with fakes and mocks in place of tools."""
        return CxTestProject(self, variables, mocks)

    async def close(self) -> None:
        # The pool last: versions may still be looking for tool servers in its workers.
        for project in (self, *self._deployed.values()):
            await project.close_versions()
        await self._pool.close()

    async def close_versions(self) -> None:
        """Close what each version holds, without the worker pool."""
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
    """Load the app or deployment in `path`. Raises `ProjectError` that lists all that is wrong with its files."""
    return CxProject(format.read_export(path), model, pool, settings or tree.TreeSettings())


async def describe_app(pool: WorkerPool, variant: str = "", deployment: str = "") -> tree.ProjectDescription:
    """Run an app's Python once in a worker: for `check`, and before the first call. Raises `WorkerError`.

    The answer has `tools`, their declarations by name, and `places`, the folder of each version that is served, by
    variant. Findings have their check rules.

    Args:
        variant: which version is described; empty: the first.
        deployment: the deployment that serves it; empty: the one that the project was opened with.
    """
    # The worker reports each file before it runs it: where the process ends, the last report says which file it was.
    begun: list[tuple[str, int]] = []
    try:
        context = {"variant": variant, "deployment": deployment}
        described = await tree.describe(pool, lambda file, line: begun.append((file, line)), context)
    except WorkerError as error:
        if not begun:
            raise
        message = (
            f"the file's Python ends its process or does not end when it is run, as before the first call: {error}"
        )
        return tree.ProjectDescription(
            {"tools": {}}, [Finding(*begun[-1], message, format.CheckRule.ENDLESS.value)], []
        )
    errors = [replace(each, rule=_rule_of(each).value) for each in described.errors]
    return tree.ProjectDescription(
        described.answer, errors, [replace(each, rule=format.CheckRule.AWAY.value) for each in described.unreachable]
    )


def _rule_of(failure: Finding) -> format.CheckRule:
    ends = failure.message.startswith(("SystemExit", "OutOfTime", "KeyboardInterrupt"))
    return format.CheckRule.ENDLESS if ends else format.CheckRule.FAILS
