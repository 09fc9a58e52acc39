"""Agent classes of a project that run the agents below them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callagent.agents import FunctionEnded
from callagent.agents.tree import TreeSettings
from callagent.testing.in_process import InProcessPool
from callagent.workers import ProcessPool
from tests.agents.adk.support import PROJECTS, driven, write_project
from tests.agents.driving import words
from tests.agents.flows.support import of

FALLBACK = TreeSettings().fallback_utterance


@pytest.mark.parametrize("pool", [InProcessPool, ProcessPool])
async def test_agents_that_run_inside_use_their_tools_and_callbacks(pool: Any) -> None:
    entries = (
        {"calls": [{"name": "look_up", "arguments": {"word": "sail"}}]},
        {"text": "A boat sails."},
        {"text": "A storm came."},
    )
    async with driven(PROJECTS / "adk_story", *entries, make_pool=pool) as agent:
        actions = await agent.says("tell")
        assert words(actions) == ["A boat sails.", "A storm came.", "3 words."]
        assert of(FunctionEnded, actions)[0].result == "sail: a thing"
        state = agent.agent.record().state
        assert (state["asked"], state["looked_up"], state["story"]) == (2, "sail", "A storm came.")


async def test_a_failure_inside_fails_the_turn_and_not_the_call() -> None:
    entries = ({"error": "refused"}, {"text": "A storm."})
    async with driven(PROJECTS / "adk_story", *entries) as agent:
        assert words(await agent.says("tell")) == [FALLBACK]
        assert words(await agent.says("again")) == ["A storm.", "2 words."]


CODE = """
    import os

    from google.adk.agents import BaseAgent, LlmAgent
    from google.genai import types

    def die():
        os._exit(1)

    stranger = LlmAgent(name="stranger", instruction="x")

    class Boss(BaseAgent):
        work: str = ""

        async def _run_async_impl(self, ctx):
            if self.work == "stranger":
                async for event in stranger.run_async(ctx):
                    yield event
            if self.work == "spin":
                while True:
                    pass
            async for event in self.sub_agents[0].run_async(ctx):
                yield event
"""
CHILD = "name: child\ninstruction: x\ntools: [{name: agency.code.die}]\n"


def boss(tmp_path: Path, work: str) -> Path:
    root = f"name: boss\nagent_class: agency.code.Boss\nwork: {work}\nsub_agents: [{{config_path: child.yaml}}]\n"
    return write_project(tmp_path, {"root_agent.yaml": root, "child.yaml": CHILD, "__init__.py": "", "code.py": CODE})


@pytest.mark.parametrize("work", ["stranger", "spin"])
async def test_what_such_an_agent_does_wrong_fails_the_turn(tmp_path: Path, work: str) -> None:
    settings = TreeSettings(agent_timeout=1.0)
    async with driven(boss(tmp_path, work), settings=settings, make_pool=ProcessPool) as agent:
        assert words(await agent.says("go")) == [FALLBACK]
        assert words(await agent.says("go")) == [FALLBACK]


async def test_a_process_that_ends_under_the_inner_agent_ends_only_the_turn(tmp_path: Path) -> None:
    entries = ({"calls": [{"name": "die"}]}, {"text": "Alive."})
    async with driven(boss(tmp_path, "child"), *entries, make_pool=ProcessPool) as agent:
        assert words(await agent.says("go")) == [FALLBACK]
        assert words(await agent.says("still?")) == ["Alive."]
