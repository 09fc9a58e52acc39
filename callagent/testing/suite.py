"""Run a project's test cases, one conversation each, and the tests that lie with an app.

An app's tests are tool tests, goldens and simulations; its tools answer with their fakes. A caller is played by lines
of a file or by a language model; a model also judges the statements that a test makes about the conversation.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Protocol, TypedDict

from callagent import json_values
from callagent.agents import cx
from callagent.agents.flows import FlowProject, FlowSettings, TestCase
from callagent.errors import CallagentError, ProviderError, ProviderTimeout, UserError
from callagent.models import LanguageModel, Message, ModelSettings, ScriptedModel
from callagent.testing.text_chat import ChatOptions, TextCall, TurnRow, open_text_call

MAX_TURNS = 40


@dataclass(slots=True)
class TestResult:
    """How one test went."""

    # pytest would take it for a class of tests, by its name.
    __test__ = False
    name: str
    file: str
    passed: bool
    seconds: float
    prompt_assertion_results: list[Verdict] = field(default_factory=list)
    function_call_failures: list[str] = field(default_factory=list)
    error: str | None = None
    """Why the conversation itself could not be held."""
    turns: list[Turn] = field(default_factory=list)
    metrics: list[json_values.JsonObject] = field(default_factory=list)
    end_reason: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON data."""
        return asdict(self)

    @property
    def failures(self) -> list[str]:
        """Everything that made the test fail, one text each."""
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
    cast: Cast, cases: Sequence[TestCase], clock: Callable[[], float], on_result: Callable[[TestResult], None]
) -> list[TestResult]:
    """Run the cases one after the other; `on_result` is called with each result as its test ends."""
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
        on_result(result)
    return results


async def _run(cast: Cast, case: TestCase, result: TestResult) -> None:
    lines = cast.lines.get(case.name)
    model = cast.model if lines is None or lines.model is None else ScriptedModel.from_entries(*lines.model)
    project = cast.project.copy_with(model, _settings(cast.settings, case))
    options = ChatOptions(
        caller=case.caller_number, headers=case.sip_headers, environment=cast.settings.environment, started=case.at
    )
    call = await open_text_call(project, options)
    try:
        await converse(call, _caller(cast, case, lines), result)
    finally:
        # Also after a failure: what the test wrote until then may explain it.
        record = (await call.close())["record"]
        result.metrics, result.end_reason = (
            json_values.objects_at(record, "metrics"),
            json_values.text_at(record, "end_reason"),
        )
    judge = ScriptedModel.from_entries(*lines.judge) if lines is not None and lines.judge else cast.simulator
    result.prompt_assertion_results = await judge_prompts(judge, case.prompt_assertions, result.turns)
    result.function_call_failures = judge_function_calls(case, result.turns)


async def converse(call: TextCall, caller: Caller, result: TestResult, limit: int = MAX_TURNS) -> None:
    """Hold the conversation until the call ends, the caller has nothing more to say, or `limit` turns are over."""
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


def _turn(row: TurnRow, *, first: bool) -> Turn:
    """Return a turn in the shape of the format's test results."""
    ended = row["ended"]
    shown: json_values.MutableJsonObject = {
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
"""Whether a test of this name, with these tags, is to run."""
Job = tuple[str, str, Callable[[TestResult], Awaitable[None]]]
"""File, name, and what fills in the result."""


@dataclass(frozen=True, slots=True)
class AppCast:
    """Who takes part in the tests of an app."""

    path: Path
    simulator: LanguageModel | None
    """Plays the caller and judges; None: words are not compared, and only scripted callers can be played."""
    lines: Mapping[str, Lines]


class _Failures(Protocol):
    @property
    def failures(self) -> tuple[str, ...]: ...


async def run_app_suite(
    project: cx.CxProject, cast: AppCast, wanted: Wanted, on_result: Callable[[TestResult], None]
) -> list[TestResult]:
    """Run the wanted tests one after the other; `on_result` is called with each result as its test ends.

    Raises `UserError` where there are none.
    """
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
        on_result(result)
    return results


def _jobs(project: cx.CxProject, cast: AppCast, wanted: Wanted) -> list[Job]:
    found = cx.read_evaluations(project.app, cast.path)
    judge = None if cast.simulator is None else partial(judge_meaning, cast.simulator)
    jobs: list[Job] = []
    for file, test in found.tool_tests:
        if wanted(test.name, ()):
            jobs.append((file, test.name, partial(_checked, partial(cx.run_tool_tests, project, [test]))))
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


async def _replay(
    project: cx.CxProject, cast: AppCast, golden: cx.Golden, judge: cx.Judge | None, result: TestResult
) -> None:
    (replayed,) = await cx.run_goldens(project, [golden], judge)
    result.function_call_failures += replayed.failures
    result.turns = list(replayed.turns)
    result.prompt_assertion_results = await judge_prompts(cast.simulator, golden.expectations, result.turns)


async def _simulate(project: cx.CxProject, cast: AppCast, simulation: cx.Simulation, result: TestResult) -> None:
    caller = _app_caller(project, cast, simulation)
    call = await open_text_call(project.for_test(simulation.variables or {}, simulation.mocks), ChatOptions())
    try:
        await converse(call, caller, result, simulation.max_turns)
    finally:
        # Also after a failure: what the test wrote until then may explain it.
        record = (await call.close())["record"]
        result.metrics, result.end_reason = (
            json_values.objects_at(record, "metrics"),
            json_values.text_at(record, "end_reason"),
        )
    result.prompt_assertion_results = await judge_prompts(cast.simulator, simulation.expectations, result.turns)
    called = [
        (json_values.text_at(each, "name"), json_values.object_at(each, "arguments")) for each in _calls(result.turns)
    ]
    result.function_call_failures = cx.call_failures(simulation.calls, called)


def _app_caller(project: cx.CxProject, cast: AppCast, simulation: cx.Simulation) -> Caller:
    lines = cast.lines.get(simulation.name)
    if lines is not None:
        return ScriptedCaller(lines.says)
    if cast.simulator is None:
        raise UserError(
            f"the caller file has no lines for simulation '{simulation.name}', and there is no model to play the caller"
        )
    return ModelCaller(cast.simulator, simulation.scenario, project.app.language or "en-US")


MODEL_SECONDS = 60.0
HANG_UP = "[HANG UP]"
_INSTRUCTIONS = """\
You play a person on the phone with a company's automated agent. Stay in this role:

{scenario}

Write only what the person says next: one short spoken turn in the language {language}, no stage directions. \
Give a detail when the agent asks for it, not before. When your business is done, or the agent has said goodbye \
or transfers you, write only {hang_up}."""


class Caller(Protocol):
    """Plays the caller of a test."""

    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        """Return what the caller says after `conversation`, pairs of `caller` or `agent` and words. None: hangs up."""


@dataclass(slots=True)
class ScriptedCaller:
    """A caller who says the same lines whatever the agent answers."""

    lines: Sequence[str]
    _next: int = 0

    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        if self._next >= len(self.lines):
            return None
        self._next += 1
        return self.lines[self._next - 1]


@dataclass(frozen=True, slots=True)
class ModelCaller:
    """A caller whom a language model plays."""

    model: LanguageModel
    scenario: str
    language: str

    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        instructions = _INSTRUCTIONS.format(scenario=self.scenario, language=self.language, hang_up=HANG_UP)
        messages: list[Message] = [{"role": "system", "content": instructions}]
        # Seen from the caller's side: the agent's words are what the model is told.
        roles = {"agent": "user", "caller": "assistant"}
        messages += [{"role": roles[who], "content": words or "(silence)"} for who, words in conversation]
        text = (await ask(self.model, messages)).strip()
        return None if HANG_UP in text else text


async def ask(model: LanguageModel, messages: Sequence[Message], *, json_output: bool = False) -> str:
    """Return one whole answer. Raises `ProviderError`."""
    text = ""
    try:
        async with (
            asyncio.timeout(MODEL_SECONDS),
            aclosing(model.stream(messages, [], ModelSettings(json_output=json_output))) as deltas,
        ):
            async for delta in deltas:
                text += delta.text
    except TimeoutError as error:
        raise ProviderTimeout("the model that plays the caller did not answer in time") from error
    return text


@dataclass(frozen=True, slots=True)
class Lines:
    """What a caller file holds for one test."""

    says: tuple[str, ...]
    model: tuple[Mapping[str, object], ...] | None = None
    """A model script for the agent; None: the configured model."""
    judge: tuple[Mapping[str, object], ...] = field(default=())
    """A model script for the judge of the prompt assertions."""


def read_caller_file(path: Path) -> dict[str, Lines]:
    """Return the lines for the name of each test. Raises `UserError` naming file and test."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        data = YAML(typ="safe", pure=True).load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"caller file {path} cannot be read: {error}") from None
    except YAMLError as error:
        raise UserError(f"caller file {path} is not valid YAML: {error}") from None
    if not isinstance(data, dict):
        raise UserError(f"caller file {path}: expected a map from test name to the caller's lines")
    return {str(name): _lines(entry, f"caller file {path}, test '{name}'") for name, entry in data.items()}


def _lines(entry: object, place: str) -> Lines:
    if isinstance(entry, list):
        return Lines(_texts(entry, place))
    if not isinstance(entry, dict) or set(entry) - {"says", "model", "judge"} or "says" not in entry:
        raise UserError(f"{place}: expected a list of lines, or a map of says, model and judge")
    model = entry.get("model")
    return Lines(
        says=_texts(entry["says"], place),
        model=None if model is None else _entries(model, place),
        judge=_entries(entry.get("judge") or [], place),
    )


def _texts(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise UserError(f"{place}: the caller's lines are a list of texts; put numbers in quotes")
    return tuple(value)


def _entries(value: object, place: str) -> tuple[Mapping[str, object], ...]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UserError(f"{place}: a model script is a list of maps")
    return tuple(value)


_QUESTION = """\
Below is a phone conversation between a caller and an automated agent, with the functions the agent called. \
Decide whether this statement holds for it:

{statement}

Answer with one JSON object: {{"pass": true or false, "reason": "one sentence"}}.

{conversation}"""
_SAME = """\
An agent on the telephone was expected to say, in these words or others with the same meaning:

{expected}

It said:

{spoken}

Answer with one JSON object: {{"pass": true or false, "reason": "one sentence"}}."""
Turn = json_values.JsonObject
"""`{"user_input", "agent_response", "function_calls": [{"name", "arguments", "result", "error"}]}`"""


class Verdict(TypedDict):
    """What a model judged of one statement about a conversation."""

    prompt: str
    """The statement."""
    is_pass: bool | None
    """None: there was no model to ask."""
    reason: str


async def judge_prompts(model: LanguageModel | None, statements: Sequence[str], turns: Sequence[Turn]) -> list[Verdict]:
    """Have a model judge each statement about the conversation."""
    results: list[Verdict] = []
    for statement in statements:
        passed, reason = (None, "no model to judge it") if model is None else await _judge(model, statement, turns)
        results.append({"prompt": statement, "is_pass": passed, "reason": reason})
    return results


async def _judge(model: LanguageModel, statement: str, turns: Sequence[Turn]) -> tuple[bool, str]:
    question = _QUESTION.format(statement=statement, conversation=_as_text(turns))
    try:
        answer = await ask(model, [{"role": "user", "content": question}], json_output=True)
        found = json_values.parse_object(_object(answer))
    except ProviderError as error:
        return False, f"the judging model failed: {error}"
    except ValueError:
        return False, f"the judging model did not answer with JSON: {answer[:200]}"
    return found.get("pass") is True, str(found.get("reason") or "")


async def judge_meaning(model: LanguageModel, expected: str, spoken: str) -> bool:
    """Return whether two texts say the same to a caller, as a model judges it."""
    question = _SAME.format(expected=expected, spoken=spoken)
    try:
        answer = await ask(model, [{"role": "user", "content": question}], json_output=True)
        return json_values.is_true(json_values.parse_object(_object(answer)), "pass")
    except (ProviderError, ValueError):
        return False


def _object(text: str) -> str:
    """Return the JSON object in a model's answer, without the fence that models like to put around it."""
    match = re.search(r"\{.*\}", text, re.DOTALL)
    if match is None:
        raise ValueError(text)
    return match.group(0)


def judge_function_calls(case: TestCase, turns: Sequence[Turn]) -> list[str]:
    """Return what is wrong with the functions that were called, one text each."""
    called = _calls(turns)
    # A test may also assert that a function was not called; both kinds are checked against all calls, in any order.
    failures = []
    for expected in case.function_calls:
        found = any(
            expected.matches(json_values.text_at(call, "name"), json_values.object_at(call, "arguments"))
            for call in called
        )
        if found == expected.asserted:
            continue
        wanted = f"{expected.name}({_shown(expected.arguments)})"
        same = [
            f"({_shown(json_values.object_at(call, 'arguments'))})" for call in called if call["name"] == expected.name
        ]
        if expected.asserted:
            failures.append(f"{wanted} was not called" + (f"; it was called with {', '.join(same)}" if same else ""))
        else:
            failures.append(f"{wanted} was called")
    return failures


def _calls(turns: Sequence[Turn]) -> list[json_values.JsonObject]:
    return [call for turn in turns for call in json_values.objects_at(turn, "function_calls")]


def _shown(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _as_text(turns: Sequence[Turn]) -> str:
    lines = []
    for turn in turns:
        if turn["user_input"] is not None:
            lines.append(f"Caller: {turn['user_input'] or '(silence)'}")
        lines += [
            f"[the agent calls {call['name']}({_shown(json_values.object_at(call, 'arguments'))})]"
            for call in _calls([turn])
        ]
        if turn["agent_response"]:
            lines.append(f"Agent: {turn['agent_response']}")
        if turn.get("ended"):
            lines.append(f"[{turn['ended']}]")
    return "\n".join(lines)
