"""Exported goldens and scenarios with all that they expect, mocks of tools included."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.commands import main
from tests.agents.cx.support import GREETING, write_app

LOOK_UP = """
    def look_up(number: str) -> dict:
        raise RuntimeError("the real thing")
"""
NOTE = """
    def note(text: str) -> dict:
        set_variable("noted", text)
        return {"kept": True}
"""
START = {"userInput": {"event": {"event": "welcome"}}}
ANSWERS: list[dict[str, Any]] = [
    {"calls": [{"name": "look_up", "arguments": {"number": "7"}}, {"name": "note", "arguments": {"text": "seven"}}]},
    {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "Keeper"}}]},
    {"text": "On shelf 7."},
    {"text": "Goodbye."},
]


def expects(**expectation: Any) -> dict[str, Any]:
    return {"expectation": expectation}


def golden(*expected: dict[str, Any], last: dict[str, Any] | None = None) -> dict[str, Any]:
    mock = expects(mockToolResponse={"tool": "apps/a/tools/look_up", "response": {"place": "shelf 7", "row": 3}})
    asked = {"steps": [{"userInput": {"text": "Where is 7?"}}, mock, *expected]}
    parting = {"steps": [{"userInput": {"text": "Thank you."}}, *([last] if last else [])]}
    return {"displayName": "replayed", "golden": {"turns": [{"steps": [START]}, asked, parting]}}


def run(
    root: Path,
    evaluation: dict[str, Any],
    capsys: pytest.CaptureFixture[str],
    *more: str,
    files: dict[str, str] | None = None,
) -> dict[str, Any]:
    keeper = {"displayName": "Keeper", "instruction": "Keep."}
    app = write_app(
        root,
        callbacks={"before_model": GREETING},
        tools={"look_up": LOOK_UP, "note": NOTE},
        agent={"childAgents": ["Keeper"]},
        more={
            "agents/keeper/keeper.json": json.dumps(keeper),
            "evaluations/one/one.json": json.dumps(evaluation),
            **(files or {}),
        },
    )
    model = root / "model.yaml"
    model.write_text(json.dumps(ANSWERS))
    main(["test", str(app), "--model", f"script:{model}", "--json", *more])
    (test,) = json.loads(capsys.readouterr().out)["tests"]
    found: dict[str, Any] = test
    return found


GOOD = (
    expects(toolCall={"displayName": "look_up", "args": {"number": "7"}}),
    expects(toolResponse={"displayName": "look_up", "response": {"place": "shelf 7"}}),
    expects(updatedVariables={"noted": "seven"}),
    expects(agentTransfer={"targetAgent": "projects/p/locations/l/apps/a/agents/keeper"}),
    expects(agentResponse={"role": "agent", "chunks": [{"text": "On shelf 7."}]}),
    expects(noToolCalls=True, skipEvaluation=True),
)


def test_all_that_a_golden_expects_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test = run(tmp_path, golden(*GOOD, last=expects(noToolCalls=True)), capsys)
    assert test["function_call_failures"] == []
    assert test["passed"]
    assert [turn["agent_response"] for turn in test["turns"]] == ["Hello.", "On shelf 7.", "Goodbye."]


@pytest.mark.parametrize(
    ("expected", "failure"),
    [
        (
            {"toolResponse": {"displayName": "look_up", "response": {"place": "shelf 8"}}},
            "turn 2: look_up answered [{'place': 'shelf 7', 'row': 3}]; expected: {'place': 'shelf 8'}",
        ),
        ({"updatedVariables": {"noted": "eight"}}, "turn 2: variable noted is 'seven'; expected: 'eight'"),
        ({"agentTransfer": {"displayName": "desk"}}, "turn 2: the agent is 'keeper'; expected: 'desk'"),
        ({"noToolCalls": True}, "turn 2: look_up, note, transfer_to_agent was called; expected: nothing"),
    ],
)
def test_what_does_not_hold_is_told(
    expected: dict[str, Any], failure: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    test = run(tmp_path, golden(expects(**expected)), capsys)
    assert test["function_call_failures"] == [failure]


def test_a_scenario_mocks_its_tools_and_says_how_it_is_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scenario = {
        "displayName": "asked",
        "scenario": {
            "task": "Find out where number 7 is.",
            "rubrics": ["The agent is polite."],
            "userGoalBehavior": "USER_GOAL_REJECTED",
            "scenarioExpectations": [
                {
                    "toolExpectation": {
                        "expectedToolCall": {"tool": "look_up", "args": {"number": "7"}},
                        "mockToolResponse": {"response": {"place": "shelf 7"}},
                    }
                }
            ],
        },
    }
    lines, judge = tmp_path / "caller.yaml", tmp_path / "judge.yaml"
    lines.write_text(json.dumps({"asked": ["Where is 7?"]}))
    judge.write_text(json.dumps([{"text": '{"pass": true, "reason": "r"}'}] * 2))
    test = run(tmp_path, scenario, capsys, "--caller-file", str(lines), "--simulator", f"script:{judge}")
    assert test["passed"], test
    assert [one["prompt"] for one in test["prompt_assertion_results"]] == [
        "The agent is polite.",
        "The caller does not get what they want: the agent refuses it.",
    ]
    called = {each["name"]: each["result"] for turn in test["turns"] for each in turn["function_calls"]}
    assert called["look_up"] == {"place": "shelf 7"}


WRITTEN = """
conversations:
  - conversation: written
    turns:
      - {user: "<event>welcome</event>", agent: Hello.}
    expectations: [The agent greets., The agent is brief.]
"""


def test_what_a_golden_expects_of_the_whole_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    judge = tmp_path / "judge.yaml"
    judge.write_text(json.dumps([{"text": json.dumps({"pass": passed, "reason": "r"})} for passed in (True, False)]))
    test = run(
        tmp_path,
        {"displayName": "other"},
        capsys,
        "--simulator",
        f"script:{judge}",
        files={"evals/goldens/g.yaml": WRITTEN},
    )
    assert [one["is_pass"] for one in test["prompt_assertion_results"]] == [True, False]
    assert not test["passed"]
