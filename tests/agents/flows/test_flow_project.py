"""A loaded project, and calls in real worker processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import callagent.agents.flows as front
from callagent.agents import FunctionEnded
from callagent.agents.flows import FlowProject, FlowSettings, load_flow_project, project_runtime
from callagent.errors import ProjectError
from callagent.models.scripted import ScriptedModel
from callagent.testing.in_process import InProcessPool
from callagent.workers import ProcessPool
from tests.agents.driving import started
from tests.agents.flows.support import (
    FERRY,
    Driven,
    call_info,
    flow_config,
    function,
    of,
    scripted,
    step,
    words,
    write_project,
)


def ferry(settings: FlowSettings | None = None) -> FlowProject:
    return load_flow_project(FERRY, ScriptedModel.from_entries(), InProcessPool(project_runtime(FERRY)), settings)


def test_the_front_names_what_it_has():
    assert front.__all__ == sorted(front.__all__)
    for name in front.__all__:
        assert getattr(front, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Turn'"):
        _ = front.Turn


def test_fixed_phrases_are_known_before_the_call_and_variable_ones_are_left_out():
    assert list(ferry().phrases()) == [
        "This call may be recorded.",
        "Welcome to North Island Ferries. How can I help?",
        FlowSettings().fallback_utterance,
        FlowSettings().failure_utterance,
        "I cannot hear you. Goodbye.",
        "Nearly there.",
    ]


def test_a_variant_that_the_project_does_not_have_is_refused():
    with pytest.raises(ProjectError, match=r"no variant 'west'\. The project has: north, south\."):
        ferry(FlowSettings(variant="west"))


def test_pronunciations_are_for_the_voice(tmp_path: Path):
    project = write_project(
        tmp_path,
        {
            "agent_settings/rules.txt": "Rules.",
            "voice/response_control/pronunciations.yaml": "pronunciations: [{regex: 24/7, replacement: always}]\n",
        },
    )
    loaded = load_flow_project(project, ScriptedModel.from_entries(), InProcessPool(project_runtime(project)))
    assert loaded.pronounce("Open 24/7.", "en-US") == "Open always."


def test_the_graph_has_the_moves_of_all_functions_that_prompts_name(tmp_path: Path):
    files = {
        "flows/order/flow_config.yaml": flow_config("Order", "Ask"),
        "flows/order/steps/ask.yaml": step("Ask", "{{fn:complain}} {{ fn:next }}('now') {{ft:own}} {{ft:both}}"),
        "flows/order/steps/pay.yaml": step("Pay", "{{fn:both}} {{fn:next}} {{fn:unknown}}"),
        "flows/order/functions/own.py": function("own", "flow.goto_step('Pay')", flow=True),
        "flows/order/functions/both.py": function("both", "flow.goto_step('Ask')", flow=True),
        "flows/complaint/flow_config.yaml": flow_config("Complaint", "Listen"),
        "flows/complaint/steps/listen.yaml": step("Listen", "{{fn:next}}"),
        "functions/complain.py": function("complain", "conv.goto_flow('Complaint')"),
        "functions/next.py": function("next", "flow.goto_step('Pay')", ", flow: Flow"),
        "functions/both.py": function("both", "conv.goto_flow('Complaint')"),
    }
    root = write_project(tmp_path, files)
    project = load_flow_project(root, ScriptedModel.from_entries(), InProcessPool(project_runtime(root)))
    edges = {(edge.source, edge.target, edge.by) for edge in project.graph().edges}
    assert edges == {
        ("Order/Ask", "Complaint/Listen", "complain"),
        ("Order/Ask", "Order/Pay", "next"),
        ("Order/Ask", "Order/Pay", "own"),
        # `ft` means the flow's function of this name, and `fn` the project's.
        ("Order/Ask", "Order/Ask", "both"),
        ("Order/Pay", "Complaint/Listen", "both"),
        ("Order/Pay", "Order/Pay", "next"),
    }


async def test_each_call_has_its_own_conversation_and_variant():
    project = load_flow_project(
        FERRY,
        ScriptedModel.from_entries({"text": "Yes?"}),
        InProcessPool(project_runtime(FERRY)),
        FlowSettings(variant="south"),
    )
    written: list[Any] = []

    async def write(name: str, value: Any) -> None:
        written.append(name)

    first, second = [await project.open(call_info(call_id=name), write) for name in ("a", "b")]
    said = words(await started(first))
    assert said[-1] == "Welcome to South Island Ferries. How can I help?"
    assert second.record().metrics == []
    assert first.record().metrics != []
    for agent in (first, second):
        await agent.close()
    await project.close()


async def test_in_a_process_a_function_past_its_deadline_is_killed_and_the_state_stays(tmp_path: Path):
    root = write_project(
        tmp_path,
        {
            "agent_settings/rules.txt": "{{fn:keep}} {{fn:spin}} {{fn:leave}} {{fn:read}}",
            "functions/keep.py": function("keep", "conv.state.kept = 42"),
            "functions/spin.py": function("spin", "conv.write_metric('SPINNING')\nwhile True:\n    pass"),
            "functions/leave.py": function("leave", "import os\nos._exit(3)"),
            "functions/read.py": function("read", "return f'kept {conv.state.kept}'"),
        },
    )
    names = ("keep", "spin", "leave", "read")
    model = scripted(*({"calls": [{"name": name, "arguments": {}}]} for name in names), {"text": "Done."})
    pool = ProcessPool(project_runtime(root))
    project = load_flow_project(root, model, pool, FlowSettings(function_timeout=0.5))
    written: list[tuple[str, Any]] = []

    async def write(name: str, value: Any) -> None:
        written.append((name, value))

    agent = Driven(await project.open(call_info(), write), model, written)
    try:
        await agent.start()
        actions = await agent.says("go")
        errors = [(ended.error or "").partition(":")[0] for ended in of(FunctionEnded, actions)]
        assert errors == ["", "FunctionTimeout", "WorkerDied", ""]
        assert model.messages()[-1]["content"] == "kept 42"
        assert words(actions) == ["Done."]
        assert written == [("SPINNING", None)]
    finally:
        await agent.agent.close()
        await project.close()
