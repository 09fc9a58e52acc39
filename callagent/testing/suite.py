"""Run a project's test cases, one conversation each, and the tests that lie with an app.

An app's tests are tool tests, goldens and simulations; its tools answer with their fakes.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from callagent.agents.cx import (
    CxProject,
    Golden,
    Judge,
    Simulation,
    call_failures,
    read_evaluations,
    run_goldens,
    run_tool_tests,
)
from callagent.agents.flows import FlowProject, FlowSettings, TestCase
from callagent.errors import CallagentError, UserError
from callagent.models import LanguageModel, ScriptedModel
from callagent.testing.simulated_caller import (
    Caller,
    Lines,
    ModelCaller,
    ScriptedCaller,
    judge_function_calls,
    judge_meaning,
    judge_prompts,
)
from callagent.testing.text_chat import ChatOptions, TextCall, open_text_call

MAX_TURNS = 40


@dataclass(slots=True)
class TestResult:
    __test__ = False
    name: str
    file: str
    passed: bool
    seconds: float
    prompt_assertion_results: list[dict[str, Any]] = field(default_factory=list)
    function_call_failures: list[str] = field(default_factory=list)
    error: str | None = None
    """Why the conversation itself could not be held."""
    turns: list[dict[str, Any]] = field(default_factory=list)
    metrics: list[dict[str, Any]] = field(default_factory=list)
    end_reason: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def failures(self) -> list[str]:
        """Everything that made it fail, one text each."""
        found = [self.error] if self.error else []
        found += [
            f"{one['prompt']}: {one['reason']}" for one in self.prompt_assertion_results if one["is_pass"] is False
        ]
        return [*found, *self.function_call_failures]


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part in the tests of a run."""

    project: FlowProject
    model: LanguageModel
    """The agent's."""
    settings: FlowSettings
    simulator: LanguageModel | None
    """Plays the caller and judges; None: only scripted callers can be played, nothing is judged."""
    lines: Mapping[str, Lines]


async def run_suite(
    cast: Cast, cases: Sequence[TestCase], clock: Callable[[], float], told: Callable[[TestResult], None]
) -> list[TestResult]:
    """One after the other; `told` hears of each as it ends."""
    results = []
    for case in cases:
        began = clock()
        result = TestResult(case.name, case.file, passed=False, seconds=0.0)
        try:
            await _run(cast, case, result)
        except CallagentError as error:
            result.error = f"{type(error).__name__}: {error}"
        result.seconds = round(clock() - began, 3)
        result.passed = not result.failures
        results.append(result)
        told(result)
    return results


async def _run(cast: Cast, case: TestCase, result: TestResult) -> None:
    lines = cast.lines.get(case.name)
    model = cast.model if lines is None or lines.model is None else ScriptedModel.from_entries(*lines.model)
    project = cast.project.twin(model, _settings(cast.settings, case))
    options = ChatOptions(
        caller=case.caller_number, headers=case.sip_headers, environment=cast.settings.environment, started=case.at
    )
    call = await open_text_call(project, options)
    try:
        await converse(call, _caller(cast, case, lines), result)
    finally:
        record = (await call.close())["record"]
        result.metrics, result.end_reason = record["metrics"], record["end_reason"]
    judge = ScriptedModel.from_entries(*lines.judge) if lines is not None and lines.judge else cast.simulator
    result.prompt_assertion_results = await judge_prompts(judge, case.prompt_assertions, result.turns)
    result.function_call_failures = judge_function_calls(case, result.turns)


async def converse(call: TextCall, caller: Caller, result: TestResult, limit: int = MAX_TURNS) -> None:
    """Until the call ends, the caller has nothing more to say, or `limit` turns are over."""
    conversation: list[tuple[str, str]] = []
    row = await call.start()
    for number in range(limit):
        result.turns.append(_turn(row, first=number == 0))
        conversation.append(("agent", " ".join(row["agent"])))
        if call.ended or (line := await caller.next_line(conversation)) is None:
            return
        conversation.append(("caller", line))
        row = await call.say(line)
    result.turns.append(_turn(row, first=False))


def _caller(cast: Cast, case: TestCase, lines: Lines | None) -> Caller:
    if lines is not None:
        return ScriptedCaller(lines.says)
    if cast.simulator is None:
        raise UserError(
            f"the caller file has no lines for test '{case.name}', and there is no model to play the caller"
        )
    return ModelCaller(cast.simulator, case.scenario, case.language or cast.project.project.languages.default)


def _settings(settings: FlowSettings, case: TestCase) -> FlowSettings:
    mocks = {
        integration: {name: [asdict(answer) for answer in answers] for name, answers in operations.items()}
        for integration, operations in case.api_mocks.items()
    }
    return replace(
        settings,
        channel="webchat" if case.channel == "webchat" else settings.channel,
        language=case.language,
        variant=case.variant,
        at=case.at,
        integration_attributes=case.integration_attributes or None,
        api_mocks=mocks,
        # A test writes to nobody and remembers nobody: messages are kept in the record.
        senders={},
        memory=None,
    )


def _turn(row: Mapping[str, Any], *, first: bool) -> dict[str, Any]:
    """A turn in the shape of the format's test results."""
    ended = row["ended"]
    shown = {
        "user_input": None if first else row["user"],
        "agent_response": " ".join(row["agent"]),
        "function_calls": [
            {"name": each["name"], "arguments": each["arguments"], "result": each["result"], "error": each["error"]}
            for each in row["functions"]
        ],
        "flow": row["flow"],
        "step": row["step"],
    }
    if ended:
        handoff = ended["handoff"]
        shown["ended"] = f"handed to {handoff['destination']}" if handoff else ended["reason"]
    return shown


Wanted = Callable[[str, Sequence[str]], bool]
Job = tuple[str, str, Callable[[TestResult], Awaitable[None]]]
"""File, name, and what fills in the result."""


@dataclass(frozen=True, slots=True)
class AppCast:
    """Who takes part."""

    path: Path
    simulator: LanguageModel | None
    """Plays the caller and judges; None: words are not compared, and only scripted callers can be played."""
    lines: Mapping[str, Lines]


class _Failures(Protocol):
    @property
    def failures(self) -> tuple[str, ...]: ...


async def run_app_suite(
    project: CxProject, cast: AppCast, wanted: Wanted, told: Callable[[TestResult], None]
) -> list[TestResult]:
    """One after the other; `told` hears of each as it ends. Raises `UserError` when there are none."""
    jobs = _jobs(project, cast, wanted)
    if not jobs:
        raise UserError(f"no test to run with '{cast.path}': evals/ and evaluations/ hold none of that name or tag")
    results = []
    for file, name, work in jobs:
        began = time.monotonic()
        result = TestResult(name, file, passed=False, seconds=0.0)
        try:
            await work(result)
        except CallagentError as error:
            result.error = f"{type(error).__name__}: {error}"
        result.seconds = round(time.monotonic() - began, 3)
        result.passed = not result.failures
        results.append(result)
        told(result)
    return results


def _jobs(project: CxProject, cast: AppCast, wanted: Wanted) -> list[Job]:
    found = read_evaluations(project.app, cast.path)
    judge = None if cast.simulator is None else partial(judge_meaning, cast.simulator)
    jobs: list[Job] = []
    for file, test in found.tool_tests:
        if wanted(test.name, ()):
            jobs.append((file, test.name, partial(_checked, partial(run_tool_tests, project, [test]))))
    for file, golden in found.goldens:
        if wanted(golden.name, golden.tags):
            jobs.append((file, golden.name, partial(_replay, project, cast, golden, judge)))
    for file, simulation in found.simulations:
        if wanted(simulation.name, simulation.tags):
            jobs.append((file, simulation.name, partial(_simulate, project, cast, simulation)))
    return jobs


async def _checked(run: Callable[[], Awaitable[Sequence[_Failures]]], result: TestResult) -> None:
    for each in await run():
        result.function_call_failures += each.failures


async def _replay(project: CxProject, cast: AppCast, golden: Golden, judge: Judge | None, result: TestResult) -> None:
    (replayed,) = await run_goldens(project, [golden], judge)
    result.function_call_failures += replayed.failures
    result.turns = list(replayed.turns)
    result.prompt_assertion_results = await judge_prompts(cast.simulator, golden.expectations, result.turns)


async def _simulate(project: CxProject, cast: AppCast, simulation: Simulation, result: TestResult) -> None:
    caller = _app_caller(project, cast, simulation)
    call = await open_text_call(project.for_test(simulation.variables or {}, simulation.mocks), ChatOptions())
    try:
        await converse(call, caller, result, simulation.max_turns)
    finally:
        record = (await call.close())["record"]
        result.metrics, result.end_reason = record["metrics"], record["end_reason"]
    result.prompt_assertion_results = await judge_prompts(cast.simulator, simulation.expectations, result.turns)
    called = [(each["name"], each["arguments"]) for turn in result.turns for each in turn["function_calls"]]
    result.function_call_failures = call_failures(simulation.calls, called)


def _app_caller(project: CxProject, cast: AppCast, simulation: Simulation) -> Caller:
    lines = cast.lines.get(simulation.name)
    if lines is not None:
        return ScriptedCaller(lines.says)
    if cast.simulator is None:
        raise UserError(
            f"the caller file has no lines for simulation '{simulation.name}', and there is no model to play the caller"
        )
    return ModelCaller(cast.simulator, simulation.scenario, project.app.language or "en-US")
