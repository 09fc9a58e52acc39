from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents import DelayResponse, LatencyControl
from callagent.agents.flows.format.functions import Goto, Parameter, ProjectFunction, read_function
from callagent.agents.kernel import Findings

SLOW = """
@func_description("Looks it up.")
@func_parameter("number", "The number")
@func_parameter("exact", "Whether exact")
@func_latency_control(
    delay_before_responses_start=1, silence_after_each_response=2, delay_responses=[("One moment.", 2)], randomize=True
)
def look_up(conv: Conversation, flow: Flow, number: str, exact: bool) -> str:
    flow.goto_step("Next", "label")
    conv.goto_flow("Other")
    conv.exit_flow()
    return "x"
"""


def read(root: Path, text: str, kind: str = "flow", name: str = "look_up") -> tuple[ProjectFunction | None, list[str]]:
    (root / f"{name}.py").write_text(text)
    findings = Findings()
    found = read_function(root, f"{name}.py", kind, "F" if kind in ("flow", "step") else None, findings)
    return found, [str(error) for error in findings.errors]


def test_everything_about_a_function_is_read_from_its_source(tmp_path: Path):
    found, errors = read(tmp_path, SLOW)
    assert errors == []
    assert found is not None
    assert found.description == "Looks it up."
    assert found.parameters == (Parameter("number", "str", "The number"), Parameter("exact", "bool", "Whether exact"))
    assert found.latency == LatencyControl(1.0, 2.0, (DelayResponse("One moment.", 2.0),))
    assert found.randomize
    assert found.gotos == (Goto("step", "Next", 9), Goto("flow", "Other", 10), Goto("exit", "", 11))


DESCRIBED = '@func_description("d")\n'


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("def other(conv): pass", "global", "not found in code"),
        ("def look_up(conv: Conversation)\n  pass", "global", "look_up.py:1: Syntax error in function code:"),
        ("def look_up(conv): pass", "global", "Function description cannot be empty."),
        ('@func_description(" ")\ndef look_up(conv): pass', "global", "Function description cannot be empty."),
        (DESCRIBED + "def look_up(c): pass", "global", "'def look_up(conv: Conversation, …)' not found in code."),
        (DESCRIBED + "def look_up(conv, x: str): pass", "flow", "flow: Flow"),
        (DESCRIBED + "def look_up(conv, x): pass", "global", "Parameter 'x' has no type annotation. Supported types:"),
        (DESCRIBED + "def look_up(conv, x: list[str]): pass", "global", "'x' has an unsupported type annotation."),
        (DESCRIBED + "def look_up(conv, x: str = ''): pass", "global", "take no default values"),
        (
            DESCRIBED + '@func_parameter("y", "")\ndef look_up(conv): pass',
            "global",
            "ADK decorators found in raw code.",
        ),
        ("def look_up(conv, flow, x: str): pass", "step", "Function steps cannot have parameters."),
        (
            DESCRIBED
            + "@func_latency_control(delay_before_responses_start=11, delay_responses=[('a', 1)])\n"
            + "def look_up(conv): pass",
            "global",
            "delay_before_responses_start must be between 0 and 10, got 11",
        ),
        (DESCRIBED + "@func_latency_control()\ndef look_up(conv): pass", "global", "delay_responses cannot be empty."),
        (
            DESCRIBED + "@func_latency_control(delay_responses=[('', 1), ('a', 1)])\ndef look_up(conv): pass",
            "global",
            "Delay response message cannot be empty.",
        ),
        ("@func_description(TEXT)\ndef look_up(conv): pass", "global", "should be written out as a literal"),
    ],
)
def test_a_mistake_is_reported_in_the_platform_s_words(tmp_path: Path, text: str, kind: str, message: str):
    _, errors = read(tmp_path, text, kind)
    assert any(message in error for error in errors), errors


def test_project_code_is_never_run(tmp_path: Path):
    _, errors = read(tmp_path, DESCRIBED + "def look_up(conv): pass\nraise SystemExit(3)", "global")
    assert errors == []
