"""Where the call is in its flows, and how a transition moves it."""

from __future__ import annotations

from dataclasses import dataclass

from callagent.agents.flows.project import Project
from callagent.agents.flows.returns import Transition


@dataclass(frozen=True, slots=True)
class Position:
    """Display names; both None outside flows."""

    flow: str | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Move:
    position: Position
    entered: bool
    """A step was entered (perhaps the same again) or the flow was left."""
    problem: str | None = None


def move(project: Project, here: Position, transition: Transition) -> Move:
    """Follow a transition; an unknown flow or step leaves the call where it is, with a `problem`."""
    if transition.goto_flow:
        return _enter_flow(project, here, transition)
    if transition.goto_step:
        return _enter_step(project, here, transition.goto_step)
    if not transition.exit_flow:
        return Move(here, False)
    if here.flow is None:
        return Move(here, False, "exit_flow was called outside of a flow.")
    return Move(Position(), True)


def _enter_flow(project: Project, here: Position, transition: Transition) -> Move:
    flow = project.flows.get(transition.goto_flow or "")
    if flow is None:
        return Move(here, False, f"There is no flow '{transition.goto_flow}'.")
    step = transition.goto_step or flow.start_step
    if not flow.has_step(step):
        return Move(here, False, f"There is no step '{step}' in flow '{flow.name}'.")
    return Move(Position(flow.name, step), True)


def _enter_step(project: Project, here: Position, step: str) -> Move:
    if here.flow is None:
        return Move(here, False, f"goto_step('{step}') was called outside of a flow.")
    if not project.flows[here.flow].has_step(step):
        return Move(here, False, f"There is no step '{step}' in flow '{here.flow}'.")
    return Move(Position(here.flow, step), True)
