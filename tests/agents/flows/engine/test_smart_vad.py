"""Functions wait until the caller has surely finished."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import CallerTurn, FunctionStarted
from callagent.agents.flows import FlowSettings, load_project
from callagent.agents.flows.engine.conversation import Conversation
from callagent.agents.flows.engine.decision import Position
from callagent.agents.flows.engine.listening import seconds_before_function
from tests.agents.driving import replied
from tests.agents.flows.support import call_info, driven, flow_config, function, step, write_project

VAD: dict[str, Any] = {
    "is_enabled": True,
    "max_extension_duration": "1.5s",
    "gated_functions": {"": ["pay"], "F": ["go"]},
    "nongated_functions": {"F": ["look"]},
    "flow_overrides": {"G": {"is_enabled": False}},
}


def files(**vad: Any) -> dict[str, str]:
    return {
        "agent_settings/rules.txt": "{{fn:pay}} {{fn:look}} {{fn:go}}",
        "agent_settings/experimental_config.json": json.dumps({"smart_vad": {**VAD, **vad}}),
        **{
            f"functions/{name}.py": function(name, "conv.state.ran = True\nreturn 'x'")
            for name in ("pay", "look", "go")
        },
        "flows/f/flow_config.yaml": flow_config("F", "s"),
        "flows/f/steps/s.yaml": step("s", "Prompt."),
        "flows/g/flow_config.yaml": flow_config("G", "s"),
        "flows/g/steps/s.yaml": step("s", "Prompt."),
    }


async def write(name: str, value: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("flow", "name", "wire", "wait"),
    [
        (None, "pay", "sip", 1.5),
        (None, "look", "sip", 0.8),
        ("F", "go", "sip", 1.5),
        ("F", "look", "sip", 0.0),
        ("F", "pay", "sip", 0.8),
        ("G", "go", "sip", 0.0),
        (None, "pay", "text", 0.0),
    ],
)
def test_which_function_waits_how_long(tmp_path: Path, flow: str | None, name: str, wire: str, wait: float):
    project, _ = load_project(write_project(tmp_path, files()))
    conversation = Conversation.begin(call_info(wire=wire), project, FlowSettings(), write)
    conversation.position = Position(flow, "s" if flow else None)
    assert seconds_before_function(conversation, project.functions[name]) == wait
    conversation.settings = FlowSettings(channel="webchat")
    assert seconds_before_function(conversation, project.functions[name]) == 0


def test_where_it_is_not_enabled_nothing_waits(tmp_path: Path):
    project, _ = load_project(write_project(tmp_path, files(is_enabled=False)))
    conversation = Conversation.begin(call_info(), project, FlowSettings(), write)
    assert seconds_before_function(conversation, project.functions["pay"]) == 0


async def test_an_ungated_function_is_forgotten_by_the_model_when_the_caller_goes_on(tmp_path: Path):
    entries = [{"calls": [{"name": "look", "arguments": {}}]}, {"text": "Found."}, {"text": "On Friday, then."}]
    async with driven(write_project(tmp_path, files(nongated_functions=["look"])), *entries) as agent:
        await agent.start()
        await agent.says("my order")
        await replied(agent.agent, CallerTurn("my order of Friday", reopens=True))
        told = [(message["role"], message["content"]) for message in agent.model.messages()[1:]]
        assert told[-1] == ("user", "my order of Friday")
        assert not any(role == "tool" or text == "my order" for role, text in told)
        assert agent.agent.record().state["ran"] is True


async def test_a_caller_who_goes_on_speaking_stops_a_function_that_waits(tmp_path: Path):
    entries = [{"calls": [{"name": "pay", "arguments": {}}]}, {"text": "Yes?"}]
    async with driven(write_project(tmp_path, files(max_extension_duration="5s")), *entries) as agent:
        await agent.start()
        seen: list[Any] = []

        async def reply() -> None:
            await agent.agent.reply(CallerTurn("pay it"), seen.append)

        task = asyncio.create_task(reply())
        await asyncio.sleep(0.2)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await agent.says("pay it tomorrow")
        assert not any(isinstance(action, FunctionStarted) for action in seen)
        assert "ran" not in agent.agent.record().state
        answers = [message["content"] for message in agent.model.messages() if message["role"] == "tool"]
        assert answers == ["Not executed."]
