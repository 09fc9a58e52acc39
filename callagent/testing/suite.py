"""The tests of `callagent test`: a flow project's test cases, each of them a conversation, and an app's own tests.

An app's tests are tool tests, goldens and simulations; its tools answer with their fakes. The caller's words come from
a file or a language model; a model also judges the statements that a test makes about the conversation.
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
"""Turns of a test case; callers whom a model plays may never hang up."""


@dataclass(slots=True)
class TestResult:
    """The result of one test."""

    # Because of its name, pytest would take the class for tests.
    __test__ = False
    name: str
    file: str
    passed: bool
    seconds: float
    prompt_assertion_results: list[Verdict] = field(default_factory=list)
    function_call_failures: list[str] = field(default_factory=list)
    error: str | None = None
    """The error that ended the conversation before it could be judged."""
    turns: list[Turn] = field(default_factory=list)
    metrics: list[json_values.JsonObject] = field(default_factory=list)
    end_reason: str | None = None

    def to_json(self) -> dict[str, object]:
        """Return the result as JSON data."""
        return asdict(self)

    @property
    def failures(self) -> list[str]:
        """The reasons for which the test failed."""
        reasons = [self.error] if self.error else []
        reasons += [
            f"{one['prompt']}: {one['reason']}" for one in self.prompt_assertion_results if one["is_pass"] is False
        ]
        return [*reasons, *self.function_call_failures]


@dataclass(frozen=True, slots=True)
class SuiteSetup:
    """The project and the models of a run of test cases."""

    project: FlowProject
    model: LanguageModel
    """The agent's model; a caller file can replace it."""
    settings: FlowSettings
    simulator: LanguageModel | None
    """The model that plays the caller and judges; None: a caller file has the lines, and may have judges."""
    caller_file: Mapping[str, CallerFileEntry]


async def run_suite(
    setup: SuiteSetup, cases: Sequence[TestCase], clock: Callable[[], float], on_result: Callable[[TestResult], None]
) -> list[TestResult]:
    """Run the cases one after the other; `on_result` is called with each result as its test ends."""
    results = []
    for case in cases:
        began = clock()
        result = TestResult(case.name, case.file, passed=False, seconds=0.0)
        try:
            await _run_case(setup, case, result)
        except CallagentError as error:
            result.error = f"{type(error).__name__}: {error}"
        result.seconds = round(clock() - began, 3)
        result.passed = not result.failures
        results.append(result)
        on_result(result)
    return results


async def _run_case(setup: SuiteSetup, case: TestCase, result: TestResult) -> None:
    entry = setup.caller_file.get(case.name)
    model = setup.model if entry is None or entry.model is None else ScriptedModel.from_entries(*entry.model)
    project = setup.project.copy_with(model, _test_settings(setup.settings, case))
    options = ChatOptions(
        caller=case.caller_number, headers=case.sip_headers, environment=setup.settings.environment, started=case.at
    )
    call = await open_text_call(project, options)
    try:
        await converse(call, _make_caller(setup, case, entry), result)
    finally:
        # The record is read after a failure, too, because it may explain the failure.
        record = (await call.close())["record"]
        result.metrics, result.end_reason = (
            json_values.objects_at(record, "metrics"),
            json_values.text_at(record, "end_reason"),
        )
    judge = ScriptedModel.from_entries(*entry.judge) if entry is not None and entry.judge else setup.simulator
    result.prompt_assertion_results = await judge_prompts(judge, case.prompt_assertions, result.turns)
    result.function_call_failures = judge_function_calls(case, result.turns)


async def converse(call: TextCall, caller: Caller, result: TestResult, limit: int = MAX_TURNS) -> None:
    """Hold the conversation until the call ends, the caller has nothing more to say, or `limit` turns are over."""
    conversation: list[tuple[str, str]] = []
    row = await call.start()
    for number in range(limit):
        result.turns.append(_to_turn(row, first=number == 0))
        conversation.append(("agent", " ".join(row["agent"])))
        if call.ended or (line := await caller.next_line(conversation)) is None:
            return
        conversation.append(("caller", line))
        row = await call.say(line)
    result.turns.append(_to_turn(row, first=False))


def _make_caller(setup: SuiteSetup, case: TestCase, entry: CallerFileEntry | None) -> Caller:
    if entry is not None:
        return ScriptedCaller(entry.says)
    if setup.simulator is None:
        raise UserError(
            f"there are no lines for test '{case.name}': add them to a caller file, or name a model with --simulator"
        )
    return ModelCaller(setup.simulator, case.scenario, case.language or setup.project.project.languages.default)


def _test_settings(settings: FlowSettings, case: TestCase) -> FlowSettings:
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
        # Messages of a test are recorded but not sent, and its caller is not remembered.
        senders={},
        memory=None,
    )


def _to_turn(row: TurnRow, *, first: bool) -> Turn:
    """Return a turn as test results show it."""
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


TestFilter = Callable[[str, Sequence[str]], bool]
"""Returns whether the test with a name and tags is to run."""
AppTest = tuple[str, str, Callable[[TestResult], Awaitable[None]]]
"""File, name, and a function that runs the test and fills in its result."""


@dataclass(frozen=True, slots=True)
class AppSuiteSetup:
    """Test files, model and caller file of a run of an app's tests."""

    path: Path
    """The path that the user gave: the tests lie in its evals/ or in the app's evaluations/."""
    simulator: LanguageModel | None
    """The model that plays the caller and judges; None: callers need a caller file, and nothing is judged."""
    caller_file: Mapping[str, CallerFileEntry]


class _HasFailures(Protocol):
    @property
    def failures(self) -> tuple[str, ...]: ...


async def run_app_suite(
    project: cx.CxProject, setup: AppSuiteSetup, is_wanted: TestFilter, on_result: Callable[[TestResult], None]
) -> list[TestResult]:
    """Run the selected tests one after the other; `on_result` is called with each result as its test ends.

    Raises `UserError` if `is_wanted` selects none.
    """
    tests = _select_tests(project, setup, is_wanted)
    if not tests:
        raise UserError(f"no test to run: evals/ and evaluations/ of '{setup.path}' hold none with that name or tag")
    results = []
    for file, name, run_test in tests:
        began = time.monotonic()
        result = TestResult(name, file, passed=False, seconds=0.0)
        try:
            await run_test(result)
        except CallagentError as error:
            result.error = f"{type(error).__name__}: {error}"
        result.seconds = round(time.monotonic() - began, 3)
        result.passed = not result.failures
        results.append(result)
        on_result(result)
    return results


def _select_tests(project: cx.CxProject, setup: AppSuiteSetup, is_wanted: TestFilter) -> list[AppTest]:
    found = cx.read_evaluations(project.app, setup.path)
    judge = None if setup.simulator is None else partial(judge_meaning, setup.simulator)
    tests: list[AppTest] = []
    for file, test in found.tool_tests:
        if is_wanted(test.name, ()):
            tests.append((file, test.name, partial(_run_tool_tests, partial(cx.run_tool_tests, project, [test]))))
    for file, golden in found.goldens:
        if is_wanted(golden.name, golden.tags):
            tests.append((file, golden.name, partial(_replay, project, setup, golden, judge)))
    for file, simulation in found.simulations:
        if is_wanted(simulation.name, simulation.tags):
            tests.append((file, simulation.name, partial(_simulate, project, setup, simulation)))
    return tests


async def _run_tool_tests(run: Callable[[], Awaitable[Sequence[_HasFailures]]], result: TestResult) -> None:
    for each in await run():
        result.function_call_failures += each.failures


async def _replay(
    project: cx.CxProject, setup: AppSuiteSetup, golden: cx.Golden, judge: cx.Judge | None, result: TestResult
) -> None:
    (replayed,) = await cx.run_goldens(project, [golden], judge)
    result.function_call_failures += replayed.failures
    result.turns = list(replayed.turns)
    result.prompt_assertion_results = await judge_prompts(setup.simulator, golden.expectations, result.turns)


async def _simulate(project: cx.CxProject, setup: AppSuiteSetup, simulation: cx.Simulation, result: TestResult) -> None:
    caller = _make_app_caller(project, setup, simulation)
    call = await open_text_call(project.for_test(simulation.variables or {}, simulation.mocks), ChatOptions())
    try:
        await converse(call, caller, result, simulation.max_turns)
    finally:
        # The record is read after a failure, too, because it may explain the failure.
        record = (await call.close())["record"]
        result.metrics, result.end_reason = (
            json_values.objects_at(record, "metrics"),
            json_values.text_at(record, "end_reason"),
        )
    result.prompt_assertion_results = await judge_prompts(setup.simulator, simulation.expectations, result.turns)
    called = [
        (json_values.text_at(each, "name"), json_values.object_at(each, "arguments"))
        for each in _function_calls(result.turns)
    ]
    result.function_call_failures = cx.call_failures(simulation.calls, called)


def _make_app_caller(project: cx.CxProject, setup: AppSuiteSetup, simulation: cx.Simulation) -> Caller:
    entry = setup.caller_file.get(simulation.name)
    if entry is not None:
        return ScriptedCaller(entry.says)
    if setup.simulator is None:
        raise UserError(
            f"there are no lines for simulation '{simulation.name}': add them to a caller file, or name a model with"
            " --simulator"
        )
    return ModelCaller(setup.simulator, simulation.scenario, project.app.language or "en-US")


MODEL_SECONDS = 60.0
"""Time for one whole answer of the model that plays the caller or judges."""
HANG_UP = "[HANG UP]"
"""What the model that plays the caller writes in place of words."""
_INSTRUCTIONS = """\
You play a person on the phone with a company's automated agent. Stay in this role:

{scenario}

Write only what the person says next: one short spoken turn in the language {language}, no stage directions. \
Give a detail when the agent asks for it, not before. When your business is done, or the agent has said goodbye \
or transfers you, write only {hang_up}."""


class Caller(Protocol):
    """Plays the caller of a test."""

    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        """Return the caller's next words; None: hangs up. `conversation` is pairs of `caller` or `agent` and words."""


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
        # The model plays the caller, so the agent's words are its user's.
        roles = {"agent": "user", "caller": "assistant"}
        messages += [{"role": roles[who], "content": words or "(silence)"} for who, words in conversation]
        text = (await ask_model(self.model, messages)).strip()
        return None if HANG_UP in text else text


async def ask_model(model: LanguageModel, messages: Sequence[Message], *, json_output: bool = False) -> str:
    """Return one whole answer of `model`. Raises `ProviderError`."""
    text = ""
    try:
        async with (
            asyncio.timeout(MODEL_SECONDS),
            aclosing(model.stream(messages, [], ModelSettings(json_output=json_output))) as deltas,
        ):
            async for delta in deltas:
                text += delta.text
    except TimeoutError as error:
        raise ProviderTimeout(
            f"the model that plays the caller and judges did not answer within {MODEL_SECONDS:g} s"
        ) from error
    return text


@dataclass(frozen=True, slots=True)
class CallerFileEntry:
    """The entry of one test in a caller file."""

    says: tuple[str, ...]
    """The caller's lines, in their order."""
    model: tuple[Mapping[str, object], ...] | None = None
    """A model script for the agent; None: the configured model."""
    judge: tuple[Mapping[str, object], ...] = field(default=())
    """A model script for the judge of the prompt assertions."""


def read_caller_file(path: Path) -> dict[str, CallerFileEntry]:
    """Return the entries by the names of their tests. Raises `UserError` naming file and test."""
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
    return {str(name): _parse_entry(entry, f"caller file {path}, test '{name}'") for name, entry in data.items()}


def _parse_entry(entry: object, place: str) -> CallerFileEntry:
    if isinstance(entry, list):
        return CallerFileEntry(_parse_lines(entry, place))
    if not isinstance(entry, dict) or set(entry) - {"says", "model", "judge"} or "says" not in entry:
        raise UserError(f"{place}: expected a list of lines, or a map of says, model and judge")
    model = entry.get("model")
    return CallerFileEntry(
        says=_parse_lines(entry["says"], place),
        model=None if model is None else _parse_model_script(model, place),
        judge=_parse_model_script(entry.get("judge") or [], place),
    )


def _parse_lines(value: object, place: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(line, str) for line in value):
        raise UserError(f"{place}: the caller's lines are a list of texts; put numbers in quotes")
    return tuple(value)


def _parse_model_script(value: object, place: str) -> tuple[Mapping[str, object], ...]:
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise UserError(f"{place}: a model script is a list of maps")
    return tuple(value)


_STATEMENT_QUESTION = """\
Below is a phone conversation between a caller and an automated agent, with the functions the agent called. \
Decide whether this statement holds for it:

{statement}

Answer with one JSON object: {{"pass": true or false, "reason": "one sentence"}}.

{conversation}"""
_SAME_MEANING_QUESTION = """\
An agent on the telephone was expected to say, in these words or others with the same meaning:

{expected}

It said:

{spoken}

Answer with one JSON object: {{"pass": true or false, "reason": "one sentence"}}."""
Turn = json_values.JsonObject
"""A turn: `{"user_input", "agent_response", "function_calls": [{"name", "arguments", "result", "error"}]}`."""


class Verdict(TypedDict):
    """A model's judgement of one statement about a conversation."""

    prompt: str
    """The statement."""
    is_pass: bool | None
    """None: there was no model to judge it."""
    reason: str


async def judge_prompts(model: LanguageModel | None, statements: Sequence[str], turns: Sequence[Turn]) -> list[Verdict]:
    """Have a model judge each statement about the conversation."""
    results: list[Verdict] = []
    for statement in statements:
        passed, reason = (
            (None, "there is no model to judge it: name one with --simulator")
            if model is None
            else await _judge(model, statement, turns)
        )
        results.append({"prompt": statement, "is_pass": passed, "reason": reason})
    return results


async def _judge(model: LanguageModel, statement: str, turns: Sequence[Turn]) -> tuple[bool, str]:
    question = _STATEMENT_QUESTION.format(statement=statement, conversation=_format_conversation(turns))
    try:
        answer = await ask_model(model, [{"role": "user", "content": question}], json_output=True)
        found = json_values.parse_object(_extract_object(answer))
    except ProviderError as error:
        return False, f"the judging model failed: {error}"
    except ValueError:
        return False, f"the judging model did not answer with JSON: {answer[:200]}"
    return found.get("pass") is True, str(found.get("reason") or "")


async def judge_meaning(model: LanguageModel, expected: str, spoken: str) -> bool:
    """Return whether a model judges that two texts mean the same to a caller."""
    question = _SAME_MEANING_QUESTION.format(expected=expected, spoken=spoken)
    try:
        answer = await ask_model(model, [{"role": "user", "content": question}], json_output=True)
        return json_values.is_true(json_values.parse_object(_extract_object(answer)), "pass")
    except (ProviderError, ValueError):
        return False


def _extract_object(text: str) -> str:
    """Return the JSON object in a model's answer, which may stand in a Markdown code fence. Raises `ValueError`."""
    match = re.search(r"\{.*\}", text, re.DOTALL)
    if match is None:
        raise ValueError(text)
    return match.group(0)


def judge_function_calls(case: TestCase, turns: Sequence[Turn]) -> list[str]:
    """Return the differences between the function calls that a test expects and those that were made."""
    called = _function_calls(turns)
    # A test may also assert that a function was not called; both kinds are checked against all calls, in any order.
    failures = []
    for expected in case.function_calls:
        found = any(
            expected.matches(json_values.text_at(call, "name"), json_values.object_at(call, "arguments"))
            for call in called
        )
        if found == expected.asserted:
            continue
        call_text = f"{expected.name}({_format_arguments(expected.arguments)})"
        same_name = [
            f"({_format_arguments(json_values.object_at(call, 'arguments'))})"
            for call in called
            if call["name"] == expected.name
        ]
        if expected.asserted:
            failures.append(
                f"{call_text} was not called" + (f"; it was called with {', '.join(same_name)}" if same_name else "")
            )
        else:
            failures.append(f"{call_text} was called, which the test forbids")
    return failures


def _function_calls(turns: Sequence[Turn]) -> list[json_values.JsonObject]:
    return [call for turn in turns for call in json_values.objects_at(turn, "function_calls")]


def _format_arguments(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _format_conversation(turns: Sequence[Turn]) -> str:
    lines = []
    for turn in turns:
        if turn["user_input"] is not None:
            lines.append(f"Caller: {turn['user_input'] or '(silence)'}")
        lines += [
            f"[the agent calls {call['name']}({_format_arguments(json_values.object_at(call, 'arguments'))})]"
            for call in _function_calls([turn])
        ]
        if turn["agent_response"]:
            lines.append(f"Agent: {turn['agent_response']}")
        if turn.get("ended"):
            lines.append(f"[{turn['ended']}]")
    return "\n".join(lines)
