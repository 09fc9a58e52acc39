"""An agent-config project as an `agents.protocol.AgentProject`, and its check with or without running its Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path

import msgspec

from callagent.agents import tree
from callagent.agents.adk import config_keys as keys
from callagent.agents.adk.agent_config import AgentConfig, load_config
from callagent.agents.kernel import CheckReport, Findings
from callagent.agents.protocol import MetricWriter, ProjectGraph, PromptPosition
from callagent.call_info import CallInfo
from callagent.errors import ProjectError
from callagent.models import LanguageModel, for_call
from callagent.workers import ProjectRuntime, WorkerPool

RUNTIME = "callagent.agents.adk.runtime:AdkRuntime"


class AdkProject:
    """The `AgentProject` of agent-config files. It owns its worker pool and closes it; the model is shared."""

    def __init__(
        self, path: Path, config: AgentConfig, model: LanguageModel, pool: WorkerPool, settings: tree.TreeSettings
    ) -> None:
        self.name = path.resolve().name
        self.config = config
        self.shared = tree.SharedState()
        self._model = model
        self._pool = pool
        self._settings = settings
        self._description = tree.DescribedProject(
            f"The project in {path}", partial(tree.describe, pool), _described_tree
        )

    async def prepare(self) -> tree.Node:
        """Return the tree of agents, importing the project's Python the first time.

        Raises `ProjectError` and `WorkerError`.
        """
        return await self._description.get()

    def graph(self) -> ProjectGraph:
        return ProjectGraph()

    def real_time_folder(self, environment: str) -> None:
        return None

    def phrases(self) -> Sequence[str]:
        settings = self._settings
        texts = (settings.greeting, settings.fallback_utterance, settings.hangup_utterance)
        return [text for text in texts if text]

    def pronounce(self, text: str, language: str | None) -> str:
        """Return the text unchanged: the format has no rules of pronunciation."""
        return text

    async def prompt_positions(
        self, at: datetime | None = None, state: Mapping[str, object] | None = None
    ) -> list[PromptPosition]:
        return list(tree.tree_prompt_positions(await self.prepare(), state or {}))

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> tree.TreeAgent:
        return await self.open_observed(info, None)

    async def open_observed(
        self, info: CallInfo, observe: Callable[[tree.ModelRequest], None] | None
    ) -> tree.TreeAgent:
        """Open as `open` does; `observe` is called with every request to the model."""
        root = await self.prepare()
        user = info.caller or ""
        # Nothing outlives the call of a caller without a number: `SharedState` keeps no keys and no artifacts for "".
        lease = await self._pool.lease({"id": info.call_id, "user_id": user, "app_name": self.name})
        conversation = tree.Conversation(root, tree.State(self.shared.initial_values(user)), self.shared, user)
        settings = self._settings
        code = tree.WorkerClient(lease, conversation, settings.function_timeout, settings.agent_timeout)
        options = {} if observe is None else {"observe": observe}
        return tree.TreeAgent(self.name, conversation, code, for_call(self._model), self._settings, **options)

    async def close(self) -> None:
        await self._description.close()
        await self._pool.close()


def adk_runtime(path: Path) -> ProjectRuntime:
    """Return the runtime that a worker pool loads for the project in `path`."""
    return ProjectRuntime(RUNTIME, path)


def load_adk_project(
    path: Path, model: LanguageModel, pool: WorkerPool, settings: tree.TreeSettings | None = None
) -> AdkProject:
    """Load a project. Raises `ProjectError`, which lists everything that is wrong with the project's files."""
    findings = Findings()
    config = load_config(path, findings)
    errors = findings.report().errors
    if config is None or errors:
        listed = "\n".join(f"  {error}" for error in errors)
        raise ProjectError(f"The project in {path} cannot be loaded:\n{listed}")
    return AdkProject(path, config, model, pool, settings or tree.TreeSettings())


# The description comes from a worker, in which the project's code runs: `msgspec.convert` checks every type in it.


class DescribedTool(msgspec.Struct):
    """A tool as `runtime.description` describes it."""

    name: str
    kind: str
    """The value of a `ToolKind`."""
    description: str | None = None
    parameters: dict[str, object] | None = None
    long_running: bool = False
    timeout: float | None = None
    agent: DescribedAgent | None = None
    skip_summarization: bool = False
    text: str = ""
    adds: str = ""
    """The value of an `AddedContent`; empty: nothing."""
    remembers: bool = False
    options: dict[str, object] = {}


class DescribedAgent(msgspec.Struct):
    """An agent as `runtime.description` describes it.

    Only `loop` agents have `max_iterations`, and only `llm` agents have the fields after it.
    """

    number: int
    kind: str
    name: str
    description: str
    callbacks: dict[str, int]
    """The number of functions by the value of a `CallbackPoint`."""
    children: list[DescribedAgent]
    max_iterations: int | None = None
    instruction: str | None = None
    static_instruction: str = ""
    model: str = ""
    temperature: float | None = None
    max_tokens: int | None = None
    sampling: dict[str, object] = {}
    safety: dict[str, str] = {}
    json_output: bool = False
    output_key: str = ""
    output_schema: dict[str, object] | None = None
    input_schema: dict[str, object] | None = None
    has_history: bool = True
    can_transfer_to_parent: bool = True
    can_transfer_to_peers: bool = True
    tools: list[DescribedTool] = []


_NODE_CLASSES: dict[str, type[tree.Node]] = {
    "sequential": tree.SequentialNode,
    "parallel": tree.ParallelNode,
    "code": tree.CodeNode,
}


def _described_tree(answer: Mapping[str, object]) -> tree.Node:
    return build_tree(msgspec.convert(answer["root"], DescribedAgent))


def build_tree(described: DescribedAgent) -> tree.Node:
    """Build the tree of agents from the description of its root."""
    children = tuple(build_tree(child) for child in described.children)
    callbacks = {tree.CallbackPoint(point): count for point, count in described.callbacks.items()}
    # The node's constructor makes it the parent of its children: `children` were built before it.
    match described.kind:
        case "llm":
            return _llm_node(described, children, callbacks)
        case "loop":
            node: tree.Node = tree.LoopNode(
                name=described.name, max_iterations=described.max_iterations, children=children
            )
        case kind:
            node = _NODE_CLASSES[kind](name=described.name, children=children)
    node.description, node.callbacks, node.code = described.description, callbacks, described.number
    return node


def _llm_node(
    described: DescribedAgent, children: tuple[tree.Node, ...], callbacks: Mapping[tree.CallbackPoint, int]
) -> tree.LlmNode:
    return tree.LlmNode(
        name=described.name,
        description=described.description,
        children=children,
        callbacks=callbacks,
        code=described.number,
        instruction=described.instruction,
        static_instruction=described.static_instruction,
        model=described.model,
        temperature=described.temperature,
        max_tokens=described.max_tokens,
        sampling=described.sampling,
        safety=described.safety,
        json_output=described.json_output,
        output_key=described.output_key,
        output_schema=described.output_schema,
        input_schema=described.input_schema,
        has_history=described.has_history,
        can_transfer_to_parent=described.can_transfer_to_parent,
        can_transfer_to_peers=described.can_transfer_to_peers,
        tools=tuple(_tool(tool) for tool in described.tools),
    )


def _tool(described: DescribedTool) -> tree.Tool:
    kind = tree.ToolKind(described.kind)
    if kind is tree.ToolKind.PHONE:
        return tree.phone_tool(described.name, described.options)
    return tree.Tool(
        name=described.name,
        kind=kind,
        description=described.description or "",
        parameters=described.parameters,
        long_running=described.long_running,
        agent=None if described.agent is None else build_tree(described.agent),
        skip_summarization=described.skip_summarization,
        text=described.text,
        timeout=described.timeout,
        adds=tree.AddedContent(described.adds) if described.adds else None,
        remembers=described.remembers,
    )


_GOOGLE_ONLY = (
    "google_search", "google_maps_grounding", "url_context", "enterprise_web_search", "VertexAiSearchTool",
    "load_web_page",
)  # fmt: skip


def check_adk_project(path: Path) -> CheckReport:
    """Check the project's files without running its code."""
    findings = Findings()
    config = load_config(path, findings)
    if config is not None:
        for each in _walk(config):
            _add_warnings(each, findings)
    return findings.report()


async def check_adk_imports(pool: WorkerPool) -> CheckReport:
    """Import the project's Python in a worker and report broken references and unreachable tool servers.

    Raises `WorkerError`.
    """
    described = await tree.describe(pool)
    return CheckReport(described.errors, described.unreachable)


def _walk(config: AgentConfig) -> Iterator[AgentConfig]:
    yield config
    # Agents that are Python objects are dotted paths here: they are not known before the project is imported.
    for child in config.children:
        if isinstance(child, AgentConfig):
            yield from _walk(child)
    for tool in config.tools:
        if isinstance(tool.agent, AgentConfig):
            yield from _walk(tool.agent)


def _add_warnings(config: AgentConfig, findings: Findings) -> None:
    for tool in config.tools:
        name = tool.name.rpartition(".")[2]
        for key in keys.IGNORED_MCP_ARGUMENTS if name in keys.MCP_TOOLSETS else ():
            if (tool.args or {}).get(key) is not None:
                findings.warning(config.file, tool.line, f"The tool '{tool.name}': '{key}' has no effect here.")
        if name in _GOOGLE_ONLY:
            consequence = "its agent fails when it asks the model"
            findings.warning(config.file, tool.line, f"The tool '{tool.name}' is not available here: {consequence}.")
    # The keys are accepted, because projects are shared with Google's own runtime, where they have an effect.
    generation = config.data.get("generate_content_config")
    for key in generation if isinstance(generation, dict) else ():
        name = keys.snake_case(str(key))
        line = config.line("generate_content_config", str(key))
        if name in keys.PROVIDER_SPECIFIC_KEYS:
            models = " and ".join(f"{each}/…" for each in keys.PROVIDER_SPECIFIC_KEYS[name])
            message = f"'generate_content_config.{key}' has an effect with models {models} only."
            findings.warning(config.file, line, message)
        if name not in keys.EFFECTIVE_GENERATION_KEYS:
            findings.warning(config.file, line, f"'generate_content_config.{key}' has no effect here.")
