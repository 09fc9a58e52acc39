from __future__ import annotations

from pathlib import Path

import pytest

from callagent.agents.flows.engine.decision import Position, Transition, resolve_transition
from callagent.agents.flows.format.project import Flow, Project
from callagent.agents.flows.format.steps_and_topics import Step
from tests.agents.flows.support import driven, flow_config, function, functions, step, steps, words, write_project


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
    result = resolve_transition(PROJECT, here, transition)
    assert (result.position, result.moved, result.problem) == (there, True, None)


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
    result = resolve_transition(PROJECT, here, transition)
    assert (result.position, result.moved) == (here, False)
    assert problem in (result.problem or "")


def test_no_transition_is_no_move():
    assert not resolve_transition(PROJECT, Position("A", "one"), Transition()).moved


async def test_the_survey_is_the_projects_flow_of_that_name(tmp_path: Path):
    files = {
        "agent_settings/rules.txt": "{{fn:ask}}",
        "functions/ask.py": function("ask", 'conv.goto_csat_flow()\nreturn {"utterance": "One question."}'),
        "flows/csat/flow_config.yaml": flow_config("CSAT", "Ask"),
        "flows/csat/steps/ask.yaml": step("Ask", "Ask how it was."),
    }
    async with driven(write_project(tmp_path, files), {"calls": [{"name": "ask"}]}) as agent:
        await agent.start()
        assert steps(await agent.says("bye")) == [("CSAT", "Ask")]


async def test_without_a_survey_flow_the_call_stays_where_it_is(tmp_path: Path):
    files = {
        "agent_settings/rules.txt": "{{fn:ask}}",
        "functions/ask.py": function("ask", 'conv.goto_csat_flow()\nreturn {"utterance": "One question."}'),
    }
    async with driven(write_project(tmp_path, files), {"calls": [{"name": "ask"}]}) as agent:
        await agent.start()
        actions = await agent.says("bye")
    assert steps(actions) == []
    assert words(actions) == ["One question."]


async def test_a_function_step_that_is_entered_with_an_utterance_runs_in_the_same_turn(tmp_path: Path):
    files = {
        "agent_settings/rules.txt": "{{fn:go}}",
        "functions/go.py": function("go", 'conv.goto_flow("F")\nreturn {"utterance": "One moment."}'),
        "flows/f/flow_config.yaml": flow_config("F", "look_up"),
        "flows/f/function_steps/look_up.py": function(
            "look_up", 'flow.goto_step("Tell")\nreturn "Nine."', flow=True, decorators="\n"
        ),
        "flows/f/steps/tell.yaml": step("Tell", "Say what was found."),
    }
    script = ({"calls": [{"name": "go"}]}, {"text": "It is nine."})
    async with driven(write_project(tmp_path, files), *script) as agent:
        await agent.start()
        actions = await agent.says("when")
        assert words(actions) == ["One moment."]
        assert functions(actions) == ["go", "look_up"]
        assert steps(actions) == [("F", "look_up"), ("F", "Tell")]
        assert words(await agent.says("and")) == ["It is nine."]
        assert "Nine." in agent.model.system()
