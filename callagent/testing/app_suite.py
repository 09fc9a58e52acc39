"""Runs the tests that lie with an app: tool tests, goldens, simulations. Its tools answer with their fakes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

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
from callagent.errors import CallagentError, UserError
from callagent.models import LanguageModel
from callagent.testing.caller import Caller, Lines, ModelCaller, ScriptedCaller
from callagent.testing.judge import judge_meaning, judge_prompts
from callagent.testing.suite import TestResult, converse
from callagent.testing.text_chat import ChatOptions, open_text_call

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
    caller = _caller(project, cast, simulation)
    call = await open_text_call(project.twin(simulation.variables or {}, simulation.mocks), ChatOptions())
    try:
        await converse(call, caller, result, simulation.max_turns)
    finally:
        record = (await call.close())["record"]
        result.metrics, result.end_reason = record["metrics"], record["end_reason"]
    result.prompt_assertion_results = await judge_prompts(cast.simulator, simulation.expectations, result.turns)
    called = [(each["name"], each["arguments"]) for turn in result.turns for each in turn["function_calls"]]
    result.function_call_failures = call_failures(simulation.calls, called)


def _caller(project: CxProject, cast: AppCast, simulation: Simulation) -> Caller:
    lines = cast.lines.get(simulation.name)
    if lines is not None:
        return ScriptedCaller(lines.says)
    if cast.simulator is None:
        raise UserError(
            f"the caller file has no lines for simulation '{simulation.name}', and there is no model to play the caller"
        )
    return ModelCaller(cast.simulator, simulation.scenario, project.app.language or "en-US")
