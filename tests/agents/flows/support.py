"""Small projects, and an agent driven action by action."""

from __future__ import annotations

import textwrap
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from callagent.agents import (
    Action,
    Agent,
    CallerTurn,
    FunctionEnded,
    HandoffFailed,
    MetricWritten,
    ModelAnswered,
    Say,
    StepEntered,
)
from callagent.agents.flows import FlowSettings, load_flow_project, project_runtime
from callagent.call_info import CallInfo
from callagent.models.scripted import ScriptedModel
from callagent.testing.in_process import InProcessPool
from tests.agents.driving import replied, started

FERRY = Path(__file__).parents[2] / "projects" / "ferry"
A = TypeVar("A")
HEADER = "from _gen import *  # <AUTO GENERATED>\n"


def write_project(root: Path, files: Mapping[str, str]) -> Path:
    """A project folder from `path: text`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return root


def function(name: str, body: str, parameters: str = "", *, flow: bool = False, decorators: str = "") -> str:
    """The text of a function file."""
    own = "conv: Conversation, flow: Flow" if flow else "conv: Conversation"
    lines = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    description = decorators or f'@func_description("{name}")\n'
    return f"{HEADER}\n{description}def {name}({own}{parameters}):\n{lines}\n"


def step(name: str, prompt: str, **more: str) -> str:
    rest = "".join(f"{key}: {value}\n" for key, value in more.items())
    return f"step_type: advanced_step\nname: {name}\n{rest}prompt: |-\n" + textwrap.indent(prompt, "  ") + "\n"


def flow_config(name: str, start: str) -> str:
    return f"name: {name}\ndescription: a flow\nstart_step: {start}\n"


class Driven:
    """An agent whose actions are collected turn by turn."""

    def __init__(self, agent: Agent, model: ScriptedModel, written: list[tuple[str, Any]]) -> None:
        self.agent = agent
        self.model = model
        self.written = written
        """What the metric writer was given."""

    async def start(self) -> list[Action]:
        return await started(self.agent)

    async def says(self, text: str = "", **more: Any) -> list[Action]:
        return await replied(self.agent, CallerTurn(text=text, **more))

    async def handoff_failed(self, destination: str, reason: str) -> list[Action]:
        return await replied(self.agent, HandoffFailed(destination, reason))


class Recording(ScriptedModel):
    """A scripted model that keeps what it was asked."""

    requests: list[tuple[list[Any], list[Any]]]

    def for_call(self) -> Recording:
        return self

    async def stream(self, messages: Any, tools: Any, settings: Any) -> AsyncIterator[Any]:
        self.requests.append((list(messages), list(tools)))
        async for delta in super().stream(messages, tools, settings):
            yield delta

    def tools(self, number: int = -1) -> list[str]:
        return [tool["function"]["name"] for tool in self.requests[number][1]]

    def messages(self, number: int = -1) -> list[Any]:
        return self.requests[number][0]

    def system(self, number: int = -1) -> str:
        return "\n".join(str(m["content"]) for m in self.messages(number) if m["role"] == "system")


def call_info(**more: Any) -> CallInfo:
    values: dict[str, Any] = {
        "call_id": "call-1",
        "direction": "inbound",
        "caller": "+4930555",
        "callee": "+4930111",
        "wire": "sip",
        "started": datetime(2026, 8, 24, 9, 0, tzinfo=UTC),
        **more,
    }
    return CallInfo(**values)


def scripted(*entries: Mapping[str, Any]) -> Recording:
    model = Recording.from_entries(*entries)
    assert isinstance(model, Recording)
    model.requests = []
    return model


@asynccontextmanager
async def driven(
    root: Path, *entries: Mapping[str, Any], settings: FlowSettings | None = None, info: CallInfo | None = None
) -> AsyncIterator[Driven]:
    """An agent of the project in `root` with a scripted model."""
    model = scripted(*entries)
    project = load_flow_project(root, model, InProcessPool(project_runtime(root)), settings)
    written: list[tuple[str, Any]] = []

    async def write_metric(name: str, value: Any) -> None:
        written.append((name, value))

    agent = await project.open(info or call_info(), write_metric)
    try:
        yield Driven(agent, model, written)
    finally:
        await agent.close()
        await project.close()


def words(actions: list[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def of(kind: type[A], actions: list[Action]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def functions(actions: list[Action]) -> list[str]:
    return [action.name for action in of(FunctionEnded, actions)]


def steps(actions: list[Action]) -> list[tuple[str | None, str | None]]:
    return [(action.flow, action.step) for action in of(StepEntered, actions)]


def metrics(actions: list[Action]) -> list[tuple[str, Any]]:
    return [(action.name, action.value) for action in of(MetricWritten, actions)]


def without_measures(actions: list[Action]) -> list[Action]:
    return [action for action in actions if not isinstance(action, ModelAnswered)]
