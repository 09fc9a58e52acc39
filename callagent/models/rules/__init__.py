"""The embedded language model: `rules`. No weights, no network, the same answer every time; English.

It speaks the words that a step's prompt gives it and chooses functions by what the caller said:

    Say: What is your tracking number?            on entering the step, after silence, and to ask again
    Otherwise say: I need the five digits of it.  when the caller was not understood

A function is chosen by its name, description and parameters; its arguments are taken from the caller's words (numbers,
days, times, names, options) and never made up: a function is not called unless the caller gave all that it requires. A
retrieved topic that fits the caller's question is spoken in its own words, and so are the lines of a function's result
that begin with `Say:`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import date

from callagent.models.protocol import Delta, Message, ModelSettings, Tool, ToolCall
from callagent.models.rules.choice import Call, Speak, choose
from callagent.models.rules.entities import Answer, find_answer
from callagent.models.rules.situation import Situation

__all__ = ["Answer", "Call", "RulesModel", "Situation", "Speak", "choose", "find_answer"]


class RulesModel:
    """A language model that answers by rules and has no state."""

    def __init__(self, today: Callable[[], date] = date.today) -> None:
        """`today` returns the date, for prompts that do not name it."""
        self._today = today

    async def stream(
        self, messages: Sequence[Message], tools: Sequence[Tool], settings: ModelSettings
    ) -> AsyncGenerator[Delta, None]:
        match choose(Situation.read(messages), tools, self._today()):
            case Call(name, arguments):
                # Unique within the conversation, and the same every time.
                number = sum(len(message.get("tool_calls") or ()) for message in messages) + 1
                yield Delta(tool_call=ToolCall(f"call_{number}", name, json.dumps(arguments)))
            case Speak(text):
                yield Delta(text=text)

    async def close(self) -> None:
        pass
