"""AppExport apps: folders and zips, written back, and what is wrong with them."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from callagent.agents.cx import check_cx_app, check_cx_imports, cx_runtime, is_cx_app, read_cx_app
from callagent.errors import ProjectError
from callagent.testing.in_process import InProcessPool
from tests.agents.cx.support import DESK, PROJECTS, driven, write_app
from tests.agents.driving import words


def test_the_folder_of_another_format_is_no_app(tmp_path: Path) -> None:
    assert not is_cx_app(PROJECTS / "ferry")
    assert not is_cx_app(tmp_path)
    (tmp_path / "app.json").write_text('{"name": "something else"}')
    assert not is_cx_app(tmp_path)
    (tmp_path / "not.zip").write_text("no zip")
    assert not is_cx_app(tmp_path / "not.zip")


def test_an_app_in_yaml_has_everything_it_declares() -> None:
    app = read_cx_app(DESK)
    assert (app.name, app.root_agent, app.language) == ("City Utilities", "front_desk", "en-US")
    assert app.variables == {"meter": "", "late": False}
    assert sorted(app.agents) == ["billing", "front_desk", "repairs"]
    assert app.agents["repairs"].instruction == "Mend it."
    assert app.agent_named("apps/1/agents/Billing") == "billing"
    assert is_cx_app(DESK)
    assert check_cx_app(DESK).errors == ()


async def test_a_zip_is_the_same_app_and_runs(tmp_path: Path) -> None:
    app = read_cx_app(DESK)
    app.files.write(tmp_path / "desk.zip")
    again = read_cx_app(tmp_path / "desk.zip")
    assert again.files.contents == app.files.contents
    assert again.files.root == "desk"
    assert is_cx_app(tmp_path / "desk.zip")
    async with driven(tmp_path / "desk.zip") as agent:
        assert words(await agent.start()) == ["City utilities, hello."]


@pytest.mark.parametrize("name", ["../out.txt", "/etc/out.txt"])
def test_a_zip_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("app/app.json", "{}")
        archive.writestr(name, "x")
    with pytest.raises(ProjectError, match="leads out of"):
        read_cx_app(tmp_path / "bad.zip")


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    app = write_app(tmp_path)
    (app / "secret.txt").symlink_to("/etc/passwd")
    with pytest.raises(ProjectError, match="leads out of"):
        read_cx_app(app)


def test_broken_files_are_told_with_their_line(tmp_path: Path) -> None:
    more = {
        "tools/broken/broken.json": '{\n "displayName": "x",\n oops}',
        "tools/odd/odd.json": "[]",
        "agents/other/other.yaml": "displayName: x\n  bad: [",
    }
    report = check_cx_app(write_app(tmp_path, more=more))
    found = {(each.file, each.line) for each in report.errors}
    assert found == {("tools/broken/broken.json", 3), ("tools/odd/odd.json", 1), ("agents/other/other.yaml", 2)}


def test_settings_of_another_type_are_told_with_the_line_of_their_key(tmp_path: Path) -> None:
    settings = {
        "displayName": "Little App",
        "rootAgent": "desk",
        "errorHandlingSettings": {"bargeInConfig": "not this one", "fallbackResponseConfig": "words"},
        "audioProcessingConfig": {"bargeInConfig": ["off"]},
        "languageSettings": "en",
    }
    guardrail = {"displayName": "g", "contentFilter": {}, "codeCallback": "x.py"}
    more = {"app.json": json.dumps(settings, indent=1), "guardrails/g/g.json": json.dumps(guardrail, indent=1)}
    report = check_cx_app(write_app(tmp_path, more=more))
    assert [str(each) for each in report.errors] == [
        "app.json:6: [CX002] 'fallbackResponseConfig' should be an object with keys and values",
        "app.json:9: [CX002] 'bargeInConfig' should be an object with keys and values",
        "app.json:13: [CX002] 'languageSettings' should be an object with keys and values",
        "guardrails/g/g.json:4: [CX002] 'codeCallback' should be an object with keys and values",
    ]


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        ({"childAgents": ["nobody"]}, "'childAgents' names 'nobody', which is not in agents/"),
        ({"childAgents": ["desk"]}, "'childAgents' names 'desk', which already has a parent: an agent has only one"),
        ({"tools": ["nothing"]}, "'tools' names 'nothing', which is not in tools/"),
        ({"toolsets": [{"toolset": "none"}]}, "'toolsets' names 'none', which is not in toolsets/"),
        ({"guardrails": ["none"]}, "'guardrails' names 'none', which is not in guardrails/"),
        ({"instruction": "agents/desk/none.txt"}, "'instruction' names 'agents/desk/none.txt', which does not exist"),
        ({"beforeModelCallbacks": [{"pythonCode": "x.py"}]}, "'pythonCode' names 'x.py', which does not exist"),
        ({"tools": "all"}, "'tools' should be a list of names"),
    ],
)
def test_references_that_lead_nowhere_are_errors_at_the_key(tmp_path: Path, agent: Any, message: str) -> None:
    app = write_app(tmp_path, agent=agent)
    errors = [(each.file, each.message) for each in check_cx_app(app).errors]
    assert ("agents/desk/desk.json", message) in errors
    with pytest.raises(ProjectError, match="cannot be loaded"):
        read_cx_app(app)


def test_an_app_without_its_root_agent_is_an_error(tmp_path: Path) -> None:
    report = check_cx_app(write_app(tmp_path, app={"rootAgent": "nobody"}))
    assert [str(each) for each in report.errors] == [
        "app.json:1: [CX004] 'rootAgent' is 'nobody'; there is no such agent in agents/"
    ]


def test_a_tool_is_of_one_kind_and_a_variable_of_a_known_type(tmp_path: Path) -> None:
    both = json.dumps({"clientFunction": {}, "agentTool": {}})
    app = {"variableDeclarations": [{"name": "v", "schema": {"type": "COMPLEX"}}]}
    report = check_cx_app(write_app(tmp_path, app=app, more={"tools/two/two.json": both}))
    told = " ".join(each.message for each in report.errors)
    assert "exactly one of" in told
    assert "'COMPLEX' is not one of" in told


def test_python_is_checked_without_being_run(tmp_path: Path) -> None:
    callbacks = {
        "before_model": "import requests\n\ndef before_model_callback(callback_context, request):\n    pass\n",
        "after_model": "def other():\n    pass\n",
        "before_agent": "def before_agent_callback(\n",
    }
    tools = {"greedy": "def greedy(**kwargs) -> dict:\n    return {}\n"}
    report = check_cx_app(write_app(tmp_path, callbacks=callbacks, tools=tools))
    told = [f"{each.file.split('/')[-3]}:{each.line}: {each.message}" for each in report.errors]
    assert any(each.startswith("before_model_callbacks:1: 'requests' may not be imported") for each in told)
    assert (
        "before_model_callbacks:3: before_model_callback is called with callback_context, llm_request, not with request"
        in told
    )
    assert any(
        each.startswith("after_model_callbacks:1: the file has no function 'after_model_callback'") for each in told
    )
    assert any(each.startswith("before_agent_callbacks:1: not valid Python") for each in told)
    assert any(each.startswith("greedy:1: 'greedy' may not take **kwargs") for each in told)


def test_what_does_not_work_here_is_a_warning(tmp_path: Path) -> None:
    more = {
        "tools/search/search.json": json.dumps({"googleSearchTool": {}}),
        "guardrails/judge/judge.json": json.dumps({"modelSafety": {}}),
        "toolsets/far/far.json": json.dumps({"mcpToolset": {}}),
    }
    app = write_app(tmp_path, more=more, instruction="Hello.\n{% for each in names %}{% if vip %}Be kind.{% endif %}")
    warnings = {(each.file, each.line) for each in check_cx_app(app).warnings}
    assert warnings == {
        ("tools/search/search.json", 1),
        ("guardrails/judge/judge.json", 1),
        ("toolsets/far/far.json", 1),
        ("agents/desk/instruction.txt", 2),
    }


def test_a_rule_and_a_pattern_that_cannot_be_read_are_errors(tmp_path: Path) -> None:
    rule = {"childAgent": "x", "deterministicTransfer": {"expressionCondition": {"expression": "a ;"}}}
    filters = {"contentFilter": {"bannedContents": ["("], "matchType": "REGEXP_MATCH"}}
    more = {"guardrails/g/g.json": json.dumps(filters)}
    errors = {
        each.file for each in check_cx_app(write_app(tmp_path, agent={"transferRules": [rule]}, more=more)).errors
    }
    assert errors == {"agents/desk/desk.json", "guardrails/g/g.json"}


async def test_what_shows_only_when_the_code_runs_is_told_with_its_line(tmp_path: Path) -> None:
    callbacks = {"before_model": "x = 1\nraise RuntimeError('not today')\ndef before_model_callback(): pass\n"}
    pool = InProcessPool(cx_runtime(write_app(tmp_path, callbacks=callbacks)))
    (error,) = (await check_cx_imports(pool)).errors
    assert (error.line, error.message) == (2, "RuntimeError: not today")
    await pool.close()


def test_code_of_guardrails_rules_and_fakes_is_checked_too(tmp_path: Path) -> None:
    code = {"codeCallback": {"beforeModelCallback": {"pythonCode": "guardrails/g/code.py"}}}
    condition = {"pythonCodeCondition": {"pythonCode": "agents/desk/rule.py"}}
    rule = {"childAgent": "desk", "deterministicTransfer": condition}
    fake = {"toolFakeConfig": {"enableFakeMode": True, "codeBlock": {"pythonCode": "tools/look/fake.py"}}}
    more = {
        "guardrails/g/g.json": json.dumps(code),
        "guardrails/g/code.py": "def before_model_callback(context):\n    pass\n",
        "agents/desk/rule.py": "import socket\n",
        "tools/look/look.json": json.dumps({"clientFunction": {"name": "look"}, **fake}),
        "tools/look/fake.py": "def fake_tool_call(\n",
    }
    told = {(each.file, each.line) for each in check_cx_app(
        write_app(tmp_path, agent={"transferRules": [rule]}, more=more)
    ).errors}  # fmt: skip
    assert told == {("guardrails/g/code.py", 1), ("agents/desk/rule.py", 1), ("tools/look/fake.py", 1)}
