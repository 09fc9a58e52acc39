"""Rules of `check`: each finding has one, each is explained, and what the platform would refuse is told."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from callagent.agents.cx import check_cx_app, check_cx_imports, cx_runtime
from callagent.agents.cx.format.document_reader import CheckRule
from callagent.server.projects import check
from callagent.workers import ProcessPool
from tests.agents.cx.support import write_app
from tests.end_to_end.baresip import free_port

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "apps.md"
CALLBACK = "def before_model_callback(callback_context, llm_request):\n"


def test_the_documentation_explains_each_rule() -> None:
    rows = re.findall(r"^\| (CX\d+) \| (.+) \|$", DOCUMENTATION.read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(rule.value, rule.meaning) for rule in CheckRule]


@pytest.mark.parametrize(
    ("source", "rule", "line"),
    [
        (f"def sayHello():\n    pass\n{CALLBACK}    pass\n", CheckRule.CAMEL_CASE, 1),
        (f"{CALLBACK}    return {{'text': 'x'}}\n", CheckRule.RETURNS_DICT, 2),
        (f"{CALLBACK}    try:\n        pass\n    except:\n        pass\n", CheckRule.BARE_EXCEPT, 4),
        (f"{CALLBACK}    tools.look_up({{}})\n", CheckRule.CALLED_TOOL, 2),
        ("x: Optional[str] = None\n" + CALLBACK + "    pass\n", CheckRule.TYPING, 1),
        ("def before_model_callback(callback_context: Tool, llm_request):\n    pass\n", CheckRule.ANNOTATION, 1),
        (f"{CALLBACK}    Part(text='x')\n", CheckRule.BARE_PART, 2),
        (f"{CALLBACK}    x = (\n", CheckRule.NOT_PYTHON, 2),
        ("def before_model(callback_context):\n    pass\n", CheckRule.NO_CALLBACK, 1),
        ("def before_model_callback(context):\n    pass\n", CheckRule.CALLBACK_ARGUMENTS, 1),
        ("import requests\n" + CALLBACK + "    pass\n", CheckRule.IMPORT, 1),
    ],
)
def test_callbacks(source: str, rule: CheckRule, line: int, tmp_path: Path) -> None:
    report = check_cx_app(write_app(tmp_path, callbacks={"before_model": source}))
    assert [(each.rule, each.line) for each in (*report.errors, *report.warnings)] == [(rule.value, line)]


@pytest.mark.parametrize(
    ("source", "rules"),
    [
        ("def look(a: str) -> dict:\n    'Looks.'\n    return {}\n", []),
        ("def look(a: str) -> dict:\n    return {}\n", [CheckRule.NO_DOCSTRING]),
        ("def look(a) -> dict:\n    'Looks.'\n    return {}\n", [CheckRule.NO_HINT]),
        (
            "def look(a: str) -> dict:\n    'Looks.'\n    def inner():\n        return 1\n    inner()\n",
            [CheckRule.NO_RETURN],
        ),
        ("def look(**kwargs) -> dict:\n    'Looks.'\n    return {}\n", [CheckRule.KEYWORDS]),
        ("def look(a: int = 'x') -> dict:\n    'Looks.'\n    return {}\n", [CheckRule.DEFAULT]),
    ],
)
def test_tools(source: str, rules: list[CheckRule], tmp_path: Path) -> None:
    report = check_cx_app(write_app(tmp_path, tools={"look": source}))
    assert [each.rule for each in (*report.errors, *report.warnings)] == rules


@pytest.mark.parametrize(
    ("instruction", "rule", "line"),
    [
        ("<taskflow>\nGreet.\n</taskflow>", CheckRule.TASKFLOW, 1),
        ("a\n<trigger>The caller is not a customer</trigger>", CheckRule.NEGATIVE_TRIGGER, 2),
        ("word " * 3001, CheckRule.LONG_INSTRUCTION, 1),
        ("\n\nGo to {@AGENT: Bills}.", CheckRule.NO_SUCH_AGENT, 3),
        ("Call {@TOOL: look} and {@TOOL: nothing}.", CheckRule.TOOL_NOT_GIVEN, 1),
        ("Call ${TOOL:look}.", CheckRule.REFERENCE_SYNTAX, 1),
        ("Go to {AGENT: Desk}.", CheckRule.REFERENCE_SYNTAX, 1),
        ("{% for a in b %}", CheckRule.OTHER_TAG, 1),
        ("{% if a %}", CheckRule.CONDITION, 1),
    ],
)
def test_instructions(instruction: str, rule: CheckRule, line: int, tmp_path: Path) -> None:
    tools = {"look": "def look(a: str) -> dict:\n    'Looks.'\n    return {}\n"}
    report = check_cx_app(write_app(tmp_path, tools=tools, instruction=instruction))
    found = [(each.rule, each.file, each.line) for each in (*report.errors, *report.warnings)]
    assert found == [(rule.value, "agents/desk/instruction.txt", line)]


def test_a_tool_that_an_instruction_forgets_is_told_of_where_it_is_listed(tmp_path: Path) -> None:
    tools = {name: f"def {name}(a: str) -> dict:\n    'Does.'\n    return {{}}\n" for name in ("look", "find")}
    (warning,) = check_cx_app(write_app(tmp_path, tools=tools, instruction="Call {@TOOL: look}.")).warnings
    assert (warning.rule, warning.file) == (CheckRule.TOOL_NOT_NAMED, "agents/desk/desk.json")
    assert "'find'" in warning.message


STUBBORN = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass\n"
TOOL = "def look() -> dict:\n    'Looks.'\n    return {}\n\n\n"


@pytest.mark.parametrize(
    ("source", "rule", "line"),
    [
        (f"{TOOL}import sys\nsys.exit(3)\n", CheckRule.ENDLESS, 7),
        (f"{TOOL}while True:\n    pass\n", CheckRule.ENDLESS, 6),
        (f"{TOOL}import os\nos._exit(1)\n", CheckRule.ENDLESS, 1),
        (f"{TOOL}{STUBBORN}", CheckRule.ENDLESS, 8),
        (f"{TOOL}raise ValueError('no')\n", CheckRule.FAILS, 6),
    ],
)
async def test_python_that_cannot_be_run_is_an_error_with_its_place(
    source: str, rule: CheckRule, line: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callagent.agents.cx.runtime.session.IMPORT_SECONDS", 0.5)
    pool = ProcessPool(cx_runtime(write_app(tmp_path, tools={"look": source})))
    try:
        (found,) = (await check_cx_imports(pool)).errors
    finally:
        await pool.close()
    assert (found.rule, found.file) == (rule, "tools/look/python_function/python_code.py")
    assert abs(found.line - line) <= (1 if rule is CheckRule.ENDLESS else 0)


def test_the_command_tells_the_rule_behind_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_app(tmp_path, tools={"look": f"{TOOL}import sys\nsys.exit(3)\n"})
    assert check(path, as_json=False) == 1
    told = capsys.readouterr().out.splitlines()
    assert told == ["tools/look/python_function/python_code.py:7: [CX027] error: SystemExit: 3", "1 errors, 0 warnings"]
    assert check(path, as_json=True) == 1
    assert '"rule": "CX027"' in capsys.readouterr().out


def test_a_server_that_is_away_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    address = f"http://127.0.0.1:{free_port(socket.SOCK_STREAM)}/mcp"
    own = {"displayName": "Towns", "mcpToolset": {"serverAddress": address}}
    path = write_app(tmp_path, more={"toolsets/towns/towns.json": json.dumps(own)})
    assert check(path, as_json=False) == 0
    away, total = capsys.readouterr().out.splitlines()
    assert away.startswith("toolsets/towns/towns.json:1: [CX017] warning: ")
    assert total == "0 errors, 1 warnings"
