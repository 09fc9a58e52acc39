"""Goldens: conversations with the tools that must be called and the words that should be said in each turn.

Calls, answers, transfers and variables are compared exactly or by a directive (`$matchType`). Words are compared by a
judge: a function that decides whether two texts have the same meaning.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from callagent.agents.actions import Action, FunctionEnded, FunctionStarted, Handoff, HangUp, Say
from callagent.agents.cx.engine import CxAgent
from callagent.agents.cx.format import read_yaml_file
from callagent.agents.cx.project import CxProject, Mocks
from callagent.agents.protocol import CallerTurn
from callagent.errors import ProjectError
from callagent.json_values import JsonObject, JsonValue, MutableJsonObject, list_at, object_at

Judge = Callable[[str, str], Awaitable[bool]]
"""Returns whether two texts mean the same, the expected one and the actual one."""
_START_EVENT = "<event>welcome</event>"
_START_PATTERN = re.compile(r"\s*<event>\s*(welcome|session start)\s*</event>\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class GoldenCall:
    """An expected tool call, or an expected answer of a tool."""

    name: str
    arguments: JsonObject
    """A value may be a directive: `{"$matchType": "contains", "$matchValue": …}`."""


@dataclass(frozen=True, slots=True)
class GoldenTurn:
    """One turn: the caller's words and what is expected of the agent."""

    user: str
    agent: str
    """The expected words; empty: any."""
    calls: tuple[GoldenCall, ...] = ()
    answers: tuple[GoldenCall, ...] = ()
    """Expected answers of tools. Their `arguments` are the fields of the answer."""
    transfer: str = ""
    """The agent that should have the conversation after the turn; empty: any."""
    variables: JsonObject = field(default_factory=dict)
    """Values that variables should have after the turn."""
    no_calls: bool = False
    """Whether the turn may call no tool at all."""

    @property
    def is_start(self) -> bool:
        return _START_PATTERN.fullmatch(self.user) is not None


@dataclass(frozen=True, slots=True)
class Golden:
    """A conversation with the expectations of each turn."""

    name: str
    variables: JsonObject
    turns: tuple[GoldenTurn, ...]
    tags: tuple[str, ...] = ()
    expectations: tuple[str, ...] = ()
    """Statements on the whole conversation that a judge should find true."""
    mocks: Mocks = field(default_factory=dict)
    """Answers in place of the tools' own."""


@dataclass(frozen=True, slots=True)
class GoldenResult:
    """The failed expectations of a golden."""

    name: str
    failures: tuple[str, ...]
    turns: tuple[JsonObject, ...] = ()
    """The words and calls of each turn, for a judge."""

    @property
    def passed(self) -> bool:
        return not self.failures


def read_goldens(path: Path) -> list[Golden]:
    """Read the goldens of a file. Raises `ProjectError` naming the file and the conversation."""
    data = read_yaml_file(path)
    conversations = data.get("conversations") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(conversations, list):
        raise ProjectError(f"{path.name}: 'conversations' should be a list")
    common = object_at(data, "common_session_parameters")
    return [_read_golden(each, common, f"{path.name}: conversation {n}") for n, each in enumerate(conversations, 1)]


async def run_goldens(project: CxProject, goldens: Sequence[Golden], judge: Judge | None = None) -> list[GoldenResult]:
    """Run each golden in a call of its own. Without a judge, words are not compared."""
    return [await _run_golden(project, golden, judge) for golden in goldens]


async def _run_golden(project: CxProject, golden: Golden, judge: Judge | None) -> GoldenResult:
    failures: list[str] = []
    turns: list[JsonObject] = []
    async with project.open_for_test(golden.variables, golden.mocks) as agent:
        # The app greets the caller even if the golden begins with the caller's words.
        if golden.turns and not golden.turns[0].is_start:
            await agent.start(lambda action: None)
        for number, turn in enumerate(golden.turns, 1):
            actions = await _play_turn(agent, turn)
            turns.append(_turn_summary(turn, actions))
            ended = any(isinstance(each, HangUp | Handoff) for each in actions)
            remaining = len(golden.turns) - number if ended else 0
            found = [*await _turn_failures(agent, turn, actions, judge)]
            found += [f"the call ended; {remaining} turns are left"] if remaining else []
            failures += [f"turn {number}: {each}" for each in found]
            if ended:
                break
    return GoldenResult(golden.name, tuple(failures), tuple(turns))


async def _turn_failures(agent: CxAgent, turn: GoldenTurn, actions: Sequence[Action], judge: Judge | None) -> list[str]:
    called = [(each.name, each.arguments) for each in actions if isinstance(each, FunctionStarted)]
    found = [await _words_failure(turn, actions, judge), *call_failures(turn.calls, called)]
    found += state_failures(turn, actions, agent.record().step or "", agent.conversation.state.values)
    found += [await _semantic_failure(turn, actions, judge)] if judge is not None else []
    return [each for each in found if each]


def state_failures(
    turn: GoldenTurn, actions: Sequence[Action], agent: str, variables: Mapping[str, object]
) -> list[str]:
    """Return the differences from a turn's expectations of answers, the active agent, variables and calls."""
    answered = [(each.name, each.result) for each in actions if isinstance(each, FunctionEnded)]
    failures = []
    for wanted in turn.answers:
        results = [result for name, result in answered if name == wanted.name]
        if not any(
            _arguments_match(wanted.arguments, result if isinstance(result, Mapping) else {}) for result in results
        ):
            failures.append(f"{wanted.name} answered {results or 'nothing'}; expected: {dict(wanted.arguments)}")
    if turn.transfer and turn.transfer != agent:
        failures.append(f"the agent is '{agent}'; expected: '{turn.transfer}'")
    for name, value in turn.variables.items():
        if variables.get(name) != value:
            failures.append(f"variable {name} is {variables.get(name)!r}; expected: {value!r}")
    if turn.no_calls and answered:
        failures.append(f"{', '.join(name for name, _ in answered)} was called; expected: nothing")
    return failures


def _turn_summary(turn: GoldenTurn, actions: Sequence[Action]) -> MutableJsonObject:
    called = [each for each in actions if isinstance(each, FunctionEnded)]
    return {
        "user_input": None if turn.is_start else turn.user,
        "agent_response": " ".join(action.text for action in actions if isinstance(action, Say)),
        "function_calls": [
            {"name": each.name, "arguments": dict(each.arguments), "result": each.result, "error": each.error}
            for each in called
        ],
    }


async def _play_turn(agent: CxAgent, turn: GoldenTurn) -> list[Action]:
    actions: list[Action] = []
    if turn.is_start:
        await agent.start(actions.append)
    else:
        await agent.reply(CallerTurn(text=turn.user), actions.append)
    return actions


async def _words_failure(turn: GoldenTurn, actions: Sequence[Action], judge: Judge | None) -> str:
    spoken = " ".join(action.text for action in actions if isinstance(action, Say))
    if judge is None or not turn.agent or _normalize(spoken) == _normalize(turn.agent):
        return ""
    return "" if await judge(turn.agent, spoken) else f"said {spoken!r}; expected: {turn.agent!r}"


def call_failures(expected: Sequence[GoldenCall], called: Sequence[tuple[str, Mapping[str, object]]]) -> list[str]:
    """Return the failures of expected calls that were not made. Order does not matter, and other calls may be made.

    `called`: names and arguments of the calls that were made.
    """
    made_calls = list(called)
    failures = []
    for call in expected:
        matching = next(
            (each for each in made_calls if each[0] == call.name and _arguments_match(call.arguments, each[1])), None
        )
        if matching is None:
            listed = ", ".join(f"{name}({dict(arguments)})" for name, arguments in made_calls) or "nothing"
            failures.append(f"{call.name}({dict(call.arguments)}) was not called; called: {listed}")
        else:
            # A call meets one expectation only: two equal expectations need two calls.
            made_calls.remove(matching)
    return failures


async def _semantic_failure(turn: GoldenTurn, actions: Sequence[Action], judge: Judge) -> str:
    """Return the failure of the first `semantic` argument whose meaning differs; empty if there is none."""
    made_calls = [action for action in actions if isinstance(action, FunctionStarted)]
    expected = ((each, *argument) for each in turn.calls for argument in each.arguments.items())
    for call, key, wanted in expected:
        arguments = next((each.arguments for each in made_calls if each.name == call.name), {})
        kind, value = _directive(wanted)
        if kind == "semantic" and key in arguments and not await judge(str(value or ""), str(arguments[key])):
            return f"{call.name}: {key} is {arguments[key]!r}; expected something like {str(value or '')!r}"
    return ""


def _arguments_match(expected: JsonObject, actual: Mapping[str, object]) -> bool:
    return all(_argument_matches(value, actual, key) for key, value in expected.items())


def _argument_matches(wanted: JsonValue, actual: Mapping[str, object], key: str) -> bool:
    kind, value = _directive(wanted)
    match kind:
        case "ignore":
            return True
        case "semantic":
            # The judge compares the meaning, in `_semantic_failure`.
            return key in actual
        case "contains":
            return str(value) in str(actual.get(key, ""))
        case "regexp":
            return re.search(str(value), str(actual.get(key, ""))) is not None
    return key in actual and bool(actual[key] == value)


def _directive(wanted: JsonValue) -> tuple[str, JsonValue]:
    """Return the kind of comparison and the value to compare with; an empty kind means equality."""
    kind = str(wanted.get("$matchType") or "") if isinstance(wanted, Mapping) else ""
    return (kind, wanted.get("$matchValue")) if kind and isinstance(wanted, Mapping) else ("", wanted)


def _normalize(text: str) -> str:
    """Return the words of a text in lower case, so that differences in capitals and punctuation need no judge."""
    return " ".join(re.findall(r"\w+", text.lower()))


def _read_golden(data: JsonValue, common: JsonObject, place: str) -> Golden:
    if not isinstance(data, Mapping) or not isinstance(data.get("turns"), list):
        raise ProjectError(f"{place}: 'turns' should be a list")
    turns: list[GoldenTurn] = []
    for number, turn in enumerate(list_at(data, "turns"), 1):
        user_text = turn.get("user") if isinstance(turn, Mapping) else turn
        if not isinstance(turn, Mapping) or not isinstance(user_text, str | None):
            raise ProjectError(f"{place}, turn {number}: 'user' should be a text")
        calls = tuple(_read_call(each, f"{place}, turn {number}") for each in list_at(turn, "tool_calls"))
        # A turn without words of the caller is the greeting if it is the first, else a silence.
        user = user_text or ("" if turns else _START_EVENT)
        turns.append(GoldenTurn(user, str(turn.get("agent") or ""), calls))
    return Golden(
        name=str(data.get("conversation") or place),
        variables={**common, **object_at(data, "session_parameters")},
        turns=tuple(turns),
        tags=tuple(str(each) for each in list_at(data, "tags")),
        expectations=tuple(str(each) for each in list_at(data, "expectations")),
    )


def _read_call(data: JsonValue, place: str) -> GoldenCall:
    action = data.get("action") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(action, str):
        raise ProjectError(f"{place}: a tool call should have an 'action', the tool's name")
    return GoldenCall(action, object_at(data, "args"))
