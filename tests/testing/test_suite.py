"""A project's test suite, run with a scripted and with a simulated caller."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from callagent.commands import main
from callagent.errors import UserError
from callagent.testing.suite import read_caller_file
from tests.agents.flows.support import function, write_project

BOOK = function(
    "book",
    """
    found = conv.api.tables.free(day=day, params={"size": size})
    conv.write_metric("FREE", found.json()["free"])
    return {"utterance": f"{conv.clock.today()}: booked for {size}.", "hangup": True}
    """,
    ", size: int, day: str",
    decorators='@func_description("Book a table")\n',
)
CASE = """\
name: {name}
scenario: You want a table for four.
tags: [{tag}]
simulated_at: 2026-03-02T09:30:00
caller_number: '+4930'
sip_headers: {{X-Line: red}}
api_mocks: {{tables: {{free: [{{respond: {{body: {{free: 3}}}}, repeat: -1}}]}}}}
prompt_assertions: [A table is booked.]
function_call_assertions:
- name: book
  arguments: [{{parameter_name: size, expected_value: {size}, value_type: integer}}]
"""
FILES = {
    "agent_settings/rules.txt": "Call {{fn:book}}.",
    "functions/book.py": BOOK,
    "functions/start_function.py": function(
        "start_function", 'return {"utterance": f"Line {conv.sip_headers[\'X-Line\']}, {conv.caller_number}."}'
    ),
    "config/api_integrations.yaml": """\
api_integrations:
- name: tables
  environments: {sandbox: {base_url: 'http://127.0.0.1:9', auth_type: none}}
  operations: [{name: free, method: GET, resource: 'free/{day}'}]
""",
    "voice/configuration.yaml": "greeting: {welcome_message: Hi., language_code: en-US}\n",
    "test_suite/four_people.yaml": CASE.format(name="four-people", tag="booking", size=4),
    "test_suite/five_people.yaml": CASE.format(name="five-people", tag="large", size=5),
}
AGENT = [{"text": "For how many?"}, {"calls": [{"name": "book", "arguments": {"size": 4, "day": "monday"}}]}]
GOOD = [{"text": '```json\n{"pass": true, "reason": "It says booked."}\n```'}]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path / "project", FILES)


def caller_file(tmp_path: Path, **tests: Any) -> str:
    path = tmp_path / "caller.yaml"
    path.write_text(json.dumps({name.replace("_", "-"): entry for name, entry in tests.items()}))
    return str(path)


def played(says: list[str], judge: list[Any] = GOOD) -> dict[str, Any]:
    return {"says": says, "model": AGENT, "judge": judge}


def run(project: Path, *options: str) -> int:
    return main(["test", str(project), *options])


def test_a_passing_and_a_failing_test(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = caller_file(tmp_path, four_people=played(["a table", "four"]), five_people=played(["a table", "four"]))
    junit = tmp_path / "out" / "results.xml"
    assert run(project, "--caller-file", lines, "--junit", str(junit)) == 1
    shown = capsys.readouterr().out
    assert "passed  four-people" in shown
    assert "FAILED  five-people" in shown
    assert "book(size=5) was not called; it was called with (size=4, day='monday')" in shown
    assert shown.endswith("1 passed, 1 failed\n")
    suite = ElementTree.parse(junit).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("2", "1", "0")
    failed, passed = suite.findall("testcase")
    assert failed.find("failure") is not None
    assert "caller: four" in (passed.findtext("system-out") or "")


def test_the_call_is_as_the_case_says(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    lines = caller_file(tmp_path, four_people=played(["a table", "four", "never said"]))
    assert run(project, "--caller-file", lines, "--tag", "booking", "--json") == 0
    report = json.loads(capsys.readouterr().out)
    (test,) = report["tests"]
    assert (report["passed"], report["failed"]) == (1, 0)
    start, asked, booked = test["turns"]
    assert (start["user_input"], start["agent_response"]) == (None, "Line red, +4930.")
    assert (asked["user_input"], asked["agent_response"]) == ("a table", "For how many?")
    assert booked["agent_response"] == "2026-03-02: booked for 4."
    assert booked["function_calls"][0]["arguments"] == {"size": 4, "day": "monday"}
    assert test["metrics"] == [{"name": "FREE", "value": 3}]
    assert test["end_reason"] == "agent_hangup"
    assert test["prompt_assertion_results"] == [
        {"prompt": "A table is booked.", "is_pass": True, "reason": "It says booked."}
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [('{"pass": false, "reason": "No."}', "A table is booked.: No."), ("well", "did not answer with JSON: well")],
)
def test_an_expectation_that_does_not_hold_fails_the_test(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], answer: str, reason: str
):
    lines = caller_file(tmp_path, four_people=played(["a table", "four"], [{"text": answer}]))
    assert run(project, "--caller-file", lines, "--name", "four-people") == 1
    assert reason in capsys.readouterr().out


def test_without_a_model_to_judge_expectations_are_left_open(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lines = caller_file(tmp_path, four_people=played(["a table", "four"], []))
    assert run(project, "--caller-file", lines, "--name", "four-people") == 0
    assert "1 expectations were not judged" in capsys.readouterr().out


def test_a_model_plays_the_caller_and_judges(project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    agent, simulator = tmp_path / "agent.yaml", tmp_path / "simulator.yaml"
    agent.write_text(json.dumps(AGENT[:1]))
    said = {"text": "A table, please.", "expect": {"system": "You want a table for four", "last_user": "Line red"}}
    judged = {"text": GOOD[0]["text"], "expect": {"last_user": "Caller: A table, please.\nAgent: For how many"}}
    simulator.write_text(json.dumps([said, {"text": "[HANG UP]"}, judged]))
    assert (
        run(project, "--name", "four-people", "--model", f"script:{agent}", "--simulator", f"script:{simulator}") == 1
    )
    shown = capsys.readouterr().out
    assert "book(size=4) was not called" in shown
    assert "A table is booked" not in shown


def test_a_conversation_that_cannot_be_held_is_an_error_of_its_test(
    project: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    lines = caller_file(tmp_path, four_people={"says": ["a table"], "model": []})
    assert run(project, "--caller-file", lines) == 1
    shown = capsys.readouterr().out
    assert "ScriptError" in shown
    assert "no lines for test 'five-people'" in shown


def test_no_test_to_run_is_a_mistake_that_names_the_tests(project: Path, capsys: pytest.CaptureFixture[str]):
    assert run(project, "--tag", "nothing") == 1
    assert "the tests in" in (error := capsys.readouterr().err)
    assert "five-people, four-people" in error


@pytest.mark.parametrize("text", ["[", "- a", "t: {lines: []}", "t: [1]", "t: {says: [], model: x}"])
def test_a_caller_file_that_cannot_be_used_names_itself(tmp_path: Path, text: str):
    path = tmp_path / "caller.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=r"caller file .*caller\.yaml"):
        read_caller_file(path)
    with pytest.raises(UserError, match="cannot be read"):
        read_caller_file(tmp_path / "none.yaml")
