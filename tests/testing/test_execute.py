"""`callagent functions execute`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.commands import main
from tests.agents.flows.support import flow_config, function, step, write_project

FILES = {
    "agent_settings/rules.txt": "{{fn:add}}",
    "functions/add.py": function(
        "add",
        """
        conv.log.info("adding", a=a)
        conv.state.sum = a + b + (conv.state.sum or 0)
        conv.goto_flow("F")
        print("printed")
        return {"content": f"{conv.state.sum} for {conv.caller_number} on {conv.clock.today()}"}
        """,
        ", a: int, b: int",
    ),
    "functions/fail.py": function("fail", "raise ValueError('no')"),
    "flows/f/flow_config.yaml": flow_config("F", "One"),
    "flows/f/steps/one.yaml": step("One", "Hello {{ft:here}}"),
    "flows/f/functions/here.py": function("here", "return flow.current_step", flow=True),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, FILES)


def execute(capsys: pytest.CaptureFixture[str], project: Path, *options: str) -> tuple[int, Any]:
    status = main(["functions", "execute", options[0], str(project), *options[1:]])
    out = capsys.readouterr()
    return status, json.loads(out.out) if out.out else out.err


def test_a_function_is_run_with_its_arguments_and_shows_what_it_did(project: Path, capsys: pytest.CaptureFixture[str]):
    options = ("add", "--args", '{"a": 1, "b": "2"}', "--state", '{"sum": 4}', "--caller", "+49", "--at", "2026-03-02")
    status, answer = execute(capsys, project, *options)
    assert (status, answer["body"], answer["error"]) == (0, {"content": "7 for +49 on 2026-03-02"}, None)
    assert answer["state"]["sum"] == 7
    assert answer["effects"]["goto_flow"] == "F"
    assert any(entry.get("content") == "adding" for entry in answer["logs"])
    assert answer["runtime"] >= 0


@pytest.mark.parametrize("options", [("f/here",), ("here", "--flow", "F")])
def test_a_flows_function_stands_on_its_start_step(
    project: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
):
    assert execute(capsys, project, *options)[1]["body"] == "One"


def test_a_function_that_fails_is_exit_status_1(project: Path, capsys: pytest.CaptureFixture[str]):
    status, answer = execute(capsys, project, "fail")
    assert (status, answer["error"]) == (1, "ValueError: no")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("gone",), "no function 'gone'; it has: add, fail, f/here"),
        (("add", "--args", "{"), "--args is not valid JSON"),
        (("add", "--args", "[]"), "--args should be a JSON object"),
        (("add", "--at", "noon"), "--at 'noon' is not a time"),
    ],
)
def test_what_cannot_be_run_says_why(
    project: Path, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
):
    status, error = execute(capsys, project, *options)
    assert status == 1
    assert message in error
