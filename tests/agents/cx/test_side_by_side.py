"""Tools of one answer of the model at the same time, each in a worker of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from callagent.workers import ProcessPool
from tests.agents.cx.support import driven, write_app
from tests.own_time import own_time

SOURCE = """
    import os
    import time

    def {name}(seconds: float) -> dict:
        "Takes its time."
        seen = sorted(context.state["form"])
        time.sleep(seconds)
        context.state["form"]["{name}"] = seconds
        context.state["last"] = "{name}"
        return {{"seen": seen, "process": os.getpid()}}
"""
TOOLS = {name: SOURCE.format(name=name) for name in ("first", "second", "third")}
FORM = {"variableDeclarations": [{"name": "form", "schema": {"type": "OBJECT"}}]}


def calls(**seconds: float) -> dict[str, Any]:
    return {"calls": [{"name": name, "arguments": {"seconds": each}} for name, each in seconds.items()]}


async def results(tmp_path: Path, asked: dict[str, Any], **app: Any) -> tuple[list[Any], dict[str, Any], float]:
    path = write_app(tmp_path, app={**FORM, **app}, tools=TOOLS)
    async with driven(path, {"text": "Hm."}, asked, {"text": "Done."}, make_pool=ProcessPool) as agent:
        await agent.says("Hello.")
        began = time.monotonic()
        await agent.says("Go.")
        took = time.monotonic() - began
        answered = [message for message in agent.model.messages(2) if message["role"] == "tool"]
        return answered, dict(agent.state), took


async def test_they_run_at_once_from_one_beginning_and_lose_nothing(tmp_path: Path) -> None:
    with own_time() as clock:
        answered, state, took = await results(tmp_path, calls(first=1.0, second=0.5, third=0.7))
        assert took - clock.stalled < 1.9
    assert len({each["content"].partition("process")[2] for each in answered}) == 3
    assert all('"seen": []' in each["content"] for each in answered)
    assert state["form"] == {"first": 1.0, "second": 0.5, "third": 0.7}
    assert state["last"] == "first"


async def test_one_after_the_other_where_the_app_says_so(tmp_path: Path) -> None:
    answered, state, took = await results(tmp_path, calls(first=0.4, second=0.1), toolExecutionMode="SEQUENTIAL")
    assert took >= 0.5
    assert [each["content"].partition(', "process"')[0] for each in answered] == ['{"seen": []', '{"seen": ["first"]']
    assert state["last"] == "second"


async def test_each_has_its_own_deadline(tmp_path: Path) -> None:
    place = "tools/second/python_function/python_code.py"
    hasty = {"displayName": "second", "timeout": "0.3s", "pythonFunction": {"name": "second", "pythonCode": place}}
    path = write_app(tmp_path, app=FORM, tools=TOOLS, more={"tools/second/second.json": json.dumps(hasty)})
    asked = calls(first=1.0, second=20.0)
    async with driven(path, asked, {"text": "Done."}, make_pool=ProcessPool) as agent:
        began = time.monotonic()
        await agent.says("Go.")
        took = time.monotonic() - began
        answered = [each["content"] for each in agent.model.messages(1) if each["role"] == "tool"]
        assert agent.state["form"] == {"first": 1.0}
    assert ("seen" in answered[0], "error" in answered[1]) == (True, True)
    assert 1.0 <= took < 10.0


@pytest.mark.parametrize("broken", ["raise ValueError('no')", "os._exit(1)"])
async def test_one_that_fails_takes_nothing_from_the_others(broken: str, tmp_path: Path) -> None:
    tools = {**TOOLS, "second": f"import os\n\n\ndef second(seconds: float) -> dict:\n    'Breaks.'\n    {broken}\n"}
    path = write_app(tmp_path, app=FORM, tools=tools)
    asked = calls(first=0.1, second=0.0)
    async with driven(path, asked, {"text": "Done."}, make_pool=ProcessPool) as agent:
        await agent.says("Go.")
        answered = [each["content"] for each in agent.model.messages(1) if each["role"] == "tool"]
        assert agent.state["form"] == {"first": 0.1}
    assert ("seen" in answered[0], "error" in answered[1]) == (True, True)
