from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.flows.flow import Flow
from callagent.agents.flows.project import Project
from callagent.agents.flows.returns import Transition
from callagent.agents.flows.steps import Step
from callagent.agents.flows.transitions import Position, move


def flow(name: str, *names: str) -> Flow:
    return Flow(name, name.lower(), "", names[0], {n: Step(n, "", False, "") for n in names})


PROJECT = Project(Path("."), "p", flows={"A": flow("A", "one", "two"), "B": flow("B", "three", "four")})


@pytest.mark.parametrize(
    ("here", "transition", "there"),
    [
        (Position(), Transition(goto_flow="A"), Position("A", "one")),
        (Position(), Transition("A", "two"), Position("A", "two")),
        (Position("A", "two"), Transition(goto_flow="B"), Position("B", "three")),
        (Position("A", "two"), Transition(goto_flow="A"), Position("A", "one")),
        (Position("A", "one"), Transition(goto_step="two"), Position("A", "two")),
        (Position("A", "one"), Transition(goto_step="one"), Position("A", "one")),
        (Position("A", "one"), Transition(exit_flow=True), Position()),
        (Position("A", "one"), Transition("B", "four", True), Position("B", "four")),
    ],
)
def test_a_transition_enters(here: Position, transition: Transition, there: Position):
    result = move(PROJECT, here, transition)
    assert (result.position, result.entered, result.problem) == (there, True, None)


@pytest.mark.parametrize(
    ("here", "transition", "problem"),
    [
        (Position(), Transition(goto_flow="Z"), "no flow 'Z'"),
        (Position("A", "one"), Transition("B", "one"), "no step 'one' in flow 'B'"),
        (Position("A", "one"), Transition(goto_step="Two"), "no step 'Two' in flow 'A'"),
        (Position(), Transition(goto_step="one"), "outside of a flow"),
        (Position(), Transition(exit_flow=True), "outside of a flow"),
    ],
)
def test_a_transition_to_nowhere_leaves_the_call_where_it_is(here: Position, transition: Transition, problem: str):
    result = move(PROJECT, here, transition)
    assert (result.position, result.entered) == (here, False)
    assert problem in (result.problem or "")


def test_no_transition_is_no_move():
    assert not move(PROJECT, Position("A", "one"), Transition()).entered
