"""Whether a conversation was as it should be: a model for what is said in words, a comparison for function calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from callagent.agents.flows import TestCase
from callagent.errors import ProviderError
from callagent.models.protocol import LanguageModel
from callagent.testing.caller import ask

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
