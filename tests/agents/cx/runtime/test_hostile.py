"""Code of an app that does harm, in real processes: it is contained, and the call goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import FunctionEnded, Listen
from callagent.agents.tree import TreeSettings
from callagent.workers import ProcessPool
from callagent.workers.kernel_limits import landlock_version
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import words
from tests.agents.flows.support import of

KEEP = "def keep() -> dict:\n    set_variable('kept', [1, 2])\n    return {'kept': True}\n"
RECALL = "def recall() -> dict:\n    return {'kept': get_variable('kept'), 'events': len(context.events)}\n"
HARM = {
    "spins": "while True:\n        pass",
    "exits": "import sys\n    sys.exit(3)",
    "dies": "import os\n    os._exit(3)",
    "imports_sockets": "import socket",
    "imports_subprocesses": "from concurrent import futures\n    import subprocess",
    "returns_a_gigabyte": "return {'text': 'x' * 1_000_000_000}",
    "forks": "import os\n    while os.fork():\n        pass\n    while True:\n        pass",
    "eats_memory": "rows = []\n    while True:\n        rows.append(bytearray(10_000_000))",
    "kills_everybody": "import os, signal\n    os.kill(os.getppid(), signal.SIGKILL)",
}
SPY = """
    import os
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                found += [entry] if open(f"/proc/{entry}/environ", "rb").read() else []
            except OSError:
                pass
    return {"found": found}
"""


def app_with(root: Path, harm: str) -> Path:
    tools = {"keep": KEEP, "recall": RECALL, "harm": f"def harm() -> dict:\n    {harm}\n"}
    return write_app(root, tools=tools)


def call(name: str) -> dict[str, Any]:
    return {"calls": [{"name": name}]}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
async def test_a_tool_that_does_harm_is_an_error_for_the_model(harm: str, tmp_path: Path) -> None:
    entries = [call("keep"), {"text": "Kept."}, call("harm"), {"text": "Still here."}, call("recall"), {"text": "So."}]
    settings = TreeSettings(function_timeout=2.0)
    app = app_with(tmp_path, harm)
    async with driven(app, *entries, settings=settings, make_pool=ProcessPool) as agent:
        await agent.says("Keep it.")
        actions = await agent.says("Do harm.")
        (harmed,) = of(FunctionEnded, actions)
        assert "error" in harmed.result
        assert words(actions) == ["Still here."]
        (recalled,) = of(FunctionEnded, await agent.says("Recall it."))
        assert recalled.result["kept"] == [1, 2]
        assert recalled.result["events"] > 6


@pytest.mark.skipif(landlock_version() == 0, reason="the kernel has no Landlock")
async def test_a_tool_cannot_read_the_environment_of_another_process(tmp_path: Path) -> None:
    app = app_with(tmp_path, SPY.strip())
    async with driven(app, call("harm"), {"text": "So."}, make_pool=ProcessPool) as agent:
        (ended,) = of(FunctionEnded, await agent.says("Spy."))
        assert ended.result == {"found": []}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM.keys())
async def test_a_callback_that_does_harm_ends_its_turn_only(harm: str, tmp_path: Path) -> None:
    guarded = f"""\
def before_model_callback(callback_context, llm_request):
    if callback_context.get_last_user_input()[-1].text != "Do harm.":
        return None
    {harm}
"""
    app = write_app(tmp_path, callbacks={"before_model": guarded})
    settings = TreeSettings(function_timeout=2.0, fallback_utterance="Once more?")
    async with driven(app, {"text": "Hello."}, settings=settings, make_pool=ProcessPool) as agent:
        actions = await agent.says("Do harm.")
        assert words(actions) == ["Once more?"]
        assert isinstance(actions[-1], Listen)
        assert words(await agent.says("Hello?")) == ["Hello."]


@pytest.mark.skipif(landlock_version() == 0, reason="the kernel has no Landlock")
async def test_a_callback_cannot_read_the_environment_of_another_process(tmp_path: Path) -> None:
    spy = SPY.strip().replace("return {", "callback_context.state.update({").replace("found}", "found})")
    app = write_app(tmp_path, callbacks={"before_agent": f"def before_agent_callback(callback_context):\n    {spy}\n"})
    async with driven(app, {"text": "So."}, make_pool=ProcessPool) as agent:
        assert words(await agent.says("Spy.")) == ["So."]
        assert agent.state["found"] == []


PLACES = ("guardrail", "rule", "after_tool", "after_agent", "after_model", "thread")


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("harm", ["spins", "dies", "eats_memory"])
async def test_harm_at_any_place_of_an_app_is_contained(place: str, harm: str, tmp_path: Path) -> None:
    arguments = {
        "guardrail": "callback_context, llm_request",
        "rule": "callback_context",
        "after_tool": "tool, input, callback_context, tool_response",
        "after_agent": "callback_context",
        "after_model": "callback_context, llm_response",
        "thread": "",
    }[place]
    name = {"guardrail": "before_model_callback", "rule": "condition", "thread": "inner"}.get(
        place, f"{place}_callback"
    )
    guard = "" if place == "thread" else "    if get_variable('safe'):\n        return None\n"
    code = f"def {name}({arguments}):\n{guard}    {HARM[harm]}\n"
    inner = "def harm() -> dict:\n    async_tools.inner({})\n    return {'started': True}\n"
    guardrail = {"codeCallback": {"beforeModelCallback": {"pythonCode": "agents/desk/code.py"}}}
    condition = {"pythonCodeCondition": {"pythonCode": "agents/desk/code.py"}}
    rule = {"childAgent": "other", "direction": "PARENT_TO_CHILD", "deterministicTransfer": condition}
    app = write_app(
        tmp_path,
        app={"guardrails": ["g"] if place == "guardrail" else []},
        agent={"childAgents": ["other"], "transferRules": [rule] if place == "rule" else []},
        callbacks={place: code} if place.startswith("after") else {},
        tools={"keep": KEEP, **({"inner": code, "harm": inner} if place == "thread" else {})},
        more={
            "agents/desk/code.py": code,
            "agents/other/other.json": json.dumps({"displayName": "Other", "instruction": "Be other."}),
            "guardrails/g/g.json": json.dumps({"displayName": "G", **guardrail}),
        },
    )
    entries: list[dict[str, Any]] = [call("harm" if place == "thread" else "keep"), {"text": "One."}]
    settings = TreeSettings(function_timeout=1.5, fallback_utterance="Once more?")
    async with driven(app, *entries, *[{"text": "Safe."}] * 3, settings=settings, make_pool=ProcessPool) as agent:
        actions = await agent.says("Do harm.")
        assert isinstance(actions[-1], Listen)
        assert words(actions)
        agent.agent.set_variables({"safe": True})
        assert words(await agent.says("Hello?")) in (["Safe."], ["One."])
