"""What a model may call, and who carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from callagent.agents.tree.keepsakes import Adds
from callagent.models.protocol import Tool as ModelTool

if TYPE_CHECKING:
    from callagent.agents.tree.node import LlmNode

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}


class ToolKind(Enum):
    CODE = "code"
    """A function in the call's worker."""
    AGENT = "agent"
    """An agent with a history of its own; its final text is the result."""
    TRANSFER = "transfer"
    EXIT_LOOP = "exit_loop"
    USER_CHOICE = "user_choice"
    PHONE = "phone"
    """Hanging up, handing the call over, collecting key presses: see `phone.py`."""
    CLIENT = "client"
    """Whoever drives the agent carries it out and answers in a turn of its own."""
    UNSEEN = "unseen"
    """No tool for the model: what it adds to its agent's requests."""
    EXAMPLES = "examples"
    """No tool for the model: a text for its instruction."""
    UNAVAILABLE = "unavailable"
    """Needs something that is not here; whoever asks the model fails with `description`."""


@dataclass(frozen=True, slots=True, eq=False)
class Tool:
    name: str
    kind: ToolKind
    description: str = ""
    parameters: Mapping[str, Any] | None = None
    """JSON schema; None: the tool takes no arguments."""
    long_running: bool = False
    """Its result is preliminary; the true one comes in a later turn."""
    asynchronous: bool = False
    """Of code: the model goes on at once and learns the result in a later request."""
    timeout: float | None = None
    """Of code: seconds that its call may take; None: as the settings say."""
    agent: LlmNode | Any = None
    """Of an agent tool: the agent, which need not be an `LlmNode`."""
    skip_summarization: bool = False
    text: str = ""
    """Of examples, and of tools that explain themselves: it stands at the end of the instruction."""
    adds: Adds | None = None
    """What the call keeps that goes with every request."""
    remembers: bool = False
    """A tool that finds memories: the call is remembered when it ends."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of a phone tool: what the project set."""

    @property
    def declaration(self) -> dict[str, Any]:
        """Name, description and parameters, without what is empty."""
        declared: dict[str, Any] = {"name": self.name}
        if self.description:
            declared["description"] = self.description
        if self.parameters is not None:
            declared["parameters_json_schema"] = self.parameters
        return declared

    @property
    def for_model(self) -> ModelTool:
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters or _NO_ARGUMENTS,
        }
        return {"type": "function", "function": function}
