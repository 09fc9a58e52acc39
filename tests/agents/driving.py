"""An agent whose actions are collected turn by turn, and what they tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from callagent.agents import Action, Agent, CallerTurn, FunctionEnded, HandoffFailed, Say
from callagent.models.scripted import ScriptedModel

A = TypeVar("A", bound=Agent)


class DrivenAgent(Generic[A]):
    def __init__(self, agent: A, model: ScriptedModel) -> None:
        self.agent = agent
        self.model: Any = model

    async def start(self) -> list[Action]:
        return [action async for action in self.agent.start()]

    async def says(self, text: str = "", **more: Any) -> list[Action]:
        return [action async for action in self.agent.reply(CallerTurn(text=text, **more))]

    async def handoff_failed(self, destination: str, reason: str) -> list[Action]:
        return [action async for action in self.agent.reply(HandoffFailed(destination, reason))]


def words(actions: Sequence[Action]) -> list[str]:
    return [action.text for action in actions if isinstance(action, Say)]


def results(actions: Sequence[Action]) -> dict[str, Any]:
    return {action.name: action.result for action in actions if isinstance(action, FunctionEnded)}
