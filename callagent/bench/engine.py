"""`callagent bench engine`: the engines' own time, without that of models and functions.

Turns: the model answers at once, so the time from the caller's words to the agent's Listen is that of retrieval, prompt
assembly, tools, filters and history. Conversations are ten turns long, with the project's own example questions.
Function calls: the start function is run again and again in one worker. The figures are the whole round trip, and the
part of it outside the function: snapshot, two crossings of the process border, state and effects.
Callbacks: the time that one callback before and one after the model add to a turn of an agent tree. Turns of the same
agent with and without callbacks alternate, so that disturbances of the machine meet both.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from callagent.agents import Action, Agent, AgentProject, CallerTurn
from callagent.agents.adk import adk_runtime, load_adk_project
from callagent.agents.cx import cx_runtime, load_cx_app
from callagent.agents.flows import FlowProject, FlowSettings, load_flow_project, project_runtime
from callagent.bench.measurement import percentiles
from callagent.call_info import CallInfo
from callagent.errors import UserError
from callagent.json_values import JsonObject, object_at
from callagent.models import Delta, LanguageModel, Message, ModelSettings, Tool, open_embedder
from callagent.workers import ProcessPool, ProjectRuntime

TURNS_PER_CALL = 10
_QUESTION = "I would like to know when you are open and where I can park."


Load = Callable[[Path, LanguageModel, ProcessPool], AgentProject]


class _InstantModel:
    """A model that answers at once, always with the same sentences, so that only the engine's own time is measured."""

    def __init__(self) -> None:
        self.characters = 0
        """Length of the largest request."""
        self.tools = 0
        """Largest number of tools that a request offered."""

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        self.characters = max(self.characters, sum(len(str(message.get("content") or "")) for message in messages))
        self.tools = max(self.tools, len(tools))
        yield Delta(text="Certainly, let me see what I can do about that. ")
        yield Delta(text="Is there anything else?")

    async def close(self) -> None:
        pass


def bench_engine(options: argparse.Namespace) -> int:
    """Run the benchmark and print its figures; return the exit status, always 0 because there is no goal."""
    figures = asyncio.run(_measure(options.project, options.turns))
    if options.json:
        print(json.dumps(figures))
        return 0
    turns, functions, own = (
        object_at(figures, name) for name in ("turn_ms", "function_call_ms", "function_overhead_ms")
    )
    print(f"project            {figures['project']}: {figures['functions']} functions, {figures['topics']} topics")
    print(f"largest request    {figures['request_characters']} characters, {figures['tools']} tools")
    print(f"engine, a turn     p50 {turns['p50']:.2f} ms   p99 {turns['p99']:.2f} ms   ({turns['count']} turns)")
    print(f"function call      p50 {functions['p50']:.2f} ms   p99 {functions['p99']:.2f} ms   (the start function)")
    print(f"  outside of it    p50 {own['p50']:.2f} ms   p99 {own['p99']:.2f} ms")
    if meaning := object_at(figures, "turn_by_meaning_ms"):
        print(f"turn, embeddings   p50 {meaning['p50']:.2f} ms   p99 {meaning['p99']:.2f} ms   (topics by meaning)")
    for kind in object_at(figures, "callbacks"):
        each = object_at(figures, "callbacks", kind)
        without, with_them = object_at(each, "turn_ms"), object_at(each, "turn_with_callbacks_ms")
        print(
            f"callback ({kind:<3})     p50 {each['callback_ms']:.2f} ms"
            f"   (turns: p50 {without['p50']:.2f} without, {with_them['p50']:.2f} with two)"
        )
    return 0


async def _time_by_meaning(path: Path, pool: ProcessPool, model: _InstantModel, turns: int) -> list[float]:
    """Return the times of turns in which topics are found by their meaning; none if no embedder is installed."""
    embedder = open_embedder()
    if embedder is None:
        return []
    settings = FlowSettings(environment="sandbox", embedder=embedder)
    project = load_flow_project(path, model, pool, settings)
    await project.prepare()
    return await _time_turns(project, turns)


async def _measure(path: Path, turns: int) -> JsonObject:
    model = _InstantModel()
    pool = ProcessPool(project_runtime(path))
    try:
        project = load_flow_project(path, model, pool, FlowSettings(environment="sandbox"))
        await pool.start()
        turn_times = await _time_turns(project, turns)
        whole, overhead = await _time_functions(project, turns)
        by_meaning = await _time_by_meaning(path, pool, model, turns)
    finally:
        await pool.close()
    return {
        "project": project.name,
        "functions": len(project.function_names()),
        "topics": len(project.project.topics),
        "request_characters": model.characters,
        "tools": model.tools,
        "turn_ms": percentiles(turn_times),
        "function_call_ms": percentiles(whole),
        "function_overhead_ms": percentiles(overhead),
        "turn_by_meaning_ms": percentiles(by_meaning) if by_meaning else None,
        "callbacks": await measure_callbacks(_InstantModel, turns),
    }


def _ignore(action: Action) -> None:
    """Drop an action of the agent that is measured."""


async def _time_turns(project: FlowProject, turns: int) -> list[float]:
    """Return the milliseconds of each turn."""
    times: list[float] = []
    questions = _questions(project)
    while len(times) < turns:
        agent = await project.open(_info(), _no_metric)
        try:
            await agent.start(_ignore)
            for question in itertools.islice(questions, TURNS_PER_CALL):
                began = time.perf_counter()
                await agent.reply(CallerTurn(text=question), _ignore)
                times.append((time.perf_counter() - began) * 1000)
        finally:
            await agent.close()
    return times[:turns]


async def _time_functions(project: FlowProject, times: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of whole function calls, and of their parts outside the function itself."""
    # The start function serves, because any project may have one and it takes no arguments.
    start = project.project.start_function
    if start is None:
        raise UserError(f"the project '{project.name}' has no start function to measure a function call with")
    whole, overhead = [], []
    async with project.worker_outside_call(_info()) as runner:
        for _ in range(times):
            began = time.perf_counter()
            answer = await runner.run(start, {})
            took = (time.perf_counter() - began) * 1000
            whole.append(took)
            overhead.append(took - answer.duration_ms)
    return whole, overhead


def _questions(project: FlowProject) -> Iterator[str]:
    examples = [example for topic in project.project.topics for example in topic.examples]
    return itertools.cycle(examples or [_QUESTION])


def _info() -> CallInfo:
    return CallInfo("bench", "inbound", "+15550100", "+15550199", "text", datetime.now(UTC))


async def _no_metric(name: str, value: object) -> None:
    """Drop a metric: the store is not measured."""


CALLBACKS = 2
"""Number of callbacks in a turn of the agent that has them."""
_CODE = """\
def before_model_callback(callback_context, llm_request):
    callback_context.state["turns"] = callback_context.state.get("turns", 0) + 1


def after_model_callback(callback_context, llm_response):
    callback_context.state["said"] = len(llm_response.content.parts)
"""
_ADK = "name: root\ninstruction: Help the caller.\n"
_ADK_CALLBACKS = """\
before_model_callbacks: [{name: desk.code.before_model_callback}]
after_model_callbacks: [{name: desk.code.after_model_callback}]
"""
_CX = "displayName: Desk\nrootAgent: root\n"
_CX_AGENT = "displayName: Root\ninstruction: Help the caller.\n"
_CX_CALLBACKS = """\
beforeModelCallbacks: [{pythonCode: agents/root/code.py}]
afterModelCallbacks: [{pythonCode: agents/root/code.py}]
"""
_CX_PLAIN = {"desk/app.yaml": _CX, "desk/agents/root/root.yaml": _CX_AGENT}
_CX_FULL = {**_CX_PLAIN, "desk/agents/root/root.yaml": _CX_AGENT + _CX_CALLBACKS, "desk/agents/root/code.py": _CODE}
_PROJECTS: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
    "adk": (
        {"desk/root_agent.yaml": _ADK},
        {"desk/root_agent.yaml": _ADK + _ADK_CALLBACKS, "desk/code.py": _CODE, "desk/__init__.py": ""},
    ),
    "cx": (_CX_PLAIN, _CX_FULL),
}
"""Kind of project -> its files without callbacks, and with them."""
_KINDS: Mapping[str, tuple[Callable[[Path], ProjectRuntime], Load]] = {
    "adk": (adk_runtime, load_adk_project),
    "cx": (cx_runtime, load_cx_app),
}


async def measure_callbacks(make_model: Callable[[], LanguageModel], turns: int) -> dict[str, JsonObject]:
    """Return for each kind of project the times of turns with and without callbacks, and the time that a callback adds.

    Times are in milliseconds; the added time comes from the difference of the medians.
    """
    figures: dict[str, JsonObject] = {}
    for kind, (plain, with_callbacks) in _PROJECTS.items():
        async with _project(kind, plain, make_model()) as bare, _project(kind, with_callbacks, make_model()) as full:
            without, with_them = await _alternate((bare, full), turns)
        shown = {"turn_ms": percentiles(without), "turn_with_callbacks_ms": percentiles(with_them)}
        added = shown["turn_with_callbacks_ms"]["p50"] - shown["turn_ms"]["p50"]
        figures[kind] = {**shown, "callback_ms": round(added / CALLBACKS, 3)}
    return figures


async def _alternate(projects: Sequence[AgentProject], turns: int) -> list[list[float]]:
    """Return the milliseconds of `turns` turns of each project; they alternate, so that disturbances meet all."""
    times: list[list[float]] = [[] for _ in projects]
    while len(times[0]) < turns:
        agents = [await project.open(_info(), _no_metric) for project in projects]
        try:
            for number in range(TURNS_PER_CALL * len(agents)):
                place = number % len(agents)
                times[place].append(await _time_turn(agents[place]))
        finally:
            for agent in agents:
                await agent.close()
    return [taken[:turns] for taken in times]


async def _time_turn(agent: Agent) -> float:
    began = time.perf_counter()
    await agent.reply(CallerTurn(text="I would like to know when you are open."), _ignore)
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def _project(kind: str, files: Mapping[str, str], model: LanguageModel) -> AsyncIterator[AgentProject]:
    runtime, load = _KINDS[kind]
    # Both kinds are loaded with the same three arguments; all others have defaults.
    with tempfile.TemporaryDirectory() as folder:
        _write(Path(folder), files)
        path = Path(folder, "desk")
        project = load(path, model, ProcessPool(runtime(path)))
        try:
            await project.prepare()
            yield project
        finally:
            await project.close()


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
