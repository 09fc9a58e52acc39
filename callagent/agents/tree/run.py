"""One turn of a tree: which agent runs when, and what its callbacks make of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from callagent.agents.actions import Action, Handoff, HangUp, Listen, Say
from callagent.agents.tree.content import Content, texts
from callagent.agents.tree.conversation import Conversation
from callagent.agents.tree.event import Actions, Event
from callagent.agents.tree.failure import RunFailed
from callagent.agents.tree.node import CodeNode, LlmNode, LoopNode, Node, ParallelNode, Point
from callagent.agents.tree.project_code import CodeAnswer, ProjectCode, Scene
from callagent.agents.tree.request import ModelRequest
from callagent.agents.tree.settings import TreeSettings
from callagent.agents.tree.transfer import line_after
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
    invocation: str
    user_content: Content | None
    observe: Callable[[ModelRequest], None]
    """Told of every request to the model."""
    hold: Callable[[asyncio.Task[Any]], None]
    """Told of every task that goes on when the turn is interrupted."""
    leave: Callable[[asyncio.Task[Any]], None]
    """Told of every task that the next turn does not wait for."""
    decide: Callable[[Ending], None]
    """Told how the turn is to end."""
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

    def scene(self, node: Node) -> Scene:
        return Scene(node, self.branch, self.invocation, self.user_content)

    async def append(self, event: Event, *, said: bool = False) -> None:
        """Into the history, and to the caller unless it was `said` already."""
        event.branch, event.invocation = self.branch, self.invocation
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


async def run_agent(run: Run, node: Node) -> bool:
    """Run an agent with its callbacks, and those it gives the conversation to; whether one escalated.

    Raises `RunFailed`.
    """
    # In a row, not one inside the other: agents may pass the conversation on more often than calls may be nested.
    finished: list[Node] = []
    outcome = Outcome()
    line, begun = [node], len(run.conversation.events)
    try:
        while not await _agent_callbacks(run, node, Point.BEFORE_AGENT):
            outcome = await _run_kind(run, node)
            finished = [*finished, node] if run.nested else [node]
            if outcome.transfer is None:
                break
            node = outcome.transfer
            line, begun = line_after(line, node), len(run.conversation.events)
        if (outcome.transfer is not None or outcome.waits) and not run.nested:
            finished = []
        for node in reversed(finished):
            await _agent_callbacks(run, node, Point.AFTER_AGENT)
    except RunFailed as failure:
        failure.agent, failure.author = node, _teller(run, line, begun)
        raise
    return outcome.escalated


def _teller(run: Run, line: list[Node], begun: int) -> str:
    """Whose event a failure is: of the agent that had an event since `begun`, else of the one that the failed one is
    below, as far as it gave the conversation away in this turn."""
    events = run.conversation.events[begun:]
    return events[-1].author if events else line[-2:][0].name


async def _run_kind(run: Run, node: Node) -> Outcome:
    match node:
        case LlmNode():
            # Here: an agent that is a tool of an agent runs through both modules.
            from callagent.agents.tree.model_turn import run_llm

            return await run_llm(run, node)
        case LoopNode():
            return Outcome(await _run_loop(run, node))
        case ParallelNode():
            return Outcome(await _run_parallel(run, node))
        case CodeNode():
            return Outcome(await _run_code(run, node))
    escalated = False
    for child in node.children:
        escalated = await run_agent(run.inside(), child) or escalated
    return Outcome(escalated)


async def _run_loop(run: Run, node: LoopNode) -> bool:
    limit = run.settings.max_iterations if node.max_iterations is None else node.max_iterations
    for _ in range(limit if node.children else 0):
        for child in node.children:
            if await run_agent(run.inside(), child):
                return True
    if node.max_iterations is None and node.children:
        raise RunFailed("RuntimeError", f"the loop '{node.name}' did not end within {limit} rounds")
    return False


async def _run_parallel(run: Run, node: ParallelNode) -> bool:
    """The first error or escalation of a child ends the others."""
    tasks = [asyncio.create_task(run_agent(run.branched(node, child), child)) for child in node.children]
    waiting = set(tasks)
    try:
        while waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            escalated = [task.result() for task in done]
            if any(escalated):
                return True
        return False
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _run_code(run: Run, node: CodeNode) -> bool:
    escalated = False

    async def on_event(plain: Mapping[str, Any]) -> None:
        nonlocal escalated
        actions = Actions()
        actions.take(plain.get("actions") or {})
        escalated = escalated or actions.escalate
        await run.append(Event(str(plain.get("author") or node.name), plain.get("content"), actions))

    async def run_child(code: ProjectCode, number: int) -> bool:
        child = next((each for each in node.walk() if each.code == number and each is not node), None)
        if child is None:
            raise RunFailed("ValueError", f"agent '{node.name}' may only run agents below it")
        return await run_agent(replace(run.inside(), code=code), child)

    async def whole() -> CodeAnswer:
        answer = await run.code.agent(run.scene(node), on_event, run_child)
        if has_changes(answer):
            await run.append(Event(node.name, None, actions_of(answer)))
        return answer

    raise_error(await held(run, whole()))
    return escalated


async def _agent_callbacks(run: Run, node: Node, point: Point) -> bool:
    """Whether one of them had content; it is in the history then."""
    return bool(node.callbacks.get(point)) and await held(run, _call_agent_callbacks(run, node, point))


async def _call_agent_callbacks(run: Run, node: Node, point: Point) -> bool:
    answer = await run.code.callbacks(run.scene(node), point, {})
    if answer.returned or has_changes(answer):
        await run.append(Event(node.name, answer.returned or None, actions_of(answer)))
    raise_error(answer)
    return bool(answer.returned)


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
