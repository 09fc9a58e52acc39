"""The contract between the tree engine and a project's own code, wherever that code runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from callagent.agents.tree.events import Content, JsonObject
from callagent.agents.tree.nodes import CallbackPoint, Node, Tool

if TYPE_CHECKING:
    from callagent.agents.tree.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Invocation:
    """Where in a turn project code runs."""

    node: Node
    branch: str
    invocation_id: str
    user_content: Content | None


@dataclass(frozen=True, slots=True)
class CodeCall:
    """One tool call for project code."""

    tool: Tool
    id: str
    arguments: JsonObject


@dataclass(slots=True)
class CodeAnswer:
    """The result of project code. With `error` set, what the code did before it failed stands."""

    returned: Any = None
    subject: JsonObject = field(default_factory=dict)
    """The arguments of a callback as the code left them: a tool's arguments, a model's request."""
    actions: JsonObject = field(default_factory=dict)
    """`events.Actions` as plain data."""
    error: tuple[str, str] | None = None
    """Kind and text."""
    duration_ms: float = 0.0
    logs: Sequence[JsonObject] = ()


OnEvent = Callable[[JsonObject], Awaitable[None]]
"""Adds an event of a code agent to the history; done when the awaitable ends."""

RunChild = Callable[["ProjectCode", int], Awaitable[bool]]
"""Runs the agent with a number for a code agent, using the given project code; returns whether it escalated."""


class ProjectCode(Protocol):
    """The project code of one call.

    Its methods never raise an error of the project's code; the answer has it. When an answer comes, the conversation's
    state has the code's changes already; the caller appends the event that records them.
    """

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, subject: JsonObject) -> CodeAnswer:
        """Call the functions of a point, in order, until one returns a result.

        `subject` has the arguments that the point's functions take beside the context.
        """

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        """Carry out tool calls with the tool callbacks around them; return one answer each, in order."""

    async def withheld(self, invocation: Invocation) -> Content | None:
        """Return the content in place of an answer that the model's provider withheld as unsafe.

        None: the turn fails.
        """

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        """Make the instruction of an `LlmNode` that has none of its own."""

    async def agent(self, invocation: Invocation, on_event: OnEvent, run_child: RunChild) -> CodeAnswer:
        """Run a `CodeNode`."""

    def nested(self, conversation: Conversation) -> ProjectCode:
        """Return the same code for an agent that runs as a tool, with that agent's history and state."""

    async def close(self) -> None: ...
