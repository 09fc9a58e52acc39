"""What the tree asks of project code, wherever it runs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from callagent.agents.tree.events import Content
from callagent.agents.tree.nodes import CallbackPoint, Node, Tool

if TYPE_CHECKING:
    from callagent.agents.tree.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Invocation:
    """Where in a turn code runs."""

    node: Node
    branch: str
    invocation_id: str
    user_content: Content | None


@dataclass(frozen=True, slots=True)
class CodeCall:
    """One tool call for project code."""

    tool: Tool
    id: str
    arguments: Mapping[str, Any]


@dataclass(slots=True)
class CodeAnswer:
    """What came back. With `error` set, what was done before it stands."""

    returned: Any = None
    subject: Mapping[str, Any] = field(default_factory=dict)
    """What the code was given, as it left it: arguments of a tool, a model's request."""
    actions: Mapping[str, Any] = field(default_factory=dict)
    error: tuple[str, str] | None = None
    """Kind and text."""
    duration_ms: float = 0.0
    logs: Sequence[Mapping[str, Any]] = ()


OnEvent = Callable[[Mapping[str, Any]], Awaitable[None]]
"""Takes an event of a code agent; it is in the history when the awaitable ends."""

RunChild = Callable[["ProjectCode", int], Awaitable[bool]]
"""Runs the agent of that number for a code agent, with the code it may use meanwhile; whether it escalated."""


class ProjectCode(Protocol):
    """One call's project code. It never raises for what the code does.

    The conversation's state has changed when an answer comes; whoever asked appends an event that tells so.
    """

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, subject: Mapping[str, Any]) -> CodeAnswer:
        """The functions at a point, in order, until one has a result.

        `subject` has the arguments that the point's functions take beside the context.
        """

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        """Tool calls with the tool callbacks around them; one answer each, in order."""

    async def withheld(self, invocation: Invocation) -> Content | None:
        """What is said and called in the place of an answer that the model's provider withheld as not safe.

        None: the turn fails.
        """

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        """The instruction of an `LlmNode` that has none of its own."""

    async def agent(self, invocation: Invocation, on_event: OnEvent, run_child: RunChild) -> CodeAnswer:
        """A run of a `CodeNode`."""

    def nested(self, conversation: Conversation) -> ProjectCode:
        """The same code for an agent that is a tool, with that agent's events and state."""

    async def close(self) -> None: ...
