"""Every project loads, passes the check, imports, starts, and runs each of its functions without an error of ours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import callagent
from callagent.agents.flows import FlowProject, FlowSettings, check_project, load_flow_project, project_runtime
from callagent.agents.flows.engine.function_calls import FunctionAnswer
from callagent.agents.flows.format.functions import ProjectFunction
from callagent.call_info import CallInfo
from callagent.models.scripted import ScriptedModel
from callagent.workers import ProcessPool
from tests.agents.flows.example_projects.support import FOLDER, NAMES, needs_projects

pytestmark = needs_projects
IMPORTABLE, FILES = 325, 327
OURS = str(Path(callagent.__file__).parent)
DELIBERATE = ("MissingHandoff", "MissingTemplate", "FunctionNotImported", "SecretNotFound", "ChatCompletionError")
"""Raised by us for what the project or its arguments got wrong."""
VALUES = {"str": "", "int": 1, "float": 1.0, "bool": True}


def info() -> CallInfo:
    return CallInfo("example", "inbound", None, None, "text", datetime.now(UTC))


@asynccontextmanager
async def opened(name: str) -> AsyncIterator[tuple[FlowProject, ProcessPool]]:
    pool = ProcessPool(project_runtime(FOLDER / name))
    await pool.start()
    model = ScriptedModel.from_entries(*[{"text": "{}"}] * 50)
    project = load_flow_project(FOLDER / name, model, pool, FlowSettings(environment="sandbox"))
    try:
        yield project, pool
    finally:
        await project.close()


async def described(pool: ProcessPool) -> list[dict[str, Any]]:
    lease = await pool.lease({})
    try:
        answer = await lease.run({"op": "describe"}, timeout=60, on_message=lambda message: None)
    finally:
        await lease.close()
    functions: list[dict[str, Any]] = answer["functions"]
    return functions


@pytest.mark.parametrize("name", NAMES)
def test_the_check_finds_no_error(name: str):
    assert check_project(FOLDER / name).errors == ()


async def test_all_modules_but_those_with_a_defect_can_be_imported():
    files = importable = 0
    for name in NAMES:
        async with opened(name) as (_, pool):
            functions = await described(pool)
        files += len(functions)
        importable += sum(function["error"] is None for function in functions)
    assert files == FILES
    assert importable >= IMPORTABLE


@pytest.mark.parametrize("name", NAMES)
async def test_the_start_function_runs_without_headers_number_and_settings(name: str):
    async with opened(name) as (project, _):
        start = project.project.start_function
        assert start is not None
        answer = await project.run_function(info(), start, {}, {})
    assert answer.error is None


@pytest.mark.parametrize("name", NAMES)
async def test_no_function_fails_because_of_us(name: str):
    faults = []
    async with opened(name) as (project, _):
        for function in project.project.all_functions():
            arguments = {parameter.name: VALUES[parameter.type] for parameter in function.parameters}
            answer = await project.run_function(info(), function, arguments, {})
            if answer.error and is_ours(answer):
                faults.append(f"{place(function)}: {answer.error}")
    assert faults == []


def is_ours(answer: FunctionAnswer) -> bool:
    """The innermost frame of the traceback is in our code, and we did not mean to raise."""
    error = answer.data.get("error") or {}
    if error.get("type") in DELIBERATE:
        return False
    if not error.get("traceback"):
        return True
    frames = [line for line in str(error["traceback"]).splitlines() if line.lstrip().startswith('File "')]
    missing = error.get("type") == "AttributeError" and any(
        f"'{kind}' object" in str(error.get("message")) for kind in ("Conversation", "Flow", "Utils", "State")
    )
    return missing or not frames or OURS in frames[-1]


def place(function: ProjectFunction) -> str:
    return f"{function.file}:{function.line}"
