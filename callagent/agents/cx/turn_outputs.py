"""What a turn gives the client of a session, as the Session API writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from callagent.agents.action import FunctionEnded
from callagent.agents.cx.cx_agent import CxAgent


class TurnOutputs:
    """Of one turn; `last` comes once, when nothing more of the turn will."""

    def __init__(self, agent: CxAgent, index: int) -> None:
        self._agent = agent
        self.index = {"turnIndex": index}
        self._messages: list[dict[str, Any]] = []

    def said(self, text: str) -> dict[str, Any]:
        self._messages.append({"role": "agent", "chunks": [{"text": text}]})
        return {"text": text, **self.index}

    def note(self, ended: FunctionEnded) -> None:
        self._messages.append(_tool_message(ended))

    def payloads(self) -> Iterator[dict[str, Any]]:
        """What the turn showed beside its words, so far; each once."""
        for payload in self._agent.take_payloads():
            yield {"payload": payload, **self.index}

    def last(self) -> dict[str, Any]:
        return {**self.index, "turnCompleted": True, "diagnosticInfo": {"messages": self._messages}}


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
