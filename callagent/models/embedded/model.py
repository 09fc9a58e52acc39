"""Rules first; what fits none of them is read by the small model, and confirmed where that is not sure."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import date
from typing import Any

from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.models.embedded.pool import NeedlePool, Reading, ToolSet
from callagent.models.functiongemma import coerce_arguments
from callagent.models.protocol import Delta, Message, ModelSettings, Tool, ToolCall
from callagent.models.rules import Call, Situation, Speak, choose
from callagent.models.understanding import Answer, find_answer

log = get_logger(__name__)

_MIN_CONFIDENCE = 0.1
"""Below it the choice is no better than a guess."""
_SURE_CONFIDENCE = 0.5
_MAX_TOOLS = 12
"""More take seconds to prepare."""
_MAX_ANSWER_WORDS = 4
_OWN_FUNCTIONS = ("save_entities",)
"""The engine's: the rules fill them."""
_CONFIRM = "Let me make sure:"
_NOT_CONFIRMED = "All right. What would you like instead?"


class EmbeddedModel:
    """`today` is asked where a prompt does not name the date."""

    def __init__(self, pool: NeedlePool, today: Callable[[], date] = date.today) -> None:
        self._pool = pool
        self._today = today

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncIterator[Delta]:
        situation = Situation.read(messages)
        today = situation.today or self._today()
        choice = await self._answer_to_confirmation(messages, situation, tools, today)
        if choice is None:
            choice = choose(situation, tools, today)
            if isinstance(choice, Speak) and not choice.understood:
                choice = await self._read(situation.said, tools, today) or choice
        match choice:
            case Call(name, arguments):
                # Unique within the conversation, and the same every time.
                number = sum(len(message.get("tool_calls") or ()) for message in messages) + 1
                yield Delta(tool_call=ToolCall(f"call_{number}", name, json.dumps(arguments)))
            case Speak(text):
                # The caller answers next, most likely in this position.
                if offered := _offered(tools):
                    self._pool.prepare(ToolSet.of(offered, today))
                yield Delta(text=text)

    async def close(self) -> None:
        await self._pool.close()

    async def _read(self, said: str, tools: Sequence[Tool], today: date) -> Call | Speak | None:
        """What the small model chooses; None: nothing that may be done."""
        bare = find_answer(said) is not None and len(said.split()) <= _MAX_ANSWER_WORDS
        # A bare yes or no names no function, but the small model would choose one.
        if bare or not (offered := _offered(tools)) or len(offered) > _MAX_TOOLS:
            return None
        try:
            reading = await self._pool.read(ToolSet.of(offered, today), said)
        except ProviderError as error:
            # The rules' words remain.
            log.warning("embedded_model_failed", error=str(error))
            return None
        call = _checked(reading, offered)
        if call is None or reading.confidence < _MIN_CONFIDENCE:
            return None
        sure = reading.confidence >= _SURE_CONFIDENCE and reading.grounded
        return call if sure else Speak(_confirmation(call))

    async def _answer_to_confirmation(
        self, messages: Sequence[Message], situation: Situation, tools: Sequence[Tool], today: date
    ) -> Call | Speak | None:
        """What follows from the caller's yes or no to our own question; None: there was none, or another answer."""
        if situation.results or not situation.turn_begun or not situation.last_agent.startswith(_CONFIRM):
            return None
        answer = find_answer(situation.said)
        if answer is None:
            return None
        if answer is Answer.NO:
            return Speak(situation.say or _NOT_CONFIRMED)
        # The small model says the same of the same words: what was confirmed need not be kept anywhere.
        said = [str(message.get("content") or "") for message in messages if message["role"] == "user"]
        if not (offered := _offered(tools)) or len(said) < 2:
            return None
        try:
            reading = await self._pool.read(ToolSet.of(offered, today), said[-2])
        except ProviderError as error:
            log.warning("embedded_model_failed", error=str(error))
            return None
        call = _checked(reading, offered)
        return call if call and _confirmation(call) == situation.last_agent else None


def _offered(tools: Sequence[Tool]) -> list[Tool]:
    return [tool for tool in tools if tool["function"]["name"] not in _OWN_FUNCTIONS]


def _checked(reading: Reading, tools: Sequence[Tool]) -> Call | None:
    """The call, if there is such a function and the arguments fit it."""
    tool = _named(reading.name, tools)
    if tool is None:
        return None
    try:
        return Call(reading.name, coerce_arguments(reading.arguments, tool["function"].get("parameters") or {}))
    except ValueError:
        return None


def _named(name: str, tools: Sequence[Tool]) -> Tool | None:
    return next((tool for tool in tools if tool["function"]["name"] == name), None)


def _confirmation(call: Call) -> str:
    """The question whether the call is meant, as one sentence."""
    parts = [call.name.replace("_", " "), *_spoken(call.arguments)]
    return f"{_CONFIRM} {', '.join(parts)}, is that right?"


def _spoken(arguments: Mapping[str, Any]) -> list[str]:
    return [f"{name.replace('_', ' ')} {value}" for name, value in arguments.items() if value not in (None, "")]
