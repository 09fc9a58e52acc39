"""Conversations that show a model how to answer, as text for its instruction."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from callagent.agents.cx.format.app import CxApp, called_name


def as_examples(conversations: Sequence[str]) -> str:
    listed = "\n\n".join(f"Example {number}, {text}" for number, text in enumerate(conversations, 1))
    return f"These conversations show how callers are answered. They are examples, not what was said now.\n\n{listed}"


def conversation(app: CxApp, data: Mapping[str, Any]) -> str:
    """Of an example's file; empty: nothing of it can be told in words."""
    lines = []
    for message in data.get("messages") or ():
        author = "Caller" if str(message.get("role") or "user").lower() == "user" else "Agent"
        lines += [line for chunk in message.get("chunks") or () for line in _lines(app, author, chunk)]
    return "\n".join(lines)


def _lines(app: CxApp, author: str, chunk: Mapping[str, Any]) -> Iterator[str]:
    if said := chunk.get("text") or chunk.get("transcript"):
        yield f"{author}: {said}"
    if call := chunk.get("toolCall"):
        yield f"{author} calls {called_name(app, call)}({_json(call.get('args') or {})})"
    if answer := chunk.get("toolResponse"):
        yield f"{called_name(app, answer)} answers {_json(answer.get('response') or {})}"
    if transfer := chunk.get("agentTransfer"):
        named = str(transfer.get("targetAgent") or transfer.get("displayName") or "")
        yield f"{author} gives the conversation to {app.agent_named(named) or named.rsplit('/', 1)[-1]}"
    if payload := chunk.get("payload"):
        yield f"{author} shows {_json(payload)}"
    for key in ("defaultVariables", "updatedVariables"):
        for name, value in (chunk.get(key) or {}).items():
            yield f"The variable {name} is {_json(value)}"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
