"""What a callback of an agent tree adds to a turn: the same agent with and without one before and one after the model.

The model answers at once; turns of both agents alternate, so that the machine's moods meet both.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from callagent.agents import Agent, CallerTurn
from callagent.agents.adk import adk_runtime, load_adk_project
from callagent.agents.cx import cx_runtime, load_cx_app
from callagent.bench.figures import percentiles
from callagent.call_info import CallInfo
from callagent.models.protocol import LanguageModel
from callagent.workers import ProcessPool

TURNS_PER_CALL = 10
CALLBACKS = 2
"""In each turn of the agent that has them."""
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
"""By kind: the files without callbacks, and with them."""
_KINDS: Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "adk": (adk_runtime, load_adk_project),
    "cx": (cx_runtime, load_cx_app),
}


async def measure_callbacks(make_model: Callable[[], LanguageModel], turns: int) -> dict[str, Any]:
    """By kind: a turn with and without callbacks, and milliseconds that one callback adds (of the medians)."""
    figures = {}
    for kind, (plain, with_callbacks) in _PROJECTS.items():
        async with _project(kind, plain, make_model()) as bare, _project(kind, with_callbacks, make_model()) as full:
            without, with_them = await _alternate((bare, full), turns)
        shown = {"turn_ms": percentiles(without), "turn_with_callbacks_ms": percentiles(with_them)}
        added = shown["turn_with_callbacks_ms"]["p50"] - shown["turn_ms"]["p50"]
        figures[kind] = {**shown, "callback_ms": round(added / CALLBACKS, 3)}
    return figures


async def _alternate(projects: Sequence[Any], turns: int) -> list[list[float]]:
    times: list[list[float]] = [[] for _ in projects]
    while len(times[0]) < turns:
        agents = [await project.open(_info(), _no_metric) for project in projects]
        try:
            for _ in range(TURNS_PER_CALL):
                for agent, taken in zip(agents, times, strict=True):
                    taken.append(await _turn(agent))
        finally:
            for agent in agents:
                await agent.close()
    return [taken[:turns] for taken in times]


async def _turn(agent: Agent) -> float:
    began = time.perf_counter()
    async for _ in agent.reply(CallerTurn(text="I would like to know when you are open.")):
        pass
    return (time.perf_counter() - began) * 1000


@asynccontextmanager
async def _project(kind: str, files: Mapping[str, str], model: LanguageModel) -> AsyncIterator[Any]:
    runtime, load = _KINDS[kind]
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


def _info() -> CallInfo:
    return CallInfo("bench", "inbound", "+15550100", "+15550199", "text", datetime.now(UTC))


async def _no_metric(name: str, value: Any) -> None:
    """A store is not part of what is measured."""
