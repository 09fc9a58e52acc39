"""`callagent bench engine`: what the flow engine itself costs, without model and function time.

Turns: a model that answers at once; the time from the caller's words to the agent's Listen is retrieval, prompt
assembly, tools, filters and history. Conversations are ten turns long, with the project's own example questions.
Function calls: the start function, run again and again in one worker; beside the whole round trip, what of it was not
the function itself: snapshot, two crossings of the process border, state and effects. Callbacks: see `callbacks.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from callagent.agents import CallerTurn
from callagent.agents.flows import FlowProject, FlowSettings, load_flow_project, project_runtime
from callagent.bench.callbacks import measure_callbacks
from callagent.bench.figures import percentiles
from callagent.call_info import CallInfo
from callagent.errors import UserError
from callagent.models import open_embedder
from callagent.models.protocol import Delta, Message, ModelSettings, Tool
from callagent.workers import ProcessPool

TURNS_PER_CALL = 10
_QUESTION = "I would like to know when you are open and where I can park."


class _InstantModel:
    """Answers with the same sentence, in the same moment."""

    def __init__(self) -> None:
        self.characters = 0
        self.tools = 0

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        self.characters = max(self.characters, sum(len(str(message.get("content") or "")) for message in messages))
        self.tools = max(self.tools, len(tools))
        yield Delta(text="Certainly, let me see what I can do about that. ")
        yield Delta(text="Is there anything else?")

    async def close(self) -> None:
        pass


def bench_engine(options: argparse.Namespace) -> int:
    """Measure and print."""
    figures = asyncio.run(_measure(options.project, options.turns))
    if options.json:
        print(json.dumps(figures))
        return 0
    turns, functions, own = figures["turn_ms"], figures["function_call_ms"], figures["function_overhead_ms"]
    print(f"project            {figures['project']}: {figures['functions']} functions, {figures['topics']} topics")
    print(f"largest request    {figures['request_characters']} characters, {figures['tools']} tools")
    print(f"engine, a turn     p50 {turns['p50']:.2f} ms   p99 {turns['p99']:.2f} ms   ({turns['count']} turns)")
    print(f"function call      p50 {functions['p50']:.2f} ms   p99 {functions['p99']:.2f} ms   (the start function)")
    print(f"  outside of it    p50 {own['p50']:.2f} ms   p99 {own['p99']:.2f} ms")
    if meaning := figures["turn_by_meaning_ms"]:
        print(f"turn, embeddings   p50 {meaning['p50']:.2f} ms   p99 {meaning['p99']:.2f} ms   (topics by meaning)")
    for kind, each in figures["callbacks"].items():
        with_them = each["turn_with_callbacks_ms"]
        print(
            f"callback ({kind:<3})     p50 {each['callback_ms']:.2f} ms"
            f"   (turns: p50 {each['turn_ms']['p50']:.2f} without, {with_them['p50']:.2f} with two)"
        )
    return 0


async def _by_meaning(path: Path, pool: ProcessPool, model: _InstantModel, turns: int) -> list[float]:
    """The same turns with topics found by their meaning; nothing where no engine is installed."""
    embedder = open_embedder()
    if embedder is None:
        return []
    settings = FlowSettings(environment="sandbox", embedder=embedder)
    project = load_flow_project(path, model, pool, settings)
    await project.prepare()
    return await _turns(project, turns)


async def _measure(path: Path, turns: int) -> dict[str, Any]:
    model = _InstantModel()
    pool = ProcessPool(project_runtime(path))
    try:
        project = load_flow_project(path, model, pool, FlowSettings(environment="sandbox"))
        await pool.start()
        turn_times = await _turns(project, turns)
        whole, own = await _functions(project, turns)
        by_meaning = await _by_meaning(path, pool, model, turns)
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
        "function_overhead_ms": percentiles(own),
        "turn_by_meaning_ms": percentiles(by_meaning) if by_meaning else None,
        "callbacks": await measure_callbacks(_InstantModel, turns),
    }


async def _turns(project: FlowProject, turns: int) -> list[float]:
    times: list[float] = []
    questions = _questions(project)
    while len(times) < turns:
        agent = await project.open(_info(), _no_metric)
        try:
            async for _ in agent.start():
                pass
            for question in itertools.islice(questions, TURNS_PER_CALL):
                began = time.perf_counter()
                async for _ in agent.reply(CallerTurn(text=question)):
                    pass
                times.append((time.perf_counter() - began) * 1000)
        finally:
            await agent.close()
    return times[:turns]


async def _functions(project: FlowProject, times: int) -> tuple[list[float], list[float]]:
    """Milliseconds of the whole call, and of all but the function."""
    start = project.project.start_function
    if start is None:
        raise UserError(f"the project '{project.name}' has no start function to measure a function call with")
    whole, own = [], []
    async with project.standing_by(_info()) as runner:
        for _ in range(times):
            began = time.perf_counter()
            answer = await runner.run(start, {})
            took = (time.perf_counter() - began) * 1000
            whole.append(took)
            own.append(took - answer.duration_ms)
    return whole, own


def _questions(project: FlowProject) -> Iterator[str]:
    examples = [example for topic in project.project.topics for example in topic.examples]
    return itertools.cycle(examples or [_QUESTION])


def _info() -> CallInfo:
    return CallInfo("bench", "inbound", "+15550100", "+15550199", "text", datetime.now(UTC))


async def _no_metric(name: str, value: Any) -> None:
    """A store is not part of what is measured."""
