"""`callagent test` and `functions execute`: run them and report the results to people, programs and CI."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from callagent.agents.cx import CxProject, is_cx_app
from callagent.agents.flows import FlowProject, FlowSettings, TestCase, load_test_cases
from callagent.call_info import CallInfo
from callagent.config import Config, override
from callagent.errors import UserError
from callagent.server import flow_settings, instant, open_language_model, open_project
from callagent.testing import AppCast, Cast, TestResult, read_caller_file, run_app_suite, run_suite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callagent.models import LanguageModel


def run_tests(config: Config, options: argparse.Namespace) -> int:
    """`callagent test`; exit status 1 when a test failed."""
    results = asyncio.run(_run_tests(config, options))
    if options.junit:
        write_junit(results, options.project.resolve().name, options.junit)
    print(as_json(results) if options.json else summary(results))
    return 0 if all(result.passed for result in results) else 1


async def _run_tests(config: Config, options: argparse.Namespace) -> list[TestResult]:
    if options.model:
        config = override(config, {"model.name": options.model})
    settings = flow_settings(config, options.env)
    lines = read_caller_file(options.caller_file) if options.caller_file else {}

    def told(result: TestResult) -> None:
        if not options.json:
            print(as_text(result), flush=True)

    if is_cx_app(options.project):
        async with _open_app(config, options.project, settings) as app, _simulator(config, options) as simulator:
            return await run_app_suite(app, AppCast(options.project, simulator, lines), _wanted(options), told)
    async with _opened(config, options.project, settings) as (project, model), _simulator(config, options) as simulator:
        cases = _chosen(load_test_cases(project.project), options)
        cast = Cast(project, model, settings, simulator, lines)
        return await run_suite(cast, cases, time.monotonic, told)


def _wanted(options: argparse.Namespace) -> Callable[[str, Sequence[str]], bool]:
    """Whether a test of this name, with these tags, is asked for."""
    tags, names = set(options.tag or ()), set(options.name or ())
    return lambda name, own: (not tags or bool(tags & set(own))) and (not names or name in names)


def _chosen(cases: tuple[TestCase, ...], options: argparse.Namespace) -> list[TestCase]:
    """Those with one of the tags, and of the names. Raises `UserError` when there are none."""
    wanted = _wanted(options)
    chosen = [case for case in cases if wanted(case.name, case.tags)]
    if not chosen:
        known = ", ".join(case.name for case in cases) or "none"
        raise UserError(f"no test to run; the tests in {options.project}/test_suite are: {known}")
    return chosen


@asynccontextmanager
async def _simulator(config: Config, options: argparse.Namespace) -> AsyncIterator[LanguageModel | None]:
    """The model that plays the caller and judges: the named one, else the agent's, where that one can speak freely."""
    name = options.simulator or config.model.name
    if name == "rules" or (name.startswith("script:") and not options.simulator):
        yield None
        return
    model = open_language_model(override(config, {"model.name": name}))
    try:
        yield model
    finally:
        await model.close()


@asynccontextmanager
async def _opened(
    config: Config, path: Path, settings: FlowSettings
) -> AsyncIterator[tuple[FlowProject, LanguageModel]]:
    model = open_language_model(config)
    try:
        project = await open_project(path, model, config, settings)
        try:
            if not isinstance(project, FlowProject):
                raise UserError(f"'{path}' is no flow project: it has no test suite and no functions of that kind")
            yield project, model
        finally:
            await project.close()
    finally:
        await model.close()


@asynccontextmanager
async def _open_app(config: Config, path: Path, settings: FlowSettings) -> AsyncIterator[CxProject]:
    model = open_language_model(config)
    try:
        project = await open_project(path, model, config, settings)
        try:
            assert isinstance(project, CxProject)
            yield project
        finally:
            await project.close()
    finally:
        await model.close()


def execute_function(config: Config, options: argparse.Namespace) -> int:
    """`callagent functions execute`; exit status 1 when the function failed."""
    if options.model:
        config = override(config, {"model.name": options.model})
    arguments, state = _object(options.args, "--args"), _object(options.state, "--state")
    settings = replace(flow_settings(config, options.env), at=instant(options.at), variant=options.variant, senders={})
    execution = Execution(options.name, options.flow, arguments, state, options.caller)
    answer = asyncio.run(_execute(config, options.project, settings, execution))
    print(json.dumps(answer, ensure_ascii=False, indent=2, default=str))
    return 1 if answer["error"] else 0


async def _execute(config: Config, path: Path, settings: FlowSettings, execution: Execution) -> dict[str, Any]:
    async with _opened(config, path, settings) as (project, _):
        return await execute(project, execution)


def _object(text: str | None, option: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text or "{}")
    except json.JSONDecodeError as error:
        raise UserError(f"{option} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UserError(f"{option} should be a JSON object such as '{{\"size\": 4}}'")
    return value


@dataclass(frozen=True, slots=True)
class Execution:
    name: str
    """`name`, or `flow/name` with the flow's folder or display name."""
    flow: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    """What `conv.state` holds before."""
    caller: str | None = None


async def execute(project: FlowProject, execution: Execution) -> dict[str, Any]:
    """`{"body", "error", "logs", "effects", "state", "runtime"}`; `runtime` in milliseconds.

    Raises `UserError` when the project has no such function.
    """
    info = CallInfo(
        call_id="execute",
        direction="inbound",
        caller=execution.caller,
        callee=None,
        wire="text",
        started=datetime.now(UTC),
    )
    flow, _, name = execution.name.rpartition("/")
    function = project.find_function(name, execution.flow or flow or None)
    if function is None:
        raise UserError(
            f"the project has no function '{execution.name}'; it has: {', '.join(project.function_names())}"
        )
    answer = await project.run_function(info, function, execution.arguments, execution.state)
    return {
        "body": answer.returned,
        "error": answer.error,
        "logs": [dict(entry) for entry in answer.logs],
        "effects": {name: value for name, value in answer.effects.items() if value},
        "state": answer.data.get("state") or {},
        "runtime": round(answer.duration_ms, 3),
    }


def as_text(result: TestResult) -> str:
    lines = [f"{'passed' if result.passed else 'FAILED'}  {result.name}  ({result.seconds:.1f} s)"]
    lines += [f"        {failure}" for failure in result.failures]
    unjudged = sum(one["is_pass"] is None for one in result.prompt_assertion_results)
    if unjudged:
        lines.append(f"        {unjudged} expectations were not judged: there is no model to judge them")
    return "\n".join(lines)


def summary(results: Sequence[TestResult]) -> str:
    failed = sum(not result.passed for result in results)
    return f"{len(results) - failed} passed, {failed} failed"


def as_json(results: Sequence[TestResult]) -> str:
    document = {
        "passed": sum(result.passed for result in results),
        "failed": sum(not result.passed for result in results),
        "tests": [result.to_json() for result in results],
    }
    return json.dumps(document, ensure_ascii=False, indent=2, default=str)


def write_junit(results: Sequence[TestResult], name: str, path: Path) -> None:
    """One `testsuite` with a `testcase` each; the conversation is its `system-out`."""
    suite = ElementTree.Element(
        "testsuite",
        name=name,
        tests=str(len(results)),
        failures=str(sum(not result.passed and not result.error for result in results)),
        errors=str(sum(bool(result.error) for result in results)),
        time=f"{sum(result.seconds for result in results):.3f}",
    )
    for result in results:
        case = ElementTree.SubElement(suite, "testcase", classname=name, name=result.name, time=f"{result.seconds:.3f}")
        if result.failures:
            kind = "error" if result.error else "failure"
            complaint = ElementTree.SubElement(case, kind, message=_clean(result.failures[0]))
            complaint.text = _clean("\n".join(result.failures))
        ElementTree.SubElement(case, "system-out").text = _clean("\n".join(_conversation(result)))
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _conversation(result: TestResult) -> Iterator[str]:
    for turn in result.turns:
        if turn["user_input"] is not None:
            yield f"caller: {turn['user_input']}"
        for call in turn["function_calls"]:
            yield f"        {call['name']}({json.dumps(call['arguments'], ensure_ascii=False, default=str)})"
        yield f"agent:  {turn['agent_response']}"


def _clean(text: str) -> str:
    """Without the characters that XML 1.0 cannot hold."""
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text
    )
