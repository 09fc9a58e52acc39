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
from callagent.models.protocol import LanguageModel

T = TypeVar("T")
Emit = Callable[[Action], Awaitable[None]]
Ending = Listen | Handoff | HangUp


@dataclass(slots=True)
class Counters:
    """Of a turn, shared by the agents that are tools in it."""

    model_calls: int = 0


@dataclass(slots=True)
class Run:
    """What agents of one turn have in common; `branched()` and `nested()` make those of a part of it."""

    conversation: Conversation
    code: ProjectCode
    model: LanguageModel
    settings: TreeSettings
    emit: Emit
    invocation_id: str
    user_content: Content | None
    observe: Callable[[ModelRequest], None]
    """Told of every request to the model."""
    hold: Callable[[asyncio.Task[Any]], None]
    """Told of every task that goes on when the turn is interrupted."""
    leave: Callable[[asyncio.Task[Any]], None]
    """Told of every task that the next turn does not wait for."""
    decide: Callable[[Ending], None]
    """Told how the turn is to end."""
    run_agent: Callable[[Run, Node], Awaitable[bool]]
    """`run.run_agent`; a field because tools run agents and agents call tools."""
    branch: str = ""
    speaks: bool = True
    """False in an agent that is a tool: what it says is a result."""
    nested: bool = False
    """An agent that gives the conversation away goes on, with its callbacks, when the other one has ended."""
    counters: Counters = field(default_factory=Counters)

    def branched(self, parent: Node, child: Node) -> Run:
        name = f"{parent.name}.{child.name}"
        return replace(self, branch=f"{self.branch}.{name}" if self.branch else name, nested=True)

    def inside(self) -> Run:
        """That of the agents which an agent runs in its own turn."""
        return replace(self, nested=True)

    def invocation(self, node: Node) -> Invocation:
        return Invocation(node, self.branch, self.invocation_id, self.user_content)

    async def append(self, event: Event, *, said: bool = False) -> None:
        """Into the history, and to the caller unless it was `said` already."""
        event.branch, event.invocation_id = self.branch, self.invocation_id
        self.conversation.append(event)
        if not said and (event.content or {}).get("role") == "model":
            for text in texts(event.content):
                await self.say(text)

    async def say(self, text: str) -> None:
        if self.speaks and text.strip():
            await self.emit(Say(text.strip()))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an agent's own run ended."""

    escalated: bool = False
    transfer: Node | None = None
    """Who goes on in the same turn."""
    waits: bool = False
    """It wanted another one to go on, but a tool of the same answer has still to answer; its turn is over as it is."""


async def held(run: Run, coroutine: Coroutine[Any, Any, T]) -> T:
    """Await what must come to its end although the turn is interrupted."""
    task = asyncio.create_task(coroutine)
    run.hold(task)
    return await asyncio.shield(task)


def actions_of(*answers: CodeAnswer) -> Actions:
    actions = Actions()
    for answer in answers:
        actions.take(answer.actions)
    return actions


def raise_error(answer: CodeAnswer) -> None:
    if answer.error is not None:
        raise RunFailed(*answer.error)


def has_changes(answer: CodeAnswer) -> bool:
    return bool(answer.actions.get("state_delta") or answer.actions.get("removed"))
