"""Tests that lie with an app: `evals/` of goldens, tool tests and simulations, and exported `evaluations/`.

`evals/` is in the app's folder or up to two folders above, where published templates have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from callagent.agents.cx.app import CxApp
from callagent.agents.cx.goldens import Golden, GoldenCall, GoldenTurn, read_goldens
from callagent.agents.cx.load import read_documents
from callagent.agents.cx.tool_tests import ToolTest, read_tool_tests, read_yaml_file
from callagent.errors import ProjectError

MAX_TURNS = 30
_ABOVE = 2


@dataclass(frozen=True, slots=True)
class Simulation:
    """A conversation with a caller who is played: what they want, and what is to hold of it in the end."""

    name: str
    scenario: str
    expectations: tuple[str, ...]
    calls: tuple[GoldenCall, ...] = ()
    """Tools that are to be called, in any order."""
    variables: Mapping[str, Any] | None = None
    tags: tuple[str, ...] = ()
    max_turns: int = MAX_TURNS


@dataclass(frozen=True, slots=True)
class Evaluations:
    """Each with the file that it is in."""

    goldens: Sequence[tuple[str, Golden]]
    tool_tests: Sequence[tuple[str, ToolTest]]
    simulations: Sequence[tuple[str, Simulation]]


def read_evaluations(app: CxApp, path: Path) -> Evaluations:
    """All tests of an app. Raises `ProjectError` naming the file."""
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
    """Raises `ProjectError` naming file and simulation."""
    if not isinstance(data, list):
        raise ProjectError(f"{file}: 'evals' should be a list")
    return [_simulation(each, f"{file}: simulation {number}") for number, each in enumerate(data, 1)]


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    folders = [path, *path.resolve().parents[:_ABOVE]]
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
        ),
        calls=tuple(_call(each, app) for each in calls if each),
        variables=own.get("variableOverrides") or {},
        tags=tuple(str(each) for each in data.get("tags") or ()),
        max_turns=min(int(own.get("maxTurns") or MAX_TURNS), MAX_TURNS),
    )


def _golden(data: Mapping[str, Any], app: CxApp) -> Golden:
    turns = []
    for turn in data["golden"].get("turns") or ():
        user, said, calls = "", [], []
        for step in turn.get("steps") or ():
            user = _input(step["userInput"]) if step.get("userInput") else user
            expectation = step.get("expectation") or {}
            said += _texts(expectation.get("agentResponse") or {})
            calls += [_call(expectation["toolCall"], app)] if expectation.get("toolCall") else []
        turns.append(GoldenTurn(user, " ".join(said), tuple(calls)))
    return Golden(
        name=str(data.get("displayName") or "golden"),
        variables=data["golden"].get("variableOverrides") or {},
        turns=tuple(turns),
        tags=tuple(str(each) for each in data.get("tags") or ()),
    )


def _input(given: Mapping[str, Any]) -> str:
    event = (given.get("event") or {}).get("event")
    return f"<event>{event}</event>" if event else str(given.get("text") or given.get("dtmf") or "")


def _texts(message: Mapping[str, Any]) -> list[str]:
    chunks = message.get("chunks") or [message]
    return [str(each["text"]) for each in chunks if each.get("text")]


def _call(data: Mapping[str, Any], app: CxApp) -> GoldenCall:
    named = str(data.get("displayName") or data.get("tool") or data.get("id") or "")
    found = app.tool_named(named)
    return GoldenCall(app.tools[found].display_name if found else named, data.get("args") or {})
