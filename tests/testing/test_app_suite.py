"""`callagent test` with an app: tool tests, goldens, simulations, exported evaluations, fakes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.commands import main
from tests.agents.cx.support import GREETING, write_app

LOOK_UP = """
    import os

    def look_up(number: str) -> dict:
        raise RuntimeError("the real thing")
"""
FAKE = """
def fake_tool_call(tool, input, callback_context):
    callback_context.variables["asked"] = input["number"]
    return {"place": f"shelf {input['number']}", "tool": tool.name}
"""
TOOL_TESTS = """
tests:
  - name: it is found
    tool: look_up
    args: {number: "7"}
    expectations:
      response: [{path: $.result.place, operator: equals, value: shelf 7}]
      variables: [{path: $.asked, operator: equals, value: "7"}]
  - name: it is elsewhere
    tool: look_up
    args: {number: "7"}
    expectations:
      response: [{path: $.place, operator: contains, value: cellar}]
"""
GOLDENS = """
conversations:
  - conversation: a greeting and an answer
    tags: [P0]
    turns:
      - {user: , agent: Hello.}
      - user: Where is 7?
        agent: On shelf 7.
        tool_calls: [{action: look_up, args: {number: "7"}}]
"""
SIMULATIONS = """
- name: somebody looks for it
  tags: [P1]
  steps:
    - {goal: Find out where number 7 is, success_criteria: The agent names the shelf, max_turns: 4}
  expectations: [The agent is polite]
"""
EXPECTED = {"tool": "look_up", "args": {"number": "7"}}
SCENARIO = {
    "displayName": "exported scenario",
    "scenario": {
        "task": "Find out where number 7 is.",
        "userFacts": [{"name": "number", "value": "7"}],
        "maxTurns": 3,
        "scenarioExpectations": [{"toolExpectation": {"expectedToolCall": EXPECTED}}],
    },
}  # fmt: skip
GOLDEN = {
    "displayName": "exported golden",
    "golden": {
        "turns": [
            {
                "steps": [
                    {"userInput": {"event": {"event": "session start"}}},
                    {"expectation": {"agentResponse": {"chunks": [{"text": "Hello."}]}}},
                ]
            }
        ]
    },
}
LOOKS_UP: list[dict[str, Any]] = [
    {"calls": [{"name": "look_up", "arguments": {"number": "7"}}]},
    {"text": "On shelf 7."},
]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    more = {
        "evals/tool_tests/one.yaml": TOOL_TESTS,
        "evals/goldens/two.yaml": GOLDENS,
        "evals/simulations/three.yaml": SIMULATIONS,
        "evals/simulations/four.yaml": "evals: [{name: another, tags: [P9], steps: [{goal: Say hello}]}]",
        "evaluations/scenario/scenario.json": json.dumps(SCENARIO),
        "evaluations/golden/golden.json": json.dumps(GOLDEN),
        "tools/look_up/fake.py": FAKE,
    }
    path = write_app(tmp_path, callbacks={"before_model": GREETING}, tools={"look_up": LOOK_UP}, more=more)
    tool = path / "tools/look_up/look_up.json"
    data = json.loads(tool.read_text())
    data["toolFakeConfig"] = {"enableFakeMode": True, "codeBlock": {"pythonCode": "tools/look_up/fake.py"}}
    tool.write_text(json.dumps(data))
    return path


def run(app: Path, *arguments: str, script: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    file = app.parent / "model.yaml"
    file.write_text(json.dumps(script))
    main(["test", str(app), "--model", f"script:{file}", "--json", *arguments])
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return {test["name"]: test for test in found["tests"]}


def test_tool_tests_and_goldens(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("it is found", "it is elsewhere", "a greeting and an answer", "exported golden")
    arguments = [each for name in names for each in ("--name", name)]
    tests = run(app, *arguments, script=LOOKS_UP, capsys=capsys)
    assert {name: test["passed"] for name, test in tests.items()} == {
        "it is found": True,
        "it is elsewhere": False,
        "a greeting and an answer": True,
        "exported golden": True,
    }
    assert "cellar" in tests["it is elsewhere"]["function_call_failures"][0]


def test_simulations_with_a_caller_file(app: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "caller.yaml"
    lines.write_text(json.dumps({"somebody looks for it": ["Where is 7?"], "exported scenario": ["Is there a 7?"]}))
    simulator = tmp_path / "judge.yaml"
    verdicts = [{"pass": True, "reason": "it does"}, {"pass": False, "reason": "it is rude"}]
    simulator.write_text(json.dumps([{"text": json.dumps(each)} for each in verdicts]))
    tests = run(
        app, "--caller-file", str(lines), "--simulator", f"script:{simulator}",
        "--name", "somebody looks for it", "--name", "exported scenario", script=LOOKS_UP, capsys=capsys,
    )  # fmt: skip
    assert tests["exported scenario"]["passed"]
    told = tests["somebody looks for it"]
    assert not told["passed"]
    assert [one["is_pass"] for one in told["prompt_assertion_results"]] == [True, False]
    assert [turn["agent_response"] for turn in told["turns"]] == ["Hello.", "On shelf 7."]


def test_a_tag_chooses_and_no_test_is_an_error(app: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(run(app, "--tag", "P0", script=LOOKS_UP, capsys=capsys)) == ["a greeting and an answer"]
    (another,) = run(app, "--tag", "P9", script=LOOKS_UP, capsys=capsys).values()
    assert "no lines for simulation 'another'" in another["error"]
    assert main(["test", str(app), "--model", "rules", "--tag", "nothing"]) == 1
    assert "no test to run" in capsys.readouterr().err
