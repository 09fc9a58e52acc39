"""An agent whose actions are collected turn by turn, and what they tell."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import pytest

from callagent.agents import Action, Agent, CallerTurn, FunctionEnded, HandoffFailed, Say
from callagent.models.scripted import ScriptedModel

A = TypeVar("A", bound=Agent)


async def started(agent: Agent) -> list[Action]:
    """Have the agent start and return the actions that it emitted."""
    actions: list[Action] = []
    await agent.start(actions.append)
    return actions


async def replied(agent: Agent, turn: CallerTurn | HandoffFailed) -> list[Action]:
    """Have the agent reply and return the actions that it emitted."""
    actions: list[Action] = []
    await agent.reply(turn, actions.append)
    return actions


async def interrupted(agent: Agent, turn: CallerTurn, last: Callable[[Action], bool]) -> list[Action]:
    """Have the agent reply, and interrupt it as soon as it emits an action for which `last` is true.

    Return what it had emitted in the end.
    """
    actions: list[Action] = []

    def emit(action: Action) -> None:
        actions.append(action)
        if last(action):
            replying.cancel()

    async def reply() -> None:
        await agent.reply(turn, emit)

    replying = asyncio.create_task(reply())
    with pytest.raises(asyncio.CancelledError):
        await replying
    return actions


class DrivenAgent(Generic[A]):
    """An agent whose actions are collected turn by turn."""

    def __init__(self, agent: A, model: ScriptedModel) -> None:
        self.agent = agent
        self.model: Any = model

    async def start(self) -> list[Action]:
        return await started(self.agent)

    async def says(self, text: str = "", **more: Any) -> list[Action]:
        return await replied(self.agent, CallerTurn(text=text, **more))

    async def handoff_failed(self, destination: str, reason: str) -> list[Action]:
        return await replied(self.agent, HandoffFailed(destination, reason))


def words(actions: Sequence[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def results(actions: Sequence[Action]) -> dict[str, Any]:
    return {action.name: action.result for action in actions if isinstance(action, FunctionEnded)}
