"""Reading messages of the OpenAI shape, for providers that want another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from callagent.models.protocol import Message

OPENING = "(The call begins.)"
"""Stands where a provider wants the user to speak first."""
SILENCE = "(The caller says nothing.)"

INSTRUCTIONS = ("system", "developer")


def system_text(messages: Sequence[Message]) -> str:
    """All instructions: wherever they stand, a caller's words must not be able to pass for them."""
    return "\n\n".join(text for message in messages if message["role"] in INSTRUCTIONS and (text := text_of(message)))


def text_of(message: Message) -> str:
    """The message's words; content may be parts."""
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return json.dumps(content, ensure_ascii=False)


def tool_names(messages: Sequence[Message]) -> dict[str, str]:
    """Identifier of each call in the conversation -> the tool's name."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return {str(call["id"]): str(call["function"]["name"]) for call in calls}


def arguments_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """A call's arguments; what the model wrote may have been no JSON object, and then it is none."""
    arguments = function.get("arguments") or "{}"
    try:
        read = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return {}
    return read if isinstance(read, dict) else {}
