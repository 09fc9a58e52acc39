"""The published Sample_Support_Agent, unchanged: loaded, greeted, kept silent, and its own tests."""

from __future__ import annotations

import builtins
import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import HangUp, Listen
from callagent.agents.cx import (
    check_cx_app,
    cx_runtime,
    is_cx_app,
    load_cx_app,
    read_cx_app,
    read_goldens,
    read_tool_tests,
    run_tool_tests,
)
from callagent.agents.cx.runtime.app_code import CLASSES
from callagent.agents.cx.runtime.classes import CallbackContext, Content, Part
from callagent.testing.in_process import InProcessPool
from tests.agents.cx.support import driven
from tests.agents.driving import results, words
from tests.agents.flows.support import scripted

GREETING = "Hi, I am your virtual assistant. How can I help you today?"
_TESTS = "evals/callback_tests/tests/root_agent/before_model_callbacks/before_model/test.py"
_CODE = "evals/callback_tests/agents/root_agent/before_model_callbacks/before_model/python_code.py"


@pytest.fixture(scope="session")
def template(wheel: Path) -> Path:
    """The wheel's project template."""
    return next(path for path in wheel.rglob("project-template") if path.is_dir())


@pytest.fixture
def sample(template: Path) -> Path:
    return template / "cxas_app" / "Sample_Support_Agent"


def test_it_loads_without_errors(sample: Path) -> None:
    app = read_cx_app(sample)
    assert is_cx_app(sample)
    assert check_cx_app(sample).errors == ()
    assert sorted(app.agents) == ["root_agent", "troubleshoot_agent"]
    assert app.root_agent == "root_agent"
    assert sorted(app.tools) == ["lookup_account", "payload_update_tool", "set_session_state"]
    assert app.variables["no_input_counter"] == "0"


def test_it_is_written_back_unchanged(sample: Path, tmp_path: Path) -> None:
    app = read_cx_app(sample)
    app.files.write(tmp_path / "again")
    app.files.write(tmp_path / "again.zip")
    originals = {path.relative_to(sample): path.read_bytes() for path in sample.rglob("*") if path.is_file()}
    copies = tmp_path / "again"
    assert {path.relative_to(copies): path.read_bytes() for path in copies.rglob("*") if path.is_file()} == originals
    assert read_cx_app(tmp_path / "again.zip").files.contents == app.files.contents


async def test_the_greeting_needs_no_model(sample: Path) -> None:
    async with driven(sample) as agent:
        actions = await agent.start()
        assert words(actions) == [GREETING]
        assert isinstance(actions[-1], Listen)
        assert agent.model.requests == []


async def test_three_silences_end_the_call_with_the_apps_reason(sample: Path) -> None:
    async with driven(sample) as agent:
        await agent.start()
        first, second, third = [await agent.says() for _ in range(3)]
        assert words(first) == [f"Sorry, I didn't hear anything. {GREETING}"]
        assert words(second) == [f"I still can't hear you. {GREETING}"]
        assert words(third) == [
            "I'm sorry, but I'm unable to hear you. Please try calling again later. Have a great day."
        ]
        assert third[-1] == HangUp()
        assert agent.agent.record().metrics == [{"name": "end_session_reason", "value": "no_input_limit"}]
        assert agent.model.requests == []


async def test_speech_resets_the_count_of_silences(sample: Path) -> None:
    async with driven(sample, {"text": "What is the trouble?"}) as agent:
        await agent.start()
        await agent.says()
        assert agent.state["no_input_counter"] == "1"
        assert words(await agent.says("My phone is broken.")) == ["What is the trouble?"]
        assert agent.state["no_input_counter"] == "0"


async def test_a_trigger_that_the_model_sets_escalates(sample: Path) -> None:
    call = {
        "name": "set_session_state",
        "arguments": {"_action_trigger": "escalate", "_escalation_reason": "wants a person"},
    }
    async with driven(sample, {"calls": [call]}) as agent:
        await agent.start()
        actions = await agent.says("I want a person.")
        assert words(actions) == [
            "I understand. Let me connect you with a specialist who can help. Please hold for a moment."
        ]
        ending: Any = actions[-1]
        assert (ending.destination, ending.method) == ("live_agent", "bye")
        assert results(actions)["set_session_state"]["status"] == "success"
        assert agent.state["_action_trigger"] == ""


async def test_a_lookup_that_fails_escalates_after_the_greeting(sample: Path) -> None:
    variables = {"account_id": "9820598207", "customer_id": "4444444"}
    async with driven(sample, variables=variables) as agent:
        assert words(await agent.start()) == [GREETING]
        assert agent.state["api_failed"] == "true"
        actions = await agent.says("My bill is wrong.")
        assert "technical issue" in words(actions)[0]
        assert agent.model.requests == []


async def test_the_conversation_goes_to_the_other_agent_and_stays_there(sample: Path) -> None:
    entries: list[dict[str, Any]] = [
        {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "troubleshoot_agent"}}]},
        {"text": "Is it switched on?"},
        {"text": "Then switch it on."},
    ]
    async with driven(sample, *entries) as agent:
        await agent.start()
        assert words(await agent.says("My phone does not work.")) == ["Is it switched on?"]
        assert words(await agent.says("No.")) == ["Then switch it on."]
        assert agent.agent.record().step == "troubleshoot_agent"


@pytest.fixture
def platform_names(monkeypatch: pytest.MonkeyPatch, template: Path) -> None:
    """What the sample's tests rely on: our classes as builtins, and under the names that they import."""
    for name, each in CLASSES.items():
        monkeypatch.setattr(builtins, name, each, raising=False)
    package, utils = types.ModuleType("cxas_scrapi"), types.ModuleType("cxas_scrapi.utils")
    library: Any = types.ModuleType("cxas_scrapi.utils.callback_libs")
    library.CallbackContext, library.Content, library.Part = CallbackContext, Content, Part
    for module in (package, utils, library):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, "python_code", _load(template / _CODE, "python_code"))
    monkeypatch.setattr(sys, "path", list(sys.path))


def _load(path: Path, name: str) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.usefixtures("platform_names")
def test_its_own_callback_tests_pass_with_our_classes(template: Path) -> None:
    module = _load(template / _TESTS, "sample_callback_tests")
    passed = 0
    for kind in vars(module).values():
        if isinstance(kind, type) and kind.__name__.startswith("Test"):
            for name in sorted(name for name in vars(kind) if name.startswith("test_")):
                getattr(kind(), name)()
                passed += 1
    assert passed == 18


async def test_its_tool_tests_pass(sample: Path, template: Path) -> None:
    project = load_cx_app(sample, scripted(), InProcessPool(cx_runtime(sample)))
    results = await run_tool_tests(project, read_tool_tests(template / "evals/tool_tests/example_tool_tests.yaml"))
    assert [each.name for each in results if not each.passed] == []
    assert len(results) == 4
    await project.close()


def test_its_goldens_are_read(template: Path) -> None:
    goldens = [each for file in sorted((template / "evals/goldens").glob("*.yaml")) for each in read_goldens(file)]
    assert "auth_routing_happy_path" in [each.name for each in goldens]
    assert goldens[0].variables == {"account_id": "9820598207", "customer_id": "4444444"}
