"""`callagent test` and `functions execute`: run a project's tests and functions, and report the results.

Reports are for people (text), programs (JSON) and CI (JUnit XML).
"""

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
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from callagent.agents import AgentProject
from callagent.agents.cx import CxProject
from callagent.agents.flows import FlowProject, FlowSettings, TestCase, load_test_cases
from callagent.call_info import CallInfo
from callagent.config import Config, override
from callagent.errors import UserError
from callagent.json_values import JsonObject, MutableJsonObject, objects_at, parse_json
from callagent.server import flow_settings, open_language_model, open_project, parse_instant
from callagent.testing import AppSuiteSetup, SuiteSetup, TestResult, read_caller_file, run_app_suite, run_suite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callagent.models import LanguageModel


def run_tests(config: Config, options: argparse.Namespace) -> int:
    """Run `callagent test` and return the exit status: 1 when a test failed."""
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

    def report(result: TestResult) -> None:
        # Each result is printed as soon as it is known, because a suite with a model takes minutes.
        if not options.json:
            print(as_text(result), flush=True)

    async with (
        _open_with_model(config, options.project, settings) as (project, model),
        _open_simulator(config, options) as simulator,
    ):
        if isinstance(project, CxProject):
            setup = AppSuiteSetup(options.project, simulator, lines)
            return await run_app_suite(project, setup, _test_filter(options), report)
        flows = _expect_flows(project, options.project)
        cases = _choose_tests(load_test_cases(flows.project), options)
        return await run_suite(SuiteSetup(flows, model, settings, simulator, lines), cases, time.monotonic, report)


def _test_filter(options: argparse.Namespace) -> Callable[[str, Sequence[str]], bool]:
    """Return a function that decides by a test's name and tags whether it is to be run."""
    tags, names = set(options.tag or ()), set(options.name or ())
    return lambda name, test_tags: (not tags or bool(tags & set(test_tags))) and (not names or name in names)


def _choose_tests(cases: tuple[TestCase, ...], options: argparse.Namespace) -> list[TestCase]:
    """Return the tests that are to be run. Raises `UserError` when there are none."""
    is_wanted = _test_filter(options)
    chosen = [case for case in cases if is_wanted(case.name, case.tags)]
    if not chosen:
        known = ", ".join(case.name for case in cases) or "none"
        # Success without a single test would hide a misspelt tag in a CI job.
        raise UserError(f"no test to run; the tests in {options.project}/test_suite are: {known}")
    return chosen


@asynccontextmanager
async def _open_simulator(config: Config, options: argparse.Namespace) -> AsyncIterator[LanguageModel | None]:
    """Open the model that plays the caller and judges: the named one, or else the agent's.

    Yields None if the agent's model cannot do that, because it follows rules or a script of the agent's answers.
    """
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
async def _open_with_model(
    config: Config, path: Path, settings: FlowSettings
) -> AsyncIterator[tuple[AgentProject, LanguageModel]]:
    """Open a project with its model, and close both."""
    model = open_language_model(config)
    try:
        project = await open_project(path, model, config, settings)
        try:
            yield project, model
        finally:
            await project.close()
    finally:
        await model.close()


def _expect_flows(project: AgentProject, path: Path) -> FlowProject:
    """Return the project if it is a flow project. Raises `UserError`."""
    if not isinstance(project, FlowProject):
        raise UserError(
            f"'{path}' is not a flow project: it has no test_suite/ and no functions to execute; name the folder of one"
        )
    return project


def execute_function(config: Config, options: argparse.Namespace) -> int:
    """Run `callagent functions execute` and return the exit status: 1 when the function failed."""
    if options.model:
        config = override(config, {"model.name": options.model})
    arguments, state = _parse_option(options.args, "--args"), _parse_option(options.state, "--state")
    # There are no senders, so that a function that is tried out sends no messages.
    settings = replace(
        flow_settings(config, options.env), at=parse_instant(options.at), variant=options.variant, senders={}
    )
    execution = Execution(options.name, options.flow, arguments, state, options.caller)
    answer = asyncio.run(_execute(config, options.project, settings, execution))
    print(json.dumps(answer, ensure_ascii=False, indent=2, default=str))
    return 1 if answer["error"] else 0


async def _execute(config: Config, path: Path, settings: FlowSettings, execution: Execution) -> JsonObject:
    async with _open_with_model(config, path, settings) as (project, _):
        return await execute(_expect_flows(project, path), execution)


def _parse_option(text: str | None, option: str) -> MutableJsonObject:
    """Return the JSON object of an option. Raises `UserError`."""
    try:
        value = parse_json(text or "{}")
    except ValueError as error:
        raise UserError(f"{option} is not valid JSON: {error}; write an object such as '{{\"size\": 4}}'") from None
    if not isinstance(value, Mapping):
        raise UserError(f"{option} should be a JSON object such as '{{\"size\": 4}}'")
    return dict(value)


@dataclass(frozen=True, slots=True)
class Execution:
    """A function to be run outside a call, with its arguments and the state of the conversation."""

    name: str
    """`name`, or `flow/name` with the flow's folder or display name."""
    flow: str | None = None
    arguments: MutableJsonObject = field(default_factory=dict)
    state: MutableJsonObject = field(default_factory=dict)
    """`conv.state` before the function runs."""
    caller: str | None = None
    """The number in `conv.caller_number`; None: withheld."""


async def execute(project: FlowProject, execution: Execution) -> JsonObject:
    """Run a function and return `{"body", "error", "logs", "effects", "state", "runtime"}`, `runtime` in milliseconds.

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
    # `--flow` wins over the flow in the name.
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
    """Return the lines for a test: whether it passed, and its failures."""
    lines = [f"{'passed' if result.passed else 'FAILED'}  {result.name}  ({result.seconds:.1f} s)"]
    lines += [f"        {failure}" for failure in result.failures]
    unjudged = sum(one["is_pass"] is None for one in result.prompt_assertion_results)
    if unjudged:
        lines.append(f"        {unjudged} expectations were not judged: there is no model to judge them")
    return "\n".join(lines)


def summary(results: Sequence[TestResult]) -> str:
    """Return the last line of the report."""
    failed = sum(not result.passed for result in results)
    return f"{len(results) - failed} passed, {failed} failed"


def as_json(results: Sequence[TestResult]) -> str:
    """Return the report for programs: every test with its conversation."""
    document = {
        "passed": sum(result.passed for result in results),
        "failed": sum(not result.passed for result in results),
        "tests": [result.to_json() for result in results],
    }
    return json.dumps(document, ensure_ascii=False, indent=2, default=str)


def write_junit(results: Sequence[TestResult], name: str, path: Path) -> None:
    """Write the report for CI: a `testsuite` with a `testcase` for each test, whose `system-out` is the conversation.

    An error is a test that could not be run to its end, a failure one whose assertions do not hold.
    """
    # The document has the form of Ant's JUnit task, which GitLab, Jenkins and GitHub's actions read.
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
            complaint = ElementTree.SubElement(case, kind, message=_xml_text(result.failures[0]))
            complaint.text = _xml_text("\n".join(result.failures))
        ElementTree.SubElement(case, "system-out").text = _xml_text("\n".join(_conversation(result)))
    path.parent.mkdir(parents=True, exist_ok=True)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def _conversation(result: TestResult) -> Iterator[str]:
    for turn in result.turns:
        if turn["user_input"] is not None:
            yield f"caller: {turn['user_input']}"
        for call in objects_at(turn, "function_calls"):
            yield f"        {call['name']}({json.dumps(call['arguments'], ensure_ascii=False, default=str)})"
        yield f"agent:  {turn['agent_response']}"


def _xml_text(text: str) -> str:
    """Return the text without the characters that XML 1.0 cannot hold (section 2.2 of its specification)."""
    # Callers' words and functions' results may have control characters, for which a CI server refuses the file.
    return "".join(
        c if c in "\t\n\r" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in text
    )
