"""`conv.history`: what caller and agent said, oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class UserInput:
    """What the caller said; an empty text is a silent turn."""

    text: str
    role: ClassVar[str] = "user"

    def to_dict(self) -> dict[str, str]:
        return {"type": self.role, "text": self.text}

    def to_string(self) -> str:
        return f"User: {self.text}"


@dataclass(frozen=True)
class AgentResponse:
    text: str
    role: ClassVar[str] = "agent"

    def to_dict(self) -> dict[str, str]:
        return {"type": self.role, "text": self.text}

    def to_string(self) -> str:
        return f"Agent: {self.text}"


def history_of(entries: Iterable[Mapping[str, Any]]) -> list[UserInput | AgentResponse]:
    """From `{"role", "text"}`; the model's word for the agent is accepted too."""
    return [
        UserInput(str(entry.get("text") or "")) if entry.get("role") == "user" else AgentResponse(str(entry["text"]))
        for entry in entries
    ]
