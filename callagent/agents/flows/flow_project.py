"""A loaded flow project: makes one agent per call, and lists the positions at which its model is asked."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from callagent.agents.flows import engine
from callagent.agents.flows.format import (
    Project,
    ProjectFunction,
    RealTimeConfiguration,
    Topic,
    filler_phrases,
    load_project,
    project_graph,
    pronounce,
)
from callagent.agents.protocol import Agent, AgentRecord, ExampleQuery, MetricWriter, ProjectGraph, PromptPosition
from callagent.call_info import CallInfo
from callagent.errors import ProjectError
from callagent.json_values import JsonObject, JsonValue
from callagent.models import LanguageModel, for_call
from callagent.workers import Plain, ProjectRuntime, WorkerPool

RUNTIME = "callagent.agents.flows.runtime:FlowRuntime"


class FlowProject:
    """A flow project that implements `agents.protocol.AgentProject`.

    `close()` closes its worker pool, but not the model, which other projects share.
    """

    def __init__(self, project: Project, model: LanguageModel, pool: WorkerPool, settings: engine.FlowSettings) -> None:
        self.name = project.name
        self.project = project
        self._model = model
        self._pool = pool
        self._settings = settings
        embedder = settings.embedder
        self._index: engine.TopicIndex = (
            engine.MeaningIndex(project.topics, embedder) if embedder is not None else engine.WordIndex(project.topics)
        )
        self._real_time = RealTimeConfiguration(project.path)

    def copy_with(self, model: LanguageModel, settings: engine.FlowSettings) -> FlowProject:
        """Return a copy with another model and other settings; close only one of the two, as they share the workers."""
        # A shallow copy: project, index and workers are the same objects.
        copied = copy.copy(self)
        copied._model, copied._settings = model, settings
        return copied

    async def prepare(self) -> None:
        """Index the topics and ask the MCP servers for their functions."""
        await self._index.prepare()
        if self.project.mcp:
            lease = await self._pool.lease(self._context())
            try:
                remote = await engine.fetch_remote_functions(lease, self.project.functions, self._settings.secrets_dir)
            finally:
                await lease.close()
            self.project = replace(self.project, remote=remote)

    def graph(self) -> ProjectGraph:
        return project_graph(self.project)

    def real_time_folder(self, environment: str) -> Path:
        return RealTimeConfiguration(self.project.path).folder(environment)

    def phrases(self) -> Sequence[str]:
        project = self.project
        scope = engine.Scope(
            variants=project.variants,
            variant=project.variants.default,
            translations=project.translations,
            language=project.languages.default,
        )
        settings, greeting = self._settings, project.voice.greeting
        texts = [greeting.disclaimer, greeting.message, settings.fallback_utterance, settings.failure_utterance]
        texts.append(project.experimental.hangup_utterance(scope.language, engine.DEFAULT_HANGUP_UTTERANCE))
        for function in project.all_functions():
            texts += [response.text for response in (function.latency.responses if function.latency else ())]
        texts += filler_phrases(project.voice.fillers, project.experimental, scope.language).phrases
        resolved = dict.fromkeys(engine.resolve_text(text, scope) for text in texts if text)
        # A text that still holds a variable is known in the call only.
        return [text for text in resolved if "$" not in text and "{{" not in text]

    async def prompt_positions(
        self, at: datetime | None = None, state: JsonObject | None = None
    ) -> list[PromptPosition]:
        return list(flow_prompt_positions(self.project, self._settings, at, state or {}))

    async def open(self, info: CallInfo, write_metric: MetricWriter) -> Agent:
        settings = self._settings
        memory = engine.CallerMemory(
            settings.memory, self.project.project_id or self.name, self.project.experimental.repeat_caller
        )
        memory_context = await memory.open(info, settings.integration_attributes or {})
        # Leased after the memory was read, which is part of the worker's context.
        lease = await self._pool.lease({**self._context(), **memory_context})
        model = for_call(self._model)
        conversation = engine.Conversation.begin(info, self.project, settings, write_metric)
        runner = engine.FunctionRunner(lease, conversation, model, self._real_time)
        return engine.FlowAgent(engine.FunctionCalls(conversation, runner), model, self._index, memory)

    async def resume(self, info: CallInfo, write_metric: MetricWriter, stored: AgentRecord) -> Agent:
        agent = await self.open(info, write_metric)
        assert isinstance(agent, engine.FlowAgent)
        await agent.restore(stored)
        return agent

    def function_names(self) -> list[str]:
        """Return the names of all functions; those of flows have the form `folder/name`."""
        folders = {flow.name: flow.folder for flow in self.project.flows.values()}
        functions = self.project.all_functions()
        return [f"{folders[each.flow]}/{each.name}" if each.flow else each.name for each in functions]

    def find_function(self, name: str, flow: str | None) -> ProjectFunction | None:
        """Find a function by its name. `flow` is a display name or a folder; None: search outside flows."""
        if flow is None:
            found = [each for each in self.project.all_functions() if each.name == name and each.flow is None]
            return found[0] if found else None
        for each in self.project.flows.values():
            if flow in (each.name, each.folder):
                return each.functions.get(name) or each.function_steps.get(name)
        return None

    async def run_function(
        self, info: CallInfo, function: ProjectFunction, arguments: JsonObject, state: JsonObject
    ) -> engine.FunctionAnswer:
        """Run one function outside a call; the messages and transitions that it queues are not carried out."""
        async with self.worker_outside_call(info, function.flow) as runner:
            if state:
                await runner.set_state(state)
            return await runner.run(function, arguments)

    @asynccontextmanager
    async def worker_outside_call(
        self, info: CallInfo, flow: str | None = None
    ) -> AsyncIterator[engine.FunctionRunner]:
        """Yield a runner with a worker of its own outside a call, on the start step of `flow` (None: outside flows)."""
        lease = await self._pool.lease(self._context())
        conversation = engine.Conversation.begin(info, self.project, self._settings, _drop_metric)
        if flow is not None:
            conversation.position = engine.Position(flow, self.project.flows[flow].start_step)
        runner = engine.FunctionRunner(lease, conversation, for_call(self._model), self._real_time)
        try:
            yield runner
        finally:
            await runner.close()

    def pronounce(self, text: str, language: str | None) -> str:
        """Return the text as the voice should read it; transcript and history keep it as it is."""
        return pronounce(self.project.voice.pronunciations, text, language)

    async def close(self) -> None:
        await self._pool.close()

    def _context(self) -> Plain:
        settings = self._settings
        return {
            "account_id": self.project.account_id,
            "project_id": self.project.project_id,
            "now": settings.pinned.isoformat() if settings.pinned else None,
            "api": {name: integration.plain(settings.environment) for name, integration in self.project.apis.items()},
            "api_mocks": settings.api_mocks,
            "mcp": {each.provider: each.plain() for each in self.project.mcp},
        }


async def _drop_metric(name: str, value: JsonValue) -> None:
    """Drop a metric: outside a call there is no record to keep it."""


def project_runtime(path: Path) -> ProjectRuntime:
    """Return the runtime that a worker pool loads for the project in `path`."""
    return ProjectRuntime(RUNTIME, path)


def load_flow_project(
    path: Path, model: LanguageModel, pool: WorkerPool, settings: engine.FlowSettings | None = None
) -> FlowProject:
    """Load the project in `path`. Raises `ProjectError`, which lists everything that is wrong with it."""
    project, findings = load_project(path)
    errors = findings.report().errors
    if errors:
        listed = "\n".join(f"  {error}" for error in errors)
        raise ProjectError(f"The project in {path} cannot be loaded:\n{listed}")
    settings = settings or engine.FlowSettings()
    if settings.variant is not None and settings.variant not in project.variants.attributes:
        known = ", ".join(project.variants.attributes) or "none"
        raise ProjectError(f"There is no variant '{settings.variant}'. The project has: {known}.")
    if settings.language is not None and settings.language not in project.languages.all:
        known = ", ".join(project.languages.all)
        raise ProjectError(f"There is no language '{settings.language}'. The project has: {known}.")
    return FlowProject(project, model, pool, settings)


def flow_prompt_positions(
    project: Project, settings: engine.FlowSettings, at: datetime | None, state: JsonObject
) -> Iterator[PromptPosition]:
    """Yield the positions at which the model is asked, as in a call at the time `at`.

    The positions are: outside flows without a topic, outside flows with each topic, and every step of every flow. A
    value that `state` has under an entity's name counts as collected.
    """
    info = CallInfo("", "inbound", None, None, "text", at or datetime.now(UTC))
    conversation = engine.Conversation.begin(info, project, replace(settings, at=at or settings.at), _drop_metric)
    conversation.state = dict(state)
    results = [
        engine.validate(each, state[name], info.started.date())
        for name, each in project.entities.items()
        if name in state
    ]
    conversation.entities = {result.name: result for result in results if result.valid}
    yield _prompt_position(conversation, [])
    for topic in project.topics:
        position = _prompt_position(conversation, [topic])
        yield replace(position, queries=tuple(_queries(topic, position, engine.Prompt(conversation))))
    for flow in project.flows.values():
        for step in flow.steps:
            conversation.position = engine.Position(flow.name, step)
            yield _prompt_position(conversation, [])


def _prompt_position(conversation: engine.Conversation, topics: list[Topic]) -> PromptPosition:
    position, request = conversation.position, engine.build_request(conversation, topics)
    instructions = [message for message in request.messages if message["role"] == "system"]
    return PromptPosition(
        position.flow, position.step, str(instructions[-1]["content"]), tuple(request.toolset.schemas)
    )


def _queries(topic: Topic, position: PromptPosition, prompt: engine.Prompt) -> Iterator[ExampleQuery]:
    """Yield the topic's example queries with the call expected of the model: the topic's function, or none."""
    named = {reference.tool for reference in prompt.resolve(topic.actions).tools}
    functions = [tool["function"] for tool in position.tools if tool["function"]["name"] in named]
    if len(functions) > 1 or any(function["parameters"].get("required") for function in functions):
        # No file tells which of several functions an example is for, nor what its arguments are.
        return
    for query in topic.examples:
        yield ExampleQuery(query, tuple({"name": each["name"], "arguments": {}} for each in functions), topic.file)
