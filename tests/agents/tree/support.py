"""Trees whose project code is plain functions in the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from callagent.agents import Action, CallerTurn
from callagent.agents.tree import (
    CallbackPoint,
    CodeAnswer,
    CodeCall,
    Conversation,
    Invocation,
    LlmNode,
    Node,
    SharedState,
    State,
    Tool,
    ToolKind,
    TreeAgent,
    TreeSettings,
)
from callagent.models.scripted import ScriptedModel
from tests.agents.driving import replied
from tests.agents.flows.support import scripted

Function = Callable[[dict[str, Any]], Awaitable[Any]]


@dataclass
class Functions:
    """Project code: callbacks and tools by name, all of them recorded."""

    at: dict[tuple[str, CallbackPoint], Callable[[Invocation, Mapping[str, Any]], CodeAnswer]] = field(
        default_factory=dict
    )
    named: dict[str, Function] = field(default_factory=dict)
    agents: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    seen: list[str] = field(default_factory=list)
    conversation: Conversation | None = None

    async def callbacks(self, invocation: Invocation, point: CallbackPoint, payload: Mapping[str, Any]) -> CodeAnswer:
        self.seen.append(f"{invocation.node.name}.{point.value}")
        answer = self.at[invocation.node.name, point](invocation, payload)
        return self._done(answer)

    async def tools(self, invocation: Invocation, calls: Sequence[CodeCall], *, parallel: bool) -> list[CodeAnswer]:
        self.seen.append(("+" if parallel else ",").join(call.tool.name for call in calls))
        return [self._done(CodeAnswer(await self.named[call.tool.name](dict(call.arguments)))) for call in calls]

    async def instruction(self, invocation: Invocation) -> CodeAnswer:
        return CodeAnswer(f"I am {invocation.node.name}.")

    async def agent(self, invocation: Invocation, on_event: Any, run_child: Any) -> CodeAnswer:
        for event in self.agents[invocation.node.name]:
            await on_event(event)
        return CodeAnswer()

    def nested(self, conversation: Conversation) -> Functions:
        return Functions(self.at, self.named, self.agents, self.seen, conversation)

    async def close(self) -> None:
        self.seen.append("closed")

    def _done(self, answer: CodeAnswer) -> CodeAnswer:
        if self.conversation is not None:
            self.conversation.state.apply_worker_changes(answer.actions.get("state_delta") or {})
        return answer


def llm(name: str, *children: Node, **more: Any) -> LlmNode:
    return LlmNode(name=name, instruction=more.pop("instruction", f"You are {name}."), children=children, **more)


def code_tool(name: str, **more: Any) -> Tool:
    return Tool(name, ToolKind.CODE, f"Does {name}.", **more)


class Driven:
    def __init__(self, agent: TreeAgent, model: Any, code: Functions) -> None:
        self.agent = agent
        self.model = model
        self.code = code

    @property
    def events(self) -> list[tuple[str, str]]:
        """Author and text of all that was said."""
        return [
            (event.author, part["text"])
            for event in self.agent.conversation.events
            for part in (event.content or {}).get("parts", ())
            if part.get("text")
        ]

    async def says(self, text: str) -> list[Action]:
        return await replied(self.agent, CallerTurn(text=text))


@asynccontextmanager
async def driven(
    root: Node,
    *entries: Mapping[str, Any],
    code: Functions | None = None,
    settings: TreeSettings | None = None,
    model: ScriptedModel | None = None,
) -> AsyncIterator[Driven]:
    code = code or Functions()
    shared = SharedState()
    conversation = Conversation(root, State(), shared, "caller")
    code.conversation = conversation
    used = model or scripted(*entries)
    agent = TreeAgent("tree", conversation, code, used, settings or TreeSettings())
    try:
        yield Driven(agent, used, code)
    finally:
        await agent.close()
