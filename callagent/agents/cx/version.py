"""One version of an app: makes an agent of it for each call."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypedDict, Unpack

from callagent.agents.cx.description import describe_app
from callagent.agents.cx.engine import (
    CxAgent,
    CxCode,
    Stage,
    app_tools,
    build_tree,
    call_settings,
    read_uui,
    recording_place,
)
from callagent.agents.cx.format import CxApp, Recordings, Served, widgets_of
from callagent.agents.cx.guardrails import Gate
from callagent.agents.protocol import MetricWriter
from callagent.agents.tree import (
    Conversation,
    DescribedProject,
    LlmNode,
    ModelRequest,
    SharedState,
    State,
    Tool,
    TreeSettings,
    WorkerClient,
)
from callagent.call_info import CallInfo
from callagent.models.protocol import LanguageModel, for_call
from callagent.workers.protocol import Lease, WorkerPool

Mocks = Mapping[str, Sequence[Mapping[str, Any]]]
"""What tools answer in the place of their own, by name and in order; the last one again and again."""


class OpenOptions(TypedDict, total=False):
    """Of an agent that is opened for a session or a test."""

    variables: Mapping[str, Any] | None
    """Of the session."""
    fakes: bool
    """The app's fakes are in the place of its tools."""
    mocks: Mocks | None
    """What tools answer instead, before any fake."""
    clients: bool
    """Whoever drives the agent carries out the app's client functions, and shows its widgets."""
    observe: Callable[[ModelRequest], None] | None
    """Is told of every request to the model."""


@dataclass(frozen=True, slots=True)
class _Made:
    """The app as its Python and its servers describe it."""

    described: Mapping[str, Any]
    """Declarations of tools by name."""
    tools: Mapping[str, Tool]
    root: LlmNode


class CxVersion:
    """Model and pool are shared with the other versions; whoever has them closes them."""

    def __init__(self, served: Served, model: LanguageModel, pool: WorkerPool, settings: TreeSettings) -> None:
        self.app: CxApp = served.app
        self.variant = served.variant
        """How records call it where not all calls get the same app."""
        self._deployment = served.deployment
        self._model = model
        self._pool = pool
        own = call_settings(self.app)
        self.settings = replace(
            settings,
            parallel_tools=self.app.data.get("toolExecutionMode") != "SEQUENTIAL",
            fallback_utterance=own.fallback or settings.fallback_utterance,
        )
        self._recordings = Recordings(self.app.files)
        ask = partial(describe_app, pool, self.variant, self._deployment)
        self._description = DescribedProject(f"The app '{self.app.name}'", ask, self._made_of)

    async def prepare(self) -> LlmNode:
        """The tree, with the app's Python run once. Raises `ProjectError` and `WorkerError`."""
        return (await self._description.get()).root

    def _made_of(self, answer: Mapping[str, Any]) -> _Made:
        described = answer["tools"]
        return _Made(described, app_tools(self.app, described), build_tree(self.app, described))

    async def open(self, info: CallInfo, write_metric: MetricWriter, **options: Unpack[OpenOptions]) -> CxAgent:
        made = await self._description.get()
        root = build_tree(self.app, made.described, clients=True) if options.get("clients") else made.root
        context = {
            "variant": self.variant,
            "deployment": self._deployment,
            "session_id": info.call_id,
            "app_id": self.app.name,
            "language_code": self.app.language,
            "use_tool_fakes": options.get("fakes", False),
            "mocks": {name: list(answers) for name, answers in (options.get("mocks") or {}).items()},
        }
        lease = await self._pool.lease(context)
        variables = options.get("variables") or {}
        state = State({**copy.deepcopy(dict(self.app.variables)), **telephony_variables(info), **variables})
        conversation = Conversation(root, state, SharedState(), "", time.time)
        stage = Stage(write_metric, self._recordings)
        worker = self._worker(lease, conversation, context)
        model = for_call(self._model)
        gate = Gate(worker, conversation, model)
        widgets = widgets_of(self.app) if options.get("clients") else {}
        code = CxCode(self.app, worker, conversation, gate, stage, made.tools, widgets)
        return CxAgent(
            self.app,
            conversation,
            code,
            stage,
            model,
            self.settings,
            options.get("observe"),
            recording=recording_place(self.app, info),
            variant=self.variant,
        )

    def _worker(self, lease: Lease, conversation: Conversation, context: dict[str, Any]) -> WorkerClient:
        settings = self.settings
        return WorkerClient(
            lease,
            conversation,
            settings.function_timeout,
            settings.agent_timeout,
            partial(self._pool.lease, context),
            tool_timeout=settings.tool_timeout,
            # Each worker begins with the first of a tool's mocks: what is mocked takes its turn.
            parallel_in_spares=settings.parallel_tools and not context["mocks"],
        )

    async def close(self) -> None:
        await self._description.close()


def telephony_variables(info: CallInfo) -> dict[str, Any]:
    """What the platform tells an app of its caller."""
    x_headers = {name: value for name, value in info.headers.items() if name.lower().startswith("x-")}
    uui = next((value for name, value in info.headers.items() if name.lower() == "user-to-user"), "")
    return {"telephony-caller-id": info.caller or "", "x-headers": x_headers, "uui-headers": read_uui(uui)}
