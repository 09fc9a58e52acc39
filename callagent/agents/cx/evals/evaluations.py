"""Tests that come with an app: goldens, tool tests and simulations in `evals/`, and exported `evaluations/`.

`evals/` is in the app's folder or up to two folders above, where published templates have it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callagent.agents.cx.evals.goldens import Golden, GoldenCall, GoldenTurn, read_goldens
from callagent.agents.cx.evals.tool_tests import ToolTest, read_tool_tests, read_yaml_file
from callagent.agents.cx.format import CxApp, read_documents, referenced_tool_name
from callagent.agents.cx.project import Mocks
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
