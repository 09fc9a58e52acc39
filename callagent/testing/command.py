"""The commands `test` and `functions execute`."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from callagent.agents.cx import CxProject, is_cx_app
from callagent.agents.flows import FlowProject, FlowSettings, TestCase, load_test_cases
from callagent.config import Config, override
from callagent.errors import UserError
from callagent.server import flow_settings, instant, open_language_model, open_project
from callagent.testing.app_suite import AppCast, run_app_suite
from callagent.testing.caller import read_caller_file
from callagent.testing.execute import Execution, execute
from callagent.testing.report import as_json, as_text, summary, write_junit
from callagent.testing.suite import Cast, TestResult, run_suite

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from callagent.models import LanguageModel


def run_tests(config: Config, options: argparse.Namespace) -> int:
    """`callagent test`; exit status 1 when a test failed."""
    results = asyncio.run(_run_tests(config, options))
    if options.junit:
        write_junit(results, options.project.resolve().name, options.junit)
    print(as_json(results) if options.json else summary(results))  # noqa: T201
    return 0 if all(result.passed for result in results) else 1


async def _run_tests(config: Config, options: argparse.Namespace) -> list[TestResult]:
    if options.model:
        config = override(config, {"model.name": options.model})
    settings = flow_settings(config, options.env)
    lines = read_caller_file(options.caller_file) if options.caller_file else {}

    def told(result: TestResult) -> None:
        if not options.json:
            print(as_text(result), flush=True)  # noqa: T201

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
    print(json.dumps(answer, ensure_ascii=False, indent=2, default=str))  # noqa: T201
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
