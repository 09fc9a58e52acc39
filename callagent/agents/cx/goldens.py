"""Goldens: conversations turn by turn, with the tools that must be called and the words that should be said.

Calls, answers, transfers and variables are compared exactly or by a directive (`$matchType`); words only by a judge.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from callagent.agents.actions import Action, FunctionEnded, FunctionStarted, Handoff, HangUp, Say
from callagent.agents.cx.engine import CxAgent
from callagent.agents.cx.format import read_yaml_file
from callagent.agents.cx.project import CxProject, Mocks
from callagent.agents.protocol import CallerTurn
from callagent.errors import ProjectError

Judge = Callable[[str, str], Awaitable[bool]]
"""Whether two texts mean the same: the expected one, then the actual one."""
_START = "<event>welcome</event>"
_EVENT = re.compile(r"\s*<event>\s*(welcome|session start)\s*</event>\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GoldenCall:
    """An expected tool call, or an expected answer of a tool."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class GoldenTurn:
    """One turn: what the caller says, and what is expected then."""

    user: str
    agent: str
    calls: tuple[GoldenCall, ...] = ()
    answers: tuple[GoldenCall, ...] = ()
    """Expected answers of tools; `arguments` holds the answer."""
    transfer: str = ""
    """The agent that should have the conversation after the turn; empty: any."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    no_calls: bool = False

    @property
    def is_start(self) -> bool:
        return _EVENT.fullmatch(self.user) is not None


@dataclass(frozen=True, slots=True)
class Golden:
    name: str
    variables: Mapping[str, Any]
    turns: tuple[GoldenTurn, ...]
    tags: tuple[str, ...] = ()
    expectations: tuple[str, ...] = ()
    """What a judge should find true of the whole conversation."""
    mocks: Mocks = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GoldenResult:
    name: str
    failures: tuple[str, ...]
    turns: tuple[dict[str, Any], ...] = ()
    """What was said and called in each turn, for a judge."""

    @property
    def passed(self) -> bool:
        return not self.failures


def read_goldens(path: Path) -> list[Golden]:
    """Read the goldens of a file. Raises `ProjectError` naming the file and the conversation."""
    data = read_yaml_file(path)
    conversations = data.get("conversations") if isinstance(data, dict) else None
    if not isinstance(conversations, list):
        raise ProjectError(f"{path.name}: 'conversations' should be a list")
    common = data.get("common_session_parameters") or {}
    return [_golden(each, common, f"{path.name}: conversation {n}") for n, each in enumerate(conversations, 1)]


async def run_goldens(project: CxProject, goldens: Sequence[Golden], judge: Judge | None = None) -> list[GoldenResult]:
    """Run each golden in a call of its own. Without a judge words are not compared."""
    return [await _run(project, golden, judge) for golden in goldens]


async def _run(project: CxProject, golden: Golden, judge: Judge | None) -> GoldenResult:
    failures: list[str] = []
    turns: list[dict[str, Any]] = []
    async with project.open_for_test(golden.variables, golden.mocks) as agent:
        if golden.turns and not golden.turns[0].is_start:
            await agent.start(lambda action: None)
        for number, turn in enumerate(golden.turns, 1):
            actions = await _play(agent, turn)
            turns.append(_shown(turn, actions))
            called = [(each.name, each.arguments) for each in actions if isinstance(each, FunctionStarted)]
            found = [await _words_failure(turn, actions, judge), *call_failures(turn.calls, called)]
            found += state_failures(turn, actions, agent.record().step or "", agent.conversation.state.values)
            found += [await _semantic_failure(turn, actions, judge)] if judge is not None else []
            failures += [f"turn {number}: {each}" for each in found if each]
            if any(isinstance(each, HangUp | Handoff) for each in actions):
                if number < len(golden.turns):
                    failures.append(f"turn {number}: the call ended; {len(golden.turns) - number} turns are left")
                break
    return GoldenResult(golden.name, tuple(failures), tuple(turns))


def state_failures(turn: GoldenTurn, actions: Sequence[Action], agent: str, variables: Mapping[str, Any]) -> list[str]:
    """Return what differs from the turn's expectations of answers, the active agent, variables and calls."""
    answered = [(each.name, each.result) for each in actions if isinstance(each, FunctionEnded)]
    failures = []
    for wanted in turn.answers:
        given = [result for name, result in answered if name == wanted.name]
        if not any(_fits(wanted.arguments, result if isinstance(result, Mapping) else {}) for result in given):
            failures.append(f"{wanted.name} answered {given or 'nothing'}; expected: {dict(wanted.arguments)}")
    if turn.transfer and turn.transfer != agent:
        failures.append(f"the agent is '{agent}'; expected: '{turn.transfer}'")
    for name, value in turn.variables.items():
        if variables.get(name) != value:
            failures.append(f"variable {name} is {variables.get(name)!r}; expected: {value!r}")
    if turn.no_calls and answered:
        failures.append(f"{', '.join(name for name, _ in answered)} was called; expected: nothing")
    return failures


def _shown(turn: GoldenTurn, actions: Sequence[Action]) -> dict[str, Any]:
    called = [each for each in actions if isinstance(each, FunctionEnded)]
    return {
        "user_input": None if turn.is_start else turn.user,
        "agent_response": " ".join(action.text for action in actions if isinstance(action, Say)),
        "function_calls": [
            {"name": each.name, "arguments": dict(each.arguments), "result": each.result, "error": each.error}
            for each in called
        ],
    }


async def _play(agent: CxAgent, turn: GoldenTurn) -> list[Action]:
    actions: list[Action] = []
    if turn.is_start:
        await agent.start(actions.append)
    else:
        await agent.reply(CallerTurn(text=turn.user), actions.append)
    return actions


async def _words_failure(turn: GoldenTurn, actions: Sequence[Action], judge: Judge | None) -> str:
    said = " ".join(action.text for action in actions if isinstance(action, Say))
    if judge is None or not turn.agent or _plain(said) == _plain(turn.agent) or await judge(turn.agent, said):
        return ""
    return f"said {said!r}; expected: {turn.agent!r}"


def call_failures(expected: Sequence[GoldenCall], called: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return the expected calls that were not made. Their order does not matter, and others may be made too.

    `called`: names and arguments of the calls that were made.
    """
    made = list(called)
    failures = []
    for call in expected:
        matching = next((each for each in made if each[0] == call.name and _fits(call.arguments, each[1])), None)
        if matching is None:
            listed = ", ".join(f"{name}({dict(arguments)})" for name, arguments in made) or "nothing"
            failures.append(f"{call.name}({dict(call.arguments)}) was not called; called: {listed}")
        else:
            made.remove(matching)
    return failures


async def _semantic_failure(turn: GoldenTurn, actions: Sequence[Action], judge: Judge) -> str:
    """Compare the arguments with the directive `semantic` by their meaning; empty: all fit."""
    made = [action for action in actions if isinstance(action, FunctionStarted)]
    for call in turn.calls:
        given = next((each.arguments for each in made if each.name == call.name), {})
        for key, wanted in call.arguments.items():
            if _directive(wanted) == "semantic" and key in given:
                value = str(wanted.get("$matchValue") or "")
                if not await judge(value, str(given[key])):
                    return f"{call.name}: {key} is {given[key]!r}; expected something like {value!r}"
    return ""


def _fits(expected: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    return all(_argument_fits(value, given, key) for key, value in expected.items())


def _argument_fits(wanted: Any, given: Mapping[str, Any], key: str) -> bool:
    kind = _directive(wanted)
    value = wanted.get("$matchValue") if kind else wanted
    match kind:
        case "ignore":
            return True
        case "semantic":
            return key in given
        case "contains":
            return str(value) in str(given.get(key, ""))
        case "regexp":
            return re.search(str(value), str(given.get(key, ""))) is not None
    return key in given and bool(given[key] == value)


def _directive(wanted: Any) -> str:
    return str(wanted.get("$matchType") or "") if isinstance(wanted, Mapping) else ""


def _plain(text: str) -> str:
    return " ".join(re.findall(r"\w+", text.lower()))


def _golden(data: Any, common: Mapping[str, Any], place: str) -> Golden:
    if not isinstance(data, dict) or not isinstance(data.get("turns"), list):
        raise ProjectError(f"{place}: 'turns' should be a list")
    turns: list[GoldenTurn] = []
    for number, turn in enumerate(data["turns"], 1):
        if not isinstance(turn, dict) or not isinstance(turn.get("user"), str | None):
            raise ProjectError(f"{place}, turn {number}: 'user' should be a text")
        calls = tuple(_call(each, f"{place}, turn {number}") for each in turn.get("tool_calls") or ())
        # A turn without words of the caller is the greeting if it is the first, else a silence.
        user = turn.get("user") or ("" if turns else _START)
        turns.append(GoldenTurn(user, str(turn.get("agent") or ""), calls))
    return Golden(
        name=str(data.get("conversation") or place),
        variables={**common, **(data.get("session_parameters") or {})},
        turns=tuple(turns),
        tags=tuple(str(each) for each in data.get("tags") or ()),
        expectations=tuple(str(each) for each in data.get("expectations") or ()),
    )


def _call(data: Any, place: str) -> GoldenCall:
    if not isinstance(data, dict) or not isinstance(data.get("action"), str):
        raise ProjectError(f"{place}: a tool call should have an 'action', the tool's name")
    return GoldenCall(data["action"], data.get("args") or {})
