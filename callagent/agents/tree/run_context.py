"""What the agents of one turn share: the conversation, the model, project code and the way out to the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from callagent.agents.actions import Action, Handoff, HangUp, Listen, Say
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.events import Actions, Content, Event, RunFailed, texts
from callagent.agents.tree.nodes import Node
from callagent.agents.tree.project_code import CodeAnswer, Invocation, ProjectCode
from callagent.agents.tree.request import ModelRequest
from callagent.agents.tree.settings import TreeSettings
from callagent.models import LanguageModel

T = TypeVar("T")
Emit = Callable[[Action], Awaitable[None]]
Ending = Listen | Handoff | HangUp


@dataclass(slots=True)
class Counters:
    """Counts of one turn, shared by the agents that run as tools in it."""

    model_calls: int = 0


@dataclass(slots=True)
class Run:
    """What the agents of one turn share. `branched()` and `inside()` derive the run of a part of the turn."""

    conversation: Conversation
    code: ProjectCode
    model: LanguageModel
    settings: TreeSettings
    emit: Emit
    invocation_id: str
    user_content: Content | None
    observe: Callable[[ModelRequest], None]
    """Called with every request to the model."""
    finish_first: Callable[[asyncio.Task[Any]], None]
    """Registers a task that goes on when the turn is interrupted; the next turn waits for it."""
    run_beside: Callable[[asyncio.Task[Any]], None]
    """Registers a task that goes on beside the next turns, until the call ends."""
    decide: Callable[[Ending], None]
    """Called with how the turn is to end."""
    run_agent: Callable[[Run, Node], Awaitable[bool]]
    """`run.run_agent`; a field because tools run agents and agents call tools."""
    branch: str = ""
    speaks: bool = True
    """False in an agent that runs as a tool: its words are the tool's result and not spoken."""
    nested: bool = False
    """An agent that transfers to another one waits for the other's end and then runs its after-agent callbacks.

    Not nested, as at the top of a tree, a transfer ends the transferring agent for good.
    """
    counters: Counters = field(default_factory=Counters)

    def branched(self, parent: Node, child: Node) -> Run:
        """Return the run of a child of a parallel agent, whose events its siblings do not see."""
        name = f"{parent.name}.{child.name}"
        return replace(self, branch=f"{self.branch}.{name}" if self.branch else name, nested=True)

    def inside(self) -> Run:
        """Return the run of the children of an agent."""
        return replace(self, nested=True)

    def invocation(self, node: Node) -> Invocation:
        """Return where in the turn project code of this agent runs."""
        return Invocation(node, self.branch, self.invocation_id, self.user_content)

    async def append(self, event: Event, *, said: bool = False) -> None:
        """Add an event to the history and speak its text, unless the caller has heard it already (`said`)."""
        event.branch, event.invocation_id = self.branch, self.invocation_id
        self.conversation.append(event)
        if not said and (event.content or {}).get("role") == "model":
            for text in texts(event.content):
                await self.say(text)

    async def say(self, text: str) -> None:
        """Speak a text; in an agent that runs as a tool, do nothing."""
        if self.speaks and text.strip():
            await self.emit(Say(text.strip()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an agent's own run ended."""

    escalated: bool = False
    transfer: Node | None = None
    """The agent that goes on in the same turn."""
    waits: bool = False
    """The agent transferred, but a long-running tool of the same answer has no result yet.

    The turn ends here; the next one begins at the agent that it transferred to.
    """


async def finish_despite_interruption(run: Run, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine that must run to its end even when the turn is interrupted.

    An interruption cancels the turn's task. Project code has begun to change the state by then, and the worker's
    answer must be applied to it: so the coroutine runs in a task of its own, which the next turn waits for.
    """
    task = asyncio.create_task(coroutine)
    run.finish_first(task)
    return await asyncio.shield(task)


def merged_actions(*answers: CodeAnswer) -> Actions:
    actions = Actions()
    for answer in answers:
        actions.take(answer.actions)
    return actions


def raise_error(answer: CodeAnswer) -> None:
    """Raise `RunFailed` when project code has failed."""
    if answer.error is not None:
        raise RunFailed(*answer.error)


def has_changes(answer: CodeAnswer) -> bool:
    """Return whether project code has changed the state."""
    return bool(answer.actions.get("state_delta") or answer.actions.get("removed"))
