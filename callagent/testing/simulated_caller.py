"""Who plays the caller in a test, and who judges: lines from a file, language models, comparisons of function calls."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

from callagent.agents.flows import TestCase
from callagent.errors import ProviderError, ProviderTimeout, UserError
from callagent.models import LanguageModel, Message, ModelSettings

MODEL_SECONDS = 60.0
HANG_UP = "[HANG UP]"
_INSTRUCTIONS = """\
You play a person on the phone with a company's automated agent. Stay in this role:

{scenario}

Write only what the person says next: one short spoken turn in the language {language}, no stage directions. \
Give a detail when the agent asks for it, not before. When your business is done, or the agent has said goodbye \
or transfers you, write only {hang_up}."""


class Caller(Protocol):
    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        """What the caller says after `conversation`, pairs of `caller` or `agent` and words. None: hangs up."""


@dataclass(slots=True)
class ScriptedCaller:
    lines: Sequence[str]
    _next: int = 0

    async def next_line(self, conversation: Sequence[tuple[str, str]]) -> str | None:
        if self._next >= len(self.lines):
            return None
        self._next += 1
        return self.lines[self._next - 1]


@dataclass(frozen=True, slots=True)
class ModelCaller:
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
    """One whole answer. Raises `ProviderError`."""
    text = ""
    try:
        async with (
            asyncio.timeout(MODEL_SECONDS),
            aclosing(cast("Any", model.stream(messages, [], ModelSettings(json_output=json_output)))) as deltas,
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
    model: tuple[Mapping[str, Any], ...] | None = None
    """A model script for the agent; None: the configured model."""
    judge: tuple[Mapping[str, Any], ...] = field(default=())
    """A model script for the judge of the prompt assertions."""


def read_caller_file(path: Path) -> dict[str, Lines]:
    """Test name -> its lines. Raises `UserError` naming file and test."""
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


def _entries(value: object, place: str) -> tuple[Mapping[str, Any], ...]:
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

{said}

Answer with one JSON object: {{"pass": true or false, "reason": "one sentence"}}."""
Turn = Mapping[str, Any]
"""`{"user_input", "agent_response", "function_calls": [{"name", "arguments", "result", "error"}]}`"""


async def judge_prompts(
    model: LanguageModel | None, statements: Sequence[str], turns: Sequence[Turn]
) -> list[dict[str, Any]]:
    """`{"prompt", "is_pass", "reason"}` for each; `is_pass` None: there was no model to ask."""
    results = []
    for statement in statements:
        passed, reason = (None, "no model to judge it") if model is None else await _judge(model, statement, turns)
        results.append({"prompt": statement, "is_pass": passed, "reason": reason})
    return results


async def _judge(model: LanguageModel, statement: str, turns: Sequence[Turn]) -> tuple[bool, str]:
    question = _QUESTION.format(statement=statement, conversation=_as_text(turns))
    try:
        answer = await ask(model, [{"role": "user", "content": question}], json_output=True)
        found = json.loads(_object(answer))
    except ProviderError as error:
        return False, f"the judging model failed: {error}"
    except ValueError:
        return False, f"the judging model did not answer with JSON: {answer[:200]}"
    return found.get("pass") is True, str(found.get("reason") or "")


async def judge_meaning(model: LanguageModel, expected: str, said: str) -> bool:
    """Whether two texts say the same to a caller."""
    question = _SAME.format(expected=expected, said=said)
    try:
        answer = await ask(model, [{"role": "user", "content": question}], json_output=True)
        return json.loads(_object(answer)).get("pass") is True
    except (ProviderError, ValueError):
        return False


def _object(text: str) -> str:
    """The JSON object in a model's answer, without the fence around it."""
    match = re.search(r"\{.*\}", text, re.DOTALL)
    if match is None:
        raise ValueError(text)
    return match.group(0)


def judge_function_calls(case: TestCase, turns: Sequence[Turn]) -> list[str]:
    """What is wrong with the functions that were called; one text each."""
    called = [call for turn in turns for call in turn["function_calls"]]
    failures = []
    for expected in case.function_calls:
        found = any(expected.matches(call["name"], call["arguments"]) for call in called)
        if found == expected.asserted:
            continue
        wanted = f"{expected.name}({_shown(expected.arguments)})"
        same = [f"({_shown(call['arguments'])})" for call in called if call["name"] == expected.name]
        if expected.asserted:
            failures.append(f"{wanted} was not called" + (f"; it was called with {', '.join(same)}" if same else ""))
        else:
            failures.append(f"{wanted} was called")
    return failures


def _shown(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


def _as_text(turns: Sequence[Turn]) -> str:
    lines = []
    for turn in turns:
        if turn["user_input"] is not None:
            lines.append(f"Caller: {turn['user_input'] or '(silence)'}")
        lines += [f"[the agent calls {call['name']}({_shown(call['arguments'])})]" for call in turn["function_calls"]]
        if turn["agent_response"]:
            lines.append(f"Agent: {turn['agent_response']}")
        if turn.get("ended"):
            lines.append(f"[{turn['ended']}]")
    return "\n".join(lines)
