from __future__ import annotations

import asyncio
from typing import Any

import pytest

from callagent.agents.tree import (
    CallbackPoint,
    CodeAnswer,
    CodeNode,
    LoopNode,
    ParallelNode,
    SequentialNode,
    Tool,
    ToolKind,
    TreeSettings,
)
from tests.agents.driving import words
from tests.agents.tree.support import Functions, code_tool, driven, llm

EXIT = Tool("exit_loop", ToolKind.EXIT_LOOP)
LEAVE = {"calls": [{"name": "exit_loop"}]}


def said(text: str) -> dict[str, Any]:
    return {"role": "model", "parts": [{"text": text}]}


async def test_sequential_children_run_in_order_and_share_the_state() -> None:
    root = SequentialNode(
        name="root", children=(llm("one", output_key="x"), llm("two", instruction="x is {x}", output_key="y"))
    )
    async with driven(root, {"text": "1"}, {"text": "2"}) as tree:
        assert words(await tree.says("go")) == ["1", "2"]
        assert tree.model.system().startswith("x is 1")
        assert tree.agent.record().state == {"x": "1", "y": "2"}


@pytest.mark.parametrize(("limit", "expected"), [(0, []), (-1, []), (2, ["a", "a"]), (None, ["a", "a", "a"])])
async def test_a_loop_runs_its_children_until_its_limit_or_an_escalation(
    limit: int | None, expected: list[str]
) -> None:
    root = LoopNode(name="loop", children=(llm("child", tools=(EXIT,)),), max_iterations=limit)
    async with driven(root, *[{"text": "a"}] * 3, LEAVE) as tree:
        actions = await tree.says("go")
        assert [text for text in words(actions) if text == "a"] == expected


async def test_an_escalation_skips_the_rest_of_the_round() -> None:
    root = LoopNode(name="loop", children=(llm("first", tools=(EXIT,)), llm("second")))
    async with driven(root, {"text": "a"}, {"text": "b"}, LEAVE) as tree:
        assert words(await tree.says("go")) == ["a", "b"]


async def test_a_loop_of_code_that_nobody_ends_is_ended() -> None:
    root = LoopNode(name="loop", children=(CodeNode(name="idle"),))
    code = Functions(agents={"idle": []})
    async with driven(root, code=code, settings=TreeSettings(max_iterations=5)) as tree:
        assert words(await tree.says("go")) == [TreeSettings().fallback_utterance]
        remedy = "let one of its agents escalate, or set max_iterations"
        assert str(tree.agent.failure) == f"RuntimeError: the loop 'loop' did not end within 5 rounds; {remedy}"


async def test_parallel_children_do_not_see_each_other_and_know_what_was_before() -> None:
    both = ParallelNode(name="both", children=(llm("a", output_key="a"), llm("b", output_key="b")))
    root = SequentialNode(name="root", children=(llm("first"), both, llm("last")))
    entries = [{"text": text} for text in ("before", "A", "B", "after")]
    async with driven(root, *entries) as tree:
        await tree.says("go")
        assert [event.branch for event in tree.agent.conversation.events] == ["", "", "both.a", "both.b", ""]
        asked = [str(tree.model.messages(number)) for number in range(4)]
        assert ["before" in each for each in asked] == [False, True, True, True]
        assert "'A'" not in asked[2]
        assert all(f"\\n{text}\\n" in asked[3] for text in "AB")
        assert tree.agent.record().state == {"a": "A", "b": "B"}


async def test_an_error_in_a_parallel_child_ends_the_others() -> None:
    ended = []

    async def slow(arguments: dict[str, Any]) -> None:
        await asyncio.sleep(0.01)
        ended.append("slow")

    root = ParallelNode(name="both", children=(llm("a", tools=(code_tool("slow"),)), llm("b", instruction="{missing}")))
    code = Functions(named={"slow": slow})
    async with driven(root, {"calls": [{"name": "slow"}]}, code=code) as tree:
        assert words(await tree.says("go")) == [TreeSettings().fallback_utterance]
        assert tree.agent.failure is not None
        assert tree.agent.failure.kind == "KeyError"


async def test_a_child_that_escalates_ends_its_parallel_siblings() -> None:
    code = Functions(agents={"quick": [{"content": said("stop"), "actions": {"escalate": True}}]})
    root = LoopNode(name="loop", children=(ParallelNode(name="both", children=(CodeNode(name="quick"),)), llm("never")))
    async with driven(root, code=code) as tree:
        assert words(await tree.says("go")) == ["stop"]


async def test_a_before_agent_result_takes_the_place_of_the_agent() -> None:
    root = llm("root", callbacks={CallbackPoint.BEFORE_AGENT: 1, CallbackPoint.AFTER_AGENT: 1})
    code = Functions(at={("root", CallbackPoint.BEFORE_AGENT): lambda invocation, payload: CodeAnswer(said("closed"))})
    async with driven(root, code=code) as tree:
        assert words(await tree.says("go")) == ["closed"]
        assert code.seen == ["root.before_agent"]


async def test_callbacks_run_at_their_six_points_and_a_change_without_words_is_an_event() -> None:
    def change(invocation: Any, payload: Any) -> CodeAnswer:
        return CodeAnswer(payload=payload, actions={"state_delta": {"changed": True, "temp:t": 1}})

    async def tool(arguments: dict[str, Any]) -> str:
        return "done"

    points = {point: 1 for point in CallbackPoint if "tool" not in point.value}
    root = llm("root", tools=(code_tool("tool"),), callbacks=points)
    code = Functions(at={("root", point): change for point in CallbackPoint}, named={"tool": tool})
    async with driven(root, {"calls": [{"name": "tool"}]}, {"text": "bye"}, code=code) as tree:
        assert words(await tree.says("go")) == ["bye"]
        assert code.seen == [
            "root.before_agent",
            *("root.before_model", "root.after_model", "tool"),
            *("root.before_model", "root.after_model", "root.after_agent"),
        ]
        deltas = [event.actions.state_delta for event in tree.agent.conversation.events]
        assert deltas[1] == {"changed": True}
        assert tree.agent.record().state == {"changed": True}


async def test_the_model_is_not_asked_when_a_callback_answers_and_its_calls_are_carried_out() -> None:
    answers = [CodeAnswer({"parts": [{"function_call": {"name": "tool", "args": {"n": 1}}}]}), CodeAnswer(said("ok"))]

    async def tool(arguments: dict[str, Any]) -> Any:
        return arguments["n"] + 1

    root = llm("root", tools=(code_tool("tool"),), callbacks={CallbackPoint.BEFORE_MODEL: 1})
    code = Functions(
        at={("root", CallbackPoint.BEFORE_MODEL): lambda invocation, payload: answers.pop(0)}, named={"tool": tool}
    )
    async with driven(root, code=code) as tree:
        assert words(await tree.says("go")) == ["ok"]
        responses = tree.agent.conversation.events[2].content
        assert responses is not None
        assert responses["parts"][0]["function_response"]["response"] == {"result": 2}


async def test_partial_words_of_a_callback_are_said_before_the_models() -> None:
    root = llm("root", callbacks={CallbackPoint.BEFORE_MODEL: 1})
    code = Functions(
        at={
            ("root", CallbackPoint.BEFORE_MODEL): lambda invocation, payload: CodeAnswer(
                {**said("One moment."), "partial": True}
            )
        }
    )
    async with driven(root, {"text": "Here."}, code=code) as tree:
        assert words(await tree.says("go")) == ["One moment.", "Here."]


async def test_a_callback_that_answers_for_ever_is_stopped() -> None:
    called = {"parts": [{"function_call": {"name": "unknown", "args": {}}}]}
    root = llm("root", callbacks={CallbackPoint.BEFORE_MODEL: 1})
    code = Functions(at={("root", CallbackPoint.BEFORE_MODEL): lambda invocation, payload: CodeAnswer(called)})
    async with driven(root, code=code, settings=TreeSettings(max_model_calls=10)) as tree:
        await tree.says("go")
        assert tree.agent.failure is not None
        assert tree.agent.failure.kind == "LlmCallsLimitExceededError"


@pytest.mark.parametrize(("parallel", "seen"), [(True, ["a+b"]), (False, ["a", "b"])])
async def test_tools_of_one_answer_run_together_or_one_after_the_other(parallel: bool, seen: list[str]) -> None:
    async def tool(arguments: dict[str, Any]) -> str:
        return "x"

    root = llm("root", tools=(code_tool("a"), code_tool("b")))
    code = Functions(named={"a": tool, "b": tool})
    entries = ({"calls": [{"name": "a"}, {"name": "b"}]}, {"text": "bye"})
    async with driven(root, *entries, code=code, settings=TreeSettings(parallel_tools=parallel)) as tree:
        await tree.says("go")
        assert code.seen == seen


async def test_an_agent_that_may_not_be_left_upwards_gives_the_next_turn_back() -> None:
    child = llm("child", can_transfer_to_parent=False)
    root = llm("root", child)
    transfer = {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "child"}}]}
    async with driven(root, transfer, {"text": "child here"}, {"text": "root here"}) as tree:
        await tree.says("go")
        await tree.says("again")
        assert tree.events[-1] == ("root", "root here")


async def test_an_instruction_made_by_code_is_not_a_template() -> None:
    async with driven(llm("root", instruction=None), {"text": "x"}) as tree:
        await tree.says("go")
        assert tree.model.system().startswith("I am root.")


async def test_a_model_that_says_nothing_leaves_no_silence() -> None:
    async with driven(llm("root"), {"text": ""}) as tree:
        assert words(await tree.says("go")) == [TreeSettings().fallback_utterance]


PASS_ON = {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "other"}}]}
NOTED = {CallbackPoint.AFTER_AGENT: 1}


def noting() -> Functions:
    return Functions(
        at={(name, CallbackPoint.AFTER_AGENT): lambda invocation, payload: CodeAnswer() for name in ("root", "other")}
    )


async def test_an_agent_that_gave_the_conversation_away_is_done() -> None:
    code = noting()
    async with driven(
        llm("root", llm("other", callbacks=NOTED), callbacks=NOTED), PASS_ON, {"text": "hi"}, code=code
    ) as t:
        assert words(await t.says("go")) == ["hi"]
        assert code.seen == ["other.after_agent"]


async def test_in_a_row_it_goes_on_when_the_other_has_ended() -> None:
    code = noting()
    row = SequentialNode(name="row", children=(llm("root", llm("other", callbacks=NOTED), callbacks=NOTED),))
    async with driven(row, PASS_ON, {"text": "hi"}, code=code) as tree:
        assert words(await tree.says("go")) == ["hi"]
        assert code.seen == ["other.after_agent", "root.after_agent"]


@pytest.mark.parametrize(
    ("name", "kind", "text"),
    [
        ("nobody", "ValueError", "Transfer target agent 'nobody' not found."),
        ("mid", "WorkflowDataError", "Agent 'mid' cannot transfer to itself."),
        (
            "root",
            "WorkflowDataError",
            "Cannot transfer from 'mid' to parent agent 'root': disallow_transfer_to_parent is set.",
        ),
        (
            "peer",
            "WorkflowDataError",
            "Cannot transfer from 'mid' to peer agent 'peer': disallow_transfer_to_peers is set.",
        ),
        ("low", "ValueError", "Cannot transfer from 'mid' to unrelated agent 'low'."),
    ],
)
async def test_a_transfer_that_may_not_be_fails_the_turn_and_says_why(name: str, kind: str, text: str) -> None:
    closed = {"can_transfer_to_parent": False, "can_transfer_to_peers": False}
    root = llm("root", llm("mid", llm("child"), **closed), llm("peer", llm("low")))
    transfers = [
        {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": each}}]} for each in ("mid", name)
    ]
    async with driven(root, *transfers) as tree:
        assert words(await tree.says("go")) == [TreeSettings().fallback_utterance]
        failure = tree.agent.failure
        assert failure is not None
        assert failure.agent == root.children[0].name
        assert (failure.kind, failure.text.split("\n")[0]) == (kind, text)
