"""Safety filters are part of the prompt, the channel's in place of the agent's."""

from __future__ import annotations

from pathlib import Path

from callagent.agents.flows import FlowSettings, check_project
from tests.agents.flows.support import driven, write_project

CATEGORIES = ("violence", "hate", "sexual", "self_harm")


def filters(first: str, enabled: str = "true", level: str = "strict") -> str:
    rest = "".join(f"  {name}: {{enabled: false, level: medium}}\n" for name in CATEGORIES if name != first)
    return f"enabled: {enabled}\ncategories:\n  {first}: {{enabled: true, level: {level}}}\n{rest}"


async def prompt(root: Path, channel: str) -> str:
    async with driven(root, {"text": "Hello."}, settings=FlowSettings(channel=channel)) as agent:
        await agent.start()
        await agent.says("hello")
        return agent.model.system()


async def test_the_agents_filters_hold_where_the_channel_has_none(tmp_path: Path):
    files = {
        "project.yaml": "{}",
        "agent_settings/safety_filters.yaml": filters("violence"),
        "voice/safety_filters.yaml": filters("self_harm", level="medium"),
    }
    root = write_project(tmp_path, files)
    assert "violence" in await prompt(root, "webchat")
    voice = await prompt(root, "voice")
    assert "self-harm, unless the caller needs help" in voice
    assert "violence" not in voice


async def test_filters_that_are_off_say_nothing(tmp_path: Path):
    files = {"project.yaml": "{}", "voice/safety_filters.yaml": filters("violence", enabled="false")}
    assert "Safety:" not in await prompt(write_project(tmp_path, files), "voice")


def test_mistakes_are_found(tmp_path: Path):
    files = {
        "project.yaml": "{}",
        "agent_settings/safety_filters.yaml": "categories: {hate: {enabled: true, level: much}}\n",
        "chat/safety_filters.yaml": filters("hate").removeprefix("enabled: true\n"),
    }
    errors = [str(error) for error in check_project(write_project(tmp_path, files)).errors]
    assert any("categories are missing: ['violence', 'sexual', 'self_harm']" in error for error in errors)
    assert any("'level' should be one of lenient, medium, strict, not 'much'" in error for error in errors)
    assert any(error.startswith("chat/safety_filters.yaml") and "'enabled' is required" in error for error in errors)
