"""What a turn gives the client of a session, as the Session API writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callagent.agents.actions import FunctionEnded, ModelAnswered
from callagent.agents.cx.engine import CxAgent


class TurnOutputs:
    """Of one turn; `last` comes once, when nothing more of the turn will."""

    def __init__(self, agent: CxAgent, index: int) -> None:
        self._agent = agent
        self._agent.spans().begin()
        self.index = {"turnIndex": index}
        self._messages: list[dict[str, Any]] = []

    def said(self, text: str) -> dict[str, Any]:
        self._messages.append({"role": "agent", "chunks": [{"text": text}]})
        return {"text": text, **self.index}

    def note(self, ended: FunctionEnded | ModelAnswered) -> None:
        spans = self._agent.spans()
        if isinstance(ended, FunctionEnded):
            self._messages.append(_tool_message(ended))
            spans.ended("tool", ended.duration_ms / 1000, {"name": ended.name, "error": ended.error})
        else:
            spans.ended("model", ended.finished - ended.requested, _model_attributes(ended))

    def payloads(self) -> Iterator[dict[str, Any]]:
        """What the turn showed beside its words, so far; each once."""
        for payload in self._agent.take_payloads():
            yield {"payload": payload, **self.index}

    def last(self) -> dict[str, Any]:
        diagnosis = {"messages": self._messages, "rootSpan": self._agent.spans().whole(self.index)}
        return {**self.index, "turnCompleted": True, "diagnosticInfo": diagnosis}


def _model_attributes(answered: ModelAnswered) -> dict[str, Any]:
    first = None if answered.first_token is None else round(answered.first_token - answered.requested, 6)
    return {
        "inputTokens": answered.input_tokens,
        "outputTokens": answered.output_tokens,
        "firstTokenSeconds": first,
        "error": answered.error,
    }


def _tool_message(ended: FunctionEnded) -> dict[str, Any]:
    identifier = {"id": str(ended.number), "displayName": ended.name}
    result = ended.result if ended.error is None else {"error": ended.error}
    response = result if isinstance(result, dict) else {"result": result}
    return {
        "role": "agent",
        "chunks": [
            {"toolCall": {**identifier, "args": dict(ended.arguments)}},
            {"toolResponse": {**identifier, "response": response}},
        ],
    }
