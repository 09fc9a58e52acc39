"""Deadlines of tools, and what of transfers is otherwise here."""

from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.cx import check_cx_app
from callagent.agents.tree import TreeSettings
from callagent.config import load_config
from callagent.server.projects import flow_settings
from callagent.workers import ProcessPool
from tests.agents.cx.support import driven, write_app

SLOW = "import time\n\n\ndef wait() -> dict:\n    'Waits.'\n    time.sleep(0.6)\n    return {'done': True}\n"
ASKS = {"calls": [{"name": "wait", "arguments": {}}]}


@pytest.mark.parametrize(
    ("settings", "answer"),
    [
        (TreeSettings(function_timeout=0.3, tool_timeout=5.0), '{"done": true}'),
        (TreeSettings(function_timeout=5.0, tool_timeout=0.3), "FunctionTimeout"),
        (TreeSettings(function_timeout=0.3), "FunctionTimeout"),
    ],
)
async def test_a_tool_that_says_nothing_of_it_has_the_settings_time(
    settings: TreeSettings, answer: str, tmp_path: Path
) -> None:
    path = write_app(tmp_path, tools={"wait": SLOW})
    async with driven(path, ASKS, {"text": "So."}, settings=settings, make_pool=ProcessPool) as agent:
        await agent.says("Go.")
        assert answer in agent.model.messages(1)[-1]["content"]


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ("", 30.0),
        ("function_seconds = 4", 4.0),
        ("function_seconds = 60", 30.0),
        ("slow_function_seconds = 12", 12.0),
    ],
)
def test_the_platforms_deadline_unless_the_settings_say_less(limits: str, seconds: float, tmp_path: Path) -> None:
    file = tmp_path / "callagent.toml"
    file.write_text(f"[limits]\n{limits}\n", encoding="utf-8")
    assert flow_settings(load_config(file), "live").tool_timeout == seconds


def test_what_transfers_do_not_heed_is_told(tmp_path: Path) -> None:
    gateway = {"phone_number": "+1", "use_originating_trunk": True}
    declared = [{"name": "PHONE_GATEWAY_TRANSFER", "schema": {"type": "OBJECT", "default": gateway}}]
    code = """
        def before_model_callback(callback_context, llm_request):
            callback_context.state["LIVE_AGENT_HANDOFF"] = {
                "endSession": True,
            }
    """
    path = write_app(tmp_path, app={"variableDeclarations": declared}, callbacks={"before_model": code})
    told = [(each.file.rpartition("/")[2], each.line, each.message.partition(":")[0])
            for each in check_cx_app(path).warnings]  # fmt: skip
    assert told == [
        ("python_code.py", 4, "'endSession' has no effect here"),
        ("app.json", 1, "'use_originating_trunk' has no effect here"),
    ]
