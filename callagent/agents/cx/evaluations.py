"""Tests that come with an app: goldens, tool tests and simulations in `evals/`, and exported `evaluations/`.

A golden is a conversation with its expected calls and words. Goldens are run by `goldens.py`, simulations by
`callagent test`. Tests of single tools are run here; their format is
`tests: [{name, tool, args, variables, expectations: {response, variables}}]`. `evals/` is in the app's folder or up to
two folders above it, as in published templates.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from callagent.agents.cx.format import CxApp, read_documents, read_yaml_file, referenced_tool_name
from callagent.agents.cx.goldens import Golden, GoldenCall, GoldenTurn, read_goldens
from callagent.agents.cx.project import CxProject, Mocks
from callagent.errors import ProjectError
from callagent.json_values import JsonObject, JsonValue, list_at, number_at, object_at, objects_at, text_at

MAX_TURNS = 30
"""Turns of a simulation at most."""
_MAX_FOLDERS_ABOVE = 2
"""Number of folders above the app in which `evals/` is searched for."""
_TOOL_NAME_KEYS = {"tool", "toolsetTool", "displayName"}
_GOALS = {
    "USER_GOAL_SATISFIED": "The caller gets what they want.",
    "USER_GOAL_REJECTED": "The caller does not get what they want: the agent refuses it.",
}


@dataclass(frozen=True, slots=True)
class Simulation:
    """A conversation with a simulated caller, and the expectations that a judge checks in the end."""

    name: str
    scenario: str
    expectations: tuple[str, ...]
    calls: tuple[GoldenCall, ...] = ()
    """Tools that should be called, in any order."""
    variables: JsonObject | None = None
    tags: tuple[str, ...] = ()
    max_turns: int = MAX_TURNS
    mocks: Mocks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Evaluations:
    """The tests of an app, each with its file."""

    goldens: Sequence[tuple[str, Golden]]
    tool_tests: Sequence[tuple[str, ToolTest]]
    simulations: Sequence[tuple[str, Simulation]]


def read_evaluations(app: CxApp, path: Path) -> Evaluations:
    """Read all tests of an app. Raises `ProjectError` naming the file."""
    goldens: list[tuple[str, Golden]] = []
    tool_tests: list[tuple[str, ToolTest]] = []
    simulations: list[tuple[str, Simulation]] = []
    for file in _evaluation_files(path):
        data = read_yaml_file(file)
        keys = data.keys() if isinstance(data, Mapping) else ()
        name = f"{file.parent.name}/{file.name}"
        if "conversations" in keys:
            goldens += [(name, each) for each in read_goldens(file)]
        elif "tests" in keys:
            tool_tests += [(name, each) for each in read_tool_tests(file)]
        elif isinstance(data, Mapping) and "evals" in keys:
            simulations += [(name, each) for each in read_simulations(data["evals"], file.name)]
        # In some published templates a file of simulations is a list without a key around it.
        elif isinstance(data, list) and all(isinstance(one, Mapping) and "steps" in one for one in data):
            simulations += [(name, each) for each in read_simulations(data, file.name)]
    for name, document in read_documents(app.files, "evaluations"):
        if isinstance(document.get("golden"), Mapping):
            goldens.append((name, _read_golden(document, app)))
        elif isinstance(document.get("scenario"), Mapping):
            simulations.append((name, _read_scenario(document, app)))
    return Evaluations(goldens, tool_tests, simulations)


def read_simulations(data: JsonValue, file: str) -> list[Simulation]:
    """Read the simulations of a file's data. Raises `ProjectError` naming file and simulation."""
    if not isinstance(data, list):
        raise ProjectError(f"{file}: 'evals' should be a list")
    return [_read_simulation(each, f"{file}: simulation {number}") for number, each in enumerate(data, 1)]


def _evaluation_files(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    folders = [path, *path.resolve().parents[:_MAX_FOLDERS_ABOVE]]
    evals = next((folder / "evals" for folder in folders if (folder / "evals").is_dir()), None)
    return sorted(evals.rglob("*.y*ml")) if evals is not None else []


def _read_simulation(data: JsonValue, place: str) -> Simulation:
    fields = data if isinstance(data, Mapping) else {}
    steps = objects_at(fields, "steps")
    if (
        len(steps) < len(list_at(fields, "steps"))
        or "steps" not in fields
        or not all(step.get("goal") for step in steps)
    ):
        raise ProjectError(f"{place}: 'steps' should be a list, each with a 'goal'")
    lines = []
    for number, step in enumerate(steps, 1):
        guide = str(step.get("response_guide") or "").strip()
        lines.append(f"{number}. {str(step['goal']).strip()}. {guide}".strip())
    criteria = [str(step["success_criteria"]).strip() for step in steps if step.get("success_criteria")]
    turns = int(sum(number_at(step, "max_turns") for step in steps))
    return Simulation(
        name=str(fields.get("name") or place),
        scenario="You want, one after the other:\n" + "\n".join(lines),
        expectations=(*criteria, *(str(each) for each in list_at(fields, "expectations"))),
        variables=object_at(fields, "session_parameters"),
        tags=tuple(str(each) for each in list_at(fields, "tags")),
        # The limits of the steps add up, but a simulated caller that repeats itself must be stopped, too.
        max_turns=min(turns or MAX_TURNS, MAX_TURNS),
    )


def _read_scenario(data: JsonObject, app: CxApp) -> Simulation:
    own = object_at(data, "scenario")
    facts = [f"{each.get('name')}: {each.get('value')}" for each in objects_at(own, "userFacts")]
    known = "\nWhat you know: " + "; ".join(facts) if facts else ""
    expected = objects_at(own, "scenarioExpectations") or objects_at(own, "expectations")
    calls = [object_at(each, "toolExpectation", "expectedToolCall") for each in expected]
    utterances = ["".join(_texts(object_at(each, "agentResponse"))) for each in expected if each.get("agentResponse")]
    return Simulation(
        name=str(data.get("displayName") or "scenario"),
        scenario=str(own.get("task") or "") + known,
        expectations=(
            *(str(each) for each in list_at(own, "rubrics")),
            *(f"The agent says something like: {each}" for each in utterances if each),
            *filter(None, [_GOALS.get(str(own.get("userGoalBehavior")))]),
        ),
        calls=tuple(_read_call(each, app) for each in calls if each),
        variables=object_at(own, "variableOverrides"),
        tags=tuple(str(each) for each in list_at(data, "tags")),
        max_turns=min(int(number_at(own, "maxTurns") or MAX_TURNS), MAX_TURNS),
        mocks=_read_mocks((object_at(each, "toolExpectation") for each in expected), app),
    )


def _read_golden(data: JsonObject, app: CxApp) -> Golden:
    turns: list[GoldenTurn] = []
    expected: list[JsonObject] = []
    for turn in objects_at(object_at(data, "golden"), "turns"):
        steps = objects_at(turn, "steps")
        # A turn may have several inputs, such as variables before words; the last one is the caller's.
        user = next(
            (_caller_input(object_at(step, "userInput")) for step in reversed(steps) if step.get("userInput")), ""
        )
        every = [object_at(step, "expectation") for step in steps if isinstance(step.get("expectation"), Mapping)]
        expected += every
        turns.append(_read_golden_turn(user, [each for each in every if not each.get("skipEvaluation")], app))
    return Golden(
        name=str(data.get("displayName") or "golden"),
        variables=object_at(data, "golden", "variableOverrides"),
        turns=tuple(turns),
        tags=tuple(str(each) for each in list_at(data, "tags")),
        mocks=_read_mocks(expected, app),
    )


def _read_golden_turn(user: str, expected: Sequence[JsonObject], app: CxApp) -> GoldenTurn:
    transfers = [_target_agent(object_at(each, "agentTransfer"), app) for each in expected if each.get("agentTransfer")]
    answers = [object_at(each, "toolResponse") for each in expected if each.get("toolResponse")]
    updates = [object_at(each, "updatedVariables") for each in expected]
    return GoldenTurn(
        user=user,
        agent=" ".join(text for each in expected for text in _texts(object_at(each, "agentResponse"))),
        calls=tuple(_read_call(object_at(each, "toolCall"), app) for each in expected if each.get("toolCall")),
        answers=tuple(GoldenCall(referenced_tool_name(app, each), object_at(each, "response")) for each in answers),
        transfer=transfers[-1] if transfers else "",
        variables={name: value for update in updates for name, value in update.items()},
        no_calls=any(each.get("noToolCalls") for each in expected),
    )


def _target_agent(transfer: JsonObject, app: CxApp) -> str:
    named = str(transfer.get("targetAgent") or transfer.get("displayName") or "")
    return app.agent_named(named) or named


def _read_mocks(expected: Iterable[JsonObject], app: CxApp) -> dict[str, list[JsonObject]]:
    """Return the answers that expectations give in place of the tools' own, by tool name, in order."""
    mocks: dict[str, list[JsonObject]] = {}
    for each in expected:
        if mocked := object_at(each, "mockToolResponse"):
            # An answer without a tool's name belongs to the `expectedToolCall` beside it.
            named = mocked if mocked.keys() & _TOOL_NAME_KEYS else object_at(each, "expectedToolCall")
            mocks.setdefault(referenced_tool_name(app, named), []).append(object_at(mocked, "response"))
    return mocks


def _caller_input(user_input: JsonObject) -> str:
    event = object_at(user_input, "event").get("event")
    return f"<event>{event}</event>" if event else str(user_input.get("text") or user_input.get("dtmf") or "")


def _texts(message: JsonObject) -> list[str]:
    chunks = objects_at(message, "chunks") or [message]
    return [str(each["text"]) for each in chunks if each.get("text")]


def _read_call(data: JsonObject, app: CxApp) -> GoldenCall:
    return GoldenCall(referenced_tool_name(app, data), object_at(data, "args"))


_PATH_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]")
_MISSING = object()


@dataclass(frozen=True, slots=True)
class Expectation:
    """A condition on the value at a path."""

    path: str
    """JSON path of names and indices: `$.result.account.balance`."""
    operator: str
    value: JsonValue = None

    def failure(self, data: object) -> str:
        """Return the difference from the expectation; empty if it is met."""
        found = value_at_path(self.path, data)
        if found is _MISSING:
            # A result that is an object is not wrapped in `result`, but tests may write `$.result` all the same.
            found = value_at_path(re.sub(r"^\$\.result\b", "$", self.path), data)
        actual = None if found is _MISSING else found
        if _holds(self.operator, actual, self.value):
            return ""
        wanted = "" if self.operator in ("is_null", "is_not_null") else f" {self.value!r}"
        return f"{self.path} is {actual!r}; expected: {self.operator}{wanted}"


@dataclass(frozen=True, slots=True)
class ToolTest:
    """A test of a single tool, which is run outside of any turn."""

    # Keeps pytest from collecting the class.
    __test__ = False
    name: str
    tool: str
    arguments: JsonObject
    variables: JsonObject
    response: tuple[Expectation, ...]
    variables_after: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True)
class ToolTestResult:
    """The failed expectations of a tool test."""

    __test__ = False
    name: str
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


OPERATORS: Mapping[str, Callable[..., object]] = {
    "equals": lambda actual, value: actual == value,
    "contains": lambda actual, value: value in actual,
    "greater_than": lambda actual, value: actual > value,
    "less_than": lambda actual, value: actual < value,
    "length_equals": lambda actual, value: len(actual) == value,
    "length_greater_than": lambda actual, value: len(actual) > value,
    "length_less_than": lambda actual, value: len(actual) < value,
    "is_null": lambda actual, _: actual is None,
    "is_not_null": lambda actual, _: actual is not None,
}
"""Operators of expectations; each takes the actual value and the expected one."""


def read_tool_tests(path: Path) -> list[ToolTest]:
    """Read the tool tests of a file. Raises `ProjectError` naming the file and the test."""
    data = read_yaml_file(path)
    tests = data.get("tests") if isinstance(data, Mapping) else None
    if not isinstance(tests, list):
        raise ProjectError(f"{path.name}: 'tests' should be a list")
    return [_read_test(each, f"{path.name}: test {number}") for number, each in enumerate(tests, 1)]


async def run_tool_tests(project: CxProject, tests: Sequence[ToolTest]) -> list[ToolTestResult]:
    """Run each test in a call of its own; tools run without the agents' callbacks."""
    return [await _run_tool_test(project, test) for test in tests]


async def _run_tool_test(project: CxProject, test: ToolTest) -> ToolTestResult:
    async with project.open_for_test(test.variables) as agent:
        answer = await agent.run_tool(test.tool, test.arguments)
        if answer is None:
            return ToolTestResult(test.name, (f"the app has no tool '{test.tool}'",))
        failures = [each.failure(answer) for each in test.response]
        failures += [each.failure(agent.conversation.state.values) for each in test.variables_after]
    return ToolTestResult(test.name, tuple(each for each in failures if each))


def value_at_path(path: str, data: object) -> object:
    """Return the value at a path, or `_MISSING`."""
    # The path begins with `$`, which stands for the data as a whole.
    place, value = 1, data
    while place < len(path):
        found = _PATH_STEP.match(path, place)
        if found is None:
            return _MISSING
        place = found.end()
        name, index = found[1] or found[3], found[2]
        if index is not None:
            value = value[int(index)] if isinstance(value, list) and int(index) < len(value) else _MISSING
        else:
            value = value.get(name, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is _MISSING:
            return _MISSING
    return value


def _read_test(data: JsonValue, place: str) -> ToolTest:
    tool = data.get("tool") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(tool, str):
        raise ProjectError(f"{place}: 'tool' is missing: it should name the tested tool")
    expectations = object_at(data, "expectations")
    return ToolTest(
        name=str(data.get("name") or tool),
        tool=tool,
        arguments=object_at(data, "args"),
        variables=object_at(data, "variables"),
        response=tuple(_read_expectation(each, place) for each in list_at(expectations, "response")),
        variables_after=tuple(_read_expectation(each, place) for each in list_at(expectations, "variables")),
    )


def _read_expectation(data: JsonValue, place: str) -> Expectation:
    fields = data if isinstance(data, Mapping) else {}
    path, operator = text_at(fields, "path"), text_at(fields, "operator")
    if not path.startswith("$"):
        raise ProjectError(f"{place}: an expectation should have a 'path' that begins with '$'")
    if operator not in OPERATORS:
        raise ProjectError(f"{place}: operator {fields.get('operator')!r} is not one of {', '.join(OPERATORS)}")
    return Expectation(path, operator, fields.get("value"))


def _holds(operator: str, actual: object, value: JsonValue) -> bool:
    try:
        return bool(OPERATORS[operator](actual, value))
    except TypeError:
        # Values that cannot be compared, such as a text and a number, or that have no length.
        return False
