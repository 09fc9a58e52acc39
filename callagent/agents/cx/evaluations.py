"""Tests that come with an app: goldens, tool tests and simulations in `evals/`, and exported `evaluations/`.

`evals/` is in the app's folder or up to two folders above, where published templates have it. Goldens are run by
`goldens.py`, simulations by `callagent test`. Tests of single tools are run here; their form is
`tests: [{name, tool, args, variables, expectations: {response, variables}}]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callagent.agents.cx.format import CxApp, read_documents, read_yaml_file, referenced_tool_name
from callagent.agents.cx.goldens import Golden, GoldenCall, GoldenTurn, read_goldens
from callagent.agents.cx.project import CxProject, Mocks
from callagent.errors import ProjectError

MAX_TURNS = 30
"""Turns of a simulation."""
_MAX_FOLDERS_ABOVE = 2
"""Folders above the app in which `evals/` is looked for."""
_NAMES = {"tool", "toolsetTool", "displayName"}
_GOALS = {
    "USER_GOAL_SATISFIED": "The caller gets what they want.",
    "USER_GOAL_REJECTED": "The caller does not get what they want: the agent refuses it.",
}


@dataclass(frozen=True, slots=True)
class Simulation:
    """A conversation with a simulated caller: what the caller wants, and what should be true in the end."""

    name: str
    scenario: str
    expectations: tuple[str, ...]
    calls: tuple[GoldenCall, ...] = ()
    """Tools that should be called, in any order."""
    variables: Mapping[str, Any] | None = None
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
    for file in _files(path):
        data = read_yaml_file(file)
        keys = data.keys() if isinstance(data, dict) else ()
        name = f"{file.parent.name}/{file.name}"
        if "conversations" in keys:
            goldens += [(name, each) for each in read_goldens(file)]
        elif "tests" in keys:
            tool_tests += [(name, each) for each in read_tool_tests(file)]
        elif "evals" in keys or (
            isinstance(data, list) and all(isinstance(one, dict) and "steps" in one for one in data)
        ):
            listed = data if isinstance(data, list) else data["evals"]
            simulations += [(name, each) for each in read_simulations(listed, file.name)]
    for name, data in read_documents(app.files, "evaluations"):
        if isinstance(data.get("golden"), dict):
            goldens.append((name, _golden(data, app)))
        elif isinstance(data.get("scenario"), dict):
            simulations.append((name, _scenario(data, app)))
    return Evaluations(goldens, tool_tests, simulations)


def read_simulations(data: Any, file: str) -> list[Simulation]:
    """Read the simulations of a file's data. Raises `ProjectError` naming file and simulation."""
    if not isinstance(data, list):
        raise ProjectError(f"{file}: 'evals' should be a list")
    return [_simulation(each, f"{file}: simulation {number}") for number, each in enumerate(data, 1)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    folders = [path, *path.resolve().parents[:_MAX_FOLDERS_ABOVE]]
    evals = next((folder / "evals" for folder in folders if (folder / "evals").is_dir()), None)
    return sorted(evals.rglob("*.y*ml")) if evals is not None else []


def _simulation(data: Any, place: str) -> Simulation:
    steps = data.get("steps") if isinstance(data, dict) else None
    if not isinstance(steps, list) or not all(isinstance(step, dict) and step.get("goal") for step in steps):
        raise ProjectError(f"{place}: 'steps' should be a list, each with a 'goal'")
    lines = []
    for number, step in enumerate(steps, 1):
        guide = str(step.get("response_guide") or "").strip()
        lines.append(f"{number}. {str(step['goal']).strip()}. {guide}".strip())
    criteria = [str(step["success_criteria"]).strip() for step in steps if step.get("success_criteria")]
    turns = sum(int(step.get("max_turns") or 0) for step in steps)
    return Simulation(
        name=str(data.get("name") or place),
        scenario="You want, one after the other:\n" + "\n".join(lines),
        expectations=(*criteria, *(str(each) for each in data.get("expectations") or ())),
        variables=data.get("session_parameters") or {},
        tags=tuple(str(each) for each in data.get("tags") or ()),
        max_turns=min(turns or MAX_TURNS, MAX_TURNS),
    )


def _scenario(data: Mapping[str, Any], app: CxApp) -> Simulation:
    own = data["scenario"]
    facts = [f"{each.get('name')}: {each.get('value')}" for each in own.get("userFacts") or ()]
    known = "\nWhat you know: " + "; ".join(facts) if facts else ""
    expected = own.get("scenarioExpectations") or own.get("expectations") or ()
    calls = [each["toolExpectation"].get("expectedToolCall") for each in expected if each.get("toolExpectation")]
    said = ["".join(_texts(each["agentResponse"])) for each in expected if each.get("agentResponse")]
    return Simulation(
        name=str(data.get("displayName") or "scenario"),
        scenario=str(own.get("task") or "") + known,
        expectations=(
            *(str(each) for each in own.get("rubrics") or ()),
            *(f"The agent says something like: {each}" for each in said if each),
            *filter(None, [_GOALS.get(str(own.get("userGoalBehavior")))]),
        ),
        calls=tuple(_call(each, app) for each in calls if each),
        variables=own.get("variableOverrides") or {},
        tags=tuple(str(each) for each in data.get("tags") or ()),
        max_turns=min(int(own.get("maxTurns") or MAX_TURNS), MAX_TURNS),
        mocks=_mocks((each.get("toolExpectation") or {} for each in expected), app),
    )


def _golden(data: Mapping[str, Any], app: CxApp) -> Golden:
    turns: list[GoldenTurn] = []
    expected: list[Mapping[str, Any]] = []
    for turn in data["golden"].get("turns") or ():
        steps = turn.get("steps") or ()
        user = next((_input(step["userInput"]) for step in reversed(steps) if step.get("userInput")), "")
        every = [step["expectation"] for step in steps if isinstance(step.get("expectation"), Mapping)]
        expected += every
        turns.append(_golden_turn(user, [each for each in every if not each.get("skipEvaluation")], app))
    return Golden(
        name=str(data.get("displayName") or "golden"),
        variables=data["golden"].get("variableOverrides") or {},
        turns=tuple(turns),
        tags=tuple(str(each) for each in data.get("tags") or ()),
        mocks=_mocks(expected, app),
    )


def _golden_turn(user: str, expected: Sequence[Mapping[str, Any]], app: CxApp) -> GoldenTurn:
    transfers = [_agent(each["agentTransfer"], app) for each in expected if each.get("agentTransfer")]
    answers = [each["toolResponse"] for each in expected if each.get("toolResponse")]
    updates = [each["updatedVariables"] for each in expected if each.get("updatedVariables")]
    return GoldenTurn(
        user=user,
        agent=" ".join(text for each in expected for text in _texts(each.get("agentResponse") or {})),
        calls=tuple(_call(each["toolCall"], app) for each in expected if each.get("toolCall")),
        answers=tuple(GoldenCall(referenced_tool_name(app, each), each.get("response") or {}) for each in answers),
        transfer=transfers[-1] if transfers else "",
        variables={name: value for update in updates for name, value in update.items()},
        no_calls=any(each.get("noToolCalls") for each in expected),
    )


def _agent(transfer: Mapping[str, Any], app: CxApp) -> str:
    named = str(transfer.get("targetAgent") or transfer.get("displayName") or "")
    return app.agent_named(named) or named


def _mocks(expected: Iterable[Mapping[str, Any]], app: CxApp) -> dict[str, list[Mapping[str, Any]]]:
    mocks: dict[str, list[Mapping[str, Any]]] = {}
    for each in expected:
        mocked = each.get("mockToolResponse")
        if mocked:
            named = mocked if mocked.keys() & _NAMES else each.get("expectedToolCall") or {}
            mocks.setdefault(referenced_tool_name(app, named), []).append(mocked.get("response") or {})
    return mocks


def _input(given: Mapping[str, Any]) -> str:
    event = (given.get("event") or {}).get("event")
    return f"<event>{event}</event>" if event else str(given.get("text") or given.get("dtmf") or "")


def _texts(message: Mapping[str, Any]) -> list[str]:
    chunks = message.get("chunks") or [message]
    return [str(each["text"]) for each in chunks if each.get("text")]


def _call(data: Mapping[str, Any], app: CxApp) -> GoldenCall:
    return GoldenCall(referenced_tool_name(app, data), data.get("args") or {})


_STEP = re.compile(r"\.?([A-Za-z_][\w-]*)|\[(\d+)\]|\[['\"]([^'\"]+)['\"]\]")
_ABSENT = object()


@dataclass(frozen=True, slots=True)
class Expectation:
    """What should be true of a value at a path."""

    path: str
    """JSON path of names and indices: `$.result.account.balance`."""
    operator: str
    value: Any = None

    def failure(self, data: Any) -> str:
        """Return what is wrong; empty: the expectation is met."""
        found = value_at_path(self.path, data)
        if found is _ABSENT:
            # Only results that are no objects are wrapped in `result`; tests write `$.result` for both.
            found = value_at_path(re.sub(r"^\$\.result\b", "$", self.path), data)
        actual = None if found is _ABSENT else found
        if _holds(self.operator, actual, self.value):
            return ""
        wanted = "" if self.operator in ("is_null", "is_not_null") else f" {self.value!r}"
        return f"{self.path} is {actual!r}; expected: {self.operator}{wanted}"


@dataclass(frozen=True, slots=True)
class ToolTest:
    __test__ = False
    name: str
    tool: str
    arguments: Mapping[str, Any]
    variables: Mapping[str, Any]
    response: tuple[Expectation, ...]
    variables_after: tuple[Expectation, ...]


@dataclass(frozen=True, slots=True)
class ToolTestResult:
    __test__ = False
    name: str
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.failures


OPERATORS = (
    "equals", "contains", "greater_than", "less_than", "length_equals", "length_greater_than", "length_less_than",
    "is_null", "is_not_null",
)  # fmt: skip


def read_tool_tests(path: Path) -> list[ToolTest]:
    """Read the tool tests of a file. Raises `ProjectError` naming the file and the test."""
    data = read_yaml_file(path)
    tests = data.get("tests") if isinstance(data, dict) else None
    if not isinstance(tests, list):
        raise ProjectError(f"{path.name}: 'tests' should be a list")
    return [_test(each, f"{path.name}: test {number}") for number, each in enumerate(tests, 1)]


async def run_tool_tests(project: CxProject, tests: Sequence[ToolTest]) -> list[ToolTestResult]:
    """Run each test in a call of its own; tools run without the agents' callbacks."""
    return [await _run(project, test) for test in tests]


async def _run(project: CxProject, test: ToolTest) -> ToolTestResult:
    async with project.open_for_test(test.variables) as agent:
        answer = await agent.run_tool(test.tool, test.arguments)
        if answer is None:
            return ToolTestResult(test.name, (f"there is no tool '{test.tool}'",))
        failures = [each.failure(answer) for each in test.response]
        failures += [each.failure(agent.conversation.state.values) for each in test.variables_after]
    return ToolTestResult(test.name, tuple(each for each in failures if each))


def value_at_path(path: str, data: Any) -> Any:
    """Return the value at a path, or `_ABSENT`."""
    place, value = 1, data
    while place < len(path):
        found = _STEP.match(path, place)
        if found is None:
            return _ABSENT
        place = found.end()
        name, index = found[1] or found[3], found[2]
        if index is not None:
            inside = isinstance(value, list) and int(index) < len(value)
            value = value[int(index)] if inside else _ABSENT
        else:
            value = value.get(name, _ABSENT) if isinstance(value, Mapping) else _ABSENT
        if value is _ABSENT:
            return _ABSENT
    return value


def _test(data: Any, place: str) -> ToolTest:
    if not isinstance(data, dict) or not isinstance(data.get("tool"), str):
        raise ProjectError(f"{place}: 'tool' is missing: it names the tool that is tested")
    given = data.get("expectations") or {}
    return ToolTest(
        name=str(data.get("name") or data["tool"]),
        tool=data["tool"],
        arguments=data.get("args") or {},
        variables=data.get("variables") or {},
        response=tuple(_expectation(each, place) for each in given.get("response") or ()),
        variables_after=tuple(_expectation(each, place) for each in given.get("variables") or ()),
    )


def _expectation(data: Any, place: str) -> Expectation:
    if not isinstance(data, dict) or not str(data.get("path") or "").startswith("$"):
        raise ProjectError(f"{place}: an expectation should have a 'path' that begins with '$'")
    if data.get("operator") not in OPERATORS:
        raise ProjectError(f"{place}: operator {data.get('operator')!r} is not one of {', '.join(OPERATORS)}")
    return Expectation(data["path"], data["operator"], data.get("value"))


def _holds(operator: str, actual: Any, value: Any) -> bool:
    if operator == "is_null":
        return actual is None
    if operator == "is_not_null":
        return actual is not None
    try:
        match operator:
            case "equals":
                return bool(actual == value)
            case "contains":
                return bool(value in actual)
            case "greater_than":
                return bool(actual > value)
            case "less_than":
                return bool(actual < value)
            case "length_equals":
                return bool(len(actual) == value)
            case "length_greater_than":
                return bool(len(actual) > value)
            case _:
                return bool(len(actual) < value)
    except TypeError:
        return False
