"""Small apps, and agents of them driven turn by turn."""

from __future__ import annotations

import json
import textwrap
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from callagent.agents.cx import cx_runtime, load_cx_app
from callagent.agents.cx.engine.agent import CxAgent
from callagent.agents.tree import TreeSettings
from callagent.testing.in_process import InProcessPool
from callagent.workers.protocol import ProjectRuntime, WorkerPool
from tests.agents.driving import DrivenAgent
from tests.agents.flows.support import call_info, scripted

PROJECTS = Path(__file__).parents[2] / "projects"
DESK = PROJECTS / "cx_desk"


def write_app(
    root: Path,
    *,
    app: Mapping[str, Any] | None = None,
    agent: Mapping[str, Any] | None = None,
    instruction: str = "Help the caller.",
    callbacks: Mapping[str, str] | None = None,
    tools: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
) -> Path:
    """An app with one agent `desk`; `callbacks`: Python by point, `tools`: Python by name, `more`: text by path."""
    path = root / "app"
    files = {"app.json": json.dumps({"displayName": "Little App", "rootAgent": "desk", **(app or {})})}
    own: dict[str, Any] = {"displayName": "Desk", "instruction": "agents/desk/instruction.txt"}
    own["tools"] = [*(tools or {}), "end_session", "customize_response"]
    for point, source in (callbacks or {}).items():
        words = point.split("_")
        key = words[0] + words[1].capitalize() + "Callbacks"
        file = f"agents/desk/{point}_callbacks/{point}_callbacks_01/python_code.py"
        own[key] = [{"pythonCode": file}]
        files[file] = textwrap.dedent(source)
    files["agents/desk/desk.json"] = json.dumps({**own, **(agent or {})})
    files["agents/desk/instruction.txt"] = instruction
    for name, source in (tools or {}).items():
        file = f"tools/{name}/python_function/python_code.py"
        files[f"tools/{name}/{name}.json"] = json.dumps(
            {"displayName": name, "pythonFunction": {"name": name, "pythonCode": file}}
        )
        files[file] = textwrap.dedent(source)
    for name, text in {**files, **(more or {})}.items():
        place = path / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return path


class Driven(DrivenAgent[CxAgent]):
    @property
    def state(self) -> dict[str, Any]:
        return self.agent.conversation.state.values

    def request(self, index: int = -1) -> Mapping[str, Any]:
        """A request to the model: `{"messages", "tools"}`."""
        return dict(self.model.requests[index])


@asynccontextmanager
async def driven(
    app: Path,
    *entries: Mapping[str, Any],
    settings: TreeSettings | None = None,
    make_pool: Callable[[ProjectRuntime], WorkerPool] = InProcessPool,
    variables: Mapping[str, Any] | None = None,
    **info: Any,
) -> AsyncIterator[Driven]:
    """An agent of the app with a scripted model."""
    model = scripted(*entries)
    project = load_cx_app(app, model, make_pool(cx_runtime(app)), settings)

    async def write_metric(name: str, value: Any) -> None:
        """Metrics are in the agent's record too."""

    agent = await project.open_with(call_info(**info), write_metric, variables=variables)
    try:
        yield Driven(agent, model)
    finally:
        await agent.close()
        await project.close()


GREETING = """
    def before_model_callback(callback_context, llm_request):
        for part in callback_context.get_last_user_input():
            if part.text == "<event>session start</event>":
                return LlmResponse.from_parts([Part.from_text("Hello.")])
"""
