"""The caller interrupts: what is cut, what goes on, what is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import CallerTurn, FunctionEnded, FunctionStarted, Handoff, HangUp
from callagent.agents.flows import FlowSettings, load_flow_project, project_runtime
from callagent.call_info import EndReason
from callagent.testing.in_process import InProcessPool
from callagent.testing.virtual_time import run
from tests.agents.driving import interrupted, replied, started
from tests.agents.flows.support import (
    FERRY,
    call_info,
    driven,
    function,
    functions,
    metrics,
    of,
    scripted,
    words,
    write_project,
)

HANDOFFS = """\
handoffs:
- name: desk
  description: The desk.
  is_default: true
  sip_config: {method: refer, phone_number: '+15550001111'}
"""


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose functions take two seconds, or for ever."""
    body = "import time\ntime.sleep({})\n{}"
    return write_project(
        tmp_path_factory.mktemp("slow"),
        {
            "agent_settings/rules.txt": "{{fn:slow}} {{fn:slow_handoff}} {{fn:endless}}",
            "functions/slow.py": function("slow", body.format(2, "conv.state.done = True\nreturn 'ok'")),
            "functions/slow_handoff.py": function("slow_handoff", body.format(2, "return {'hangup': True}")),
            "functions/endless.py": function("endless", body.format(100, "return 'late'")),
        },
    )


def test_a_barge_in_lets_the_function_finish_and_keeps_its_effects():
    async def main() -> None:
        script = (
            {"calls": [call("booking_wanted")]},
            {"calls": [call("save_entities", party=2, travel_day="2026-09-01"), call("condition_all_given")]},
            {"text": "Right?"},
            {"calls": [call("confirmed")]},
            {"text": "It is booked already."},
        )
        async with driven(FERRY, *script) as ferry:
            await ferry.start()
            await ferry.says("book")
            await interrupted(ferry.agent, CallerTurn("yes"), lambda action: isinstance(action, FunctionStarted))
            ferry.agent.heard("", cut=True)
            actions = await ferry.says("wait")
            assert functions(actions) == ["confirmed"]
            assert words(actions) == ["It is booked already."]
            assert ferry.agent.record().state["booked"] is True
            assert ferry.agent.record().flow is None

    run(main())


def test_a_reply_cancelled_while_a_function_runs_does_not_cancel_the_function(slow: Path):
    async def main() -> None:
        script = ({"calls": [call("slow")]}, {"text": "Done."})
        async with driven(slow, *script) as agent:
            await agent.start()
            task = asyncio.create_task(agent.says("go"))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert functions(await agent.says("and?")) == ["slow"]
            assert agent.agent.record().state["done"] is True

    run(main())


def test_words_said_while_an_interrupted_function_still_runs_are_all_kept(slow: Path):
    async def main() -> None:
        script = ({"calls": [call("slow")]}, {"text": "Done."})
        async with driven(slow, *script) as agent:
            await agent.start()
            for text in ("go", "wait", "hello?"):
                task = asyncio.create_task(agent.says(text))
                await asyncio.sleep(0.5)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            actions = await agent.says("are you there")
            assert functions(actions) == ["slow"]
            heard = [m["content"] for m in agent.model.messages() if m["role"] == "user"]
            assert heard == ["go", "wait", "hello?", "are you there"]

    run(main())


def test_the_end_waits_for_a_function_that_still_runs(slow: Path):
    async def main() -> None:
        async with driven(slow, {"calls": [call("slow")]}) as agent:
            await agent.start()
            task = asyncio.create_task(agent.says("go"))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await agent.agent.end(EndReason.CALLER_HANGUP, 1)
            assert agent.agent.record().state["done"] is True
            await agent.agent.close()
            await agent.agent.close()

    run(main())


def test_a_handoff_decided_in_an_interrupted_turn_happens_at_the_next(slow: Path):
    async def main() -> None:
        async with driven(slow, {"calls": [call("slow_handoff")]}) as agent:
            await agent.start()
            task = asyncio.create_task(agent.says("go"))
            await asyncio.sleep(0.5)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            actions = await agent.says("and?")
            assert isinstance(actions[-1], HangUp)

    run(main())


@pytest.mark.parametrize("slow_metric", ["HANDOFF_TO", "HANDOFF_REASON"])
async def test_a_handoff_that_is_interrupted_while_its_metrics_are_written_happens_at_the_next_turn(
    tmp_path: Path, slow_metric: str
):
    body = "return {'utterance': 'One moment.', 'handoff': {'type': 'desk', 'reason': 'lost bag'}}"
    files = {
        "agent_settings/rules.txt": "{{fn:hand_over}}",
        "agent_settings/experimental_config.json": '{"handoff_api": {"state_keys": ["bag"]}}',
        "config/handoffs.yaml": HANDOFFS,
        "functions/hand_over.py": function("hand_over", body),
    }
    stored, begun, written = asyncio.Event(), asyncio.Event(), []

    async def write_metric(name: str, value: Any) -> None:
        if name == slow_metric:
            begun.set()
            await stored.wait()
        written.append((name, value))

    root = write_project(tmp_path, files)
    model = scripted({"calls": [call("hand_over")]}, {"text": "The model must not be asked again."})
    settings = FlowSettings()
    project = load_flow_project(root, model, InProcessPool(project_runtime(root)), settings)
    agent = await project.open(call_info(), write_metric)
    await started(agent)
    replying = asyncio.create_task(replied(agent, CallerTurn("my bag is lost")))
    await begun.wait()
    replying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replying
    assert agent.record().handoff == {"destination": "desk", "reason": "lost bag"}
    assert settings.external.get_handoff(call_id="call-1") is not None
    stored.set()
    actions = await replied(agent, CallerTurn("hello?"))
    assert actions[-1] == Handoff("desk", "lost bag", "refer", "+15550001111")
    assert words(actions) == ["One moment."]
    # Each metric is written once, and reported once.
    assert written == metrics(actions) == [("HANDOFF_TO", "desk"), ("HANDOFF_REASON", "lost bag")]
    assert [metric["name"] for metric in agent.record().metrics] == ["HANDOFF_TO", "HANDOFF_REASON"]
    await agent.close()
    await project.close()


async def test_a_caller_who_has_another_turn_after_a_handoff_has_interrupted_it_and_it_is_repeated(tmp_path: Path):
    body = "return {'handoff': {'type': 'desk', 'reason': 'lost bag'}}"
    files = {
        "agent_settings/rules.txt": "{{fn:hand_over}}",
        "config/handoffs.yaml": HANDOFFS,
        "functions/hand_over.py": function("hand_over", body),
    }
    async with driven(write_project(tmp_path, files), {"calls": [call("hand_over")]}) as agent:
        await agent.start()
        first = (await agent.says("my bag is lost"))[-1]
        assert isinstance(first, Handoff)
        assert (await agent.says("hello?"))[-1] == first
        assert [name for name, _ in agent.written] == ["HANDOFF_TO", "HANDOFF_REASON"]


async def test_after_a_handoff_that_failed_the_same_one_may_be_tried_again(tmp_path: Path):
    body = "return {'handoff': {'type': 'desk', 'reason': 'lost bag'}}"
    files = {
        "agent_settings/rules.txt": "{{fn:hand_over}}",
        "config/handoffs.yaml": HANDOFFS,
        "functions/hand_over.py": function("hand_over", body),
    }
    asked = {"calls": [call("hand_over")]}
    async with driven(write_project(tmp_path, files), asked, {"text": "Sorry."}, asked) as agent:
        await agent.start()
        assert isinstance((await agent.says("my bag is lost"))[-1], Handoff)
        assert words(await agent.handoff_failed("desk", "busy")) == ["Sorry."]
        assert isinstance((await agent.says("again"))[-1], Handoff)
        assert [name for name, _ in agent.written] == ["HANDOFF_TO", "HANDOFF_REASON"] * 2


def test_a_function_past_its_deadline_is_an_error_for_the_model_and_the_turn_goes_on(slow: Path):
    async def main() -> None:
        script = ({"calls": [call("endless")]}, {"text": "It took too long."})
        async with driven(slow, *script) as agent:
            await agent.start()
            before = asyncio.get_running_loop().time()
            actions = await agent.says("go")
            assert asyncio.get_running_loop().time() - before == pytest.approx(10, abs=0.1)
            (ended,) = of(FunctionEnded, actions)
            assert ended.error is not None
            assert ended.error.startswith("FunctionTimeout")
            assert words(actions) == ["It took too long."]
            assert "endless failed" in agent.model.messages()[-1]["content"]

    run(main())


async def test_heard_words_replace_what_was_cut_off():
    async with driven(FERRY, {"text": "We sail at nine. We sail at ten."}, {"text": "Yes?"}) as ferry:
        await ferry.start()
        await ferry.says("when")
        ferry.agent.heard("We sail at nine. We", cut=True)
        await ferry.says("stop")
        assert ferry.model.messages()[-2]["content"] == "We sail at nine. We…"


async def test_fillers_are_not_shown_to_the_model():
    async with driven(FERRY, {"text": "Yes?"}) as ferry:
        await ferry.start()
        ferry.agent.filler_spoken("One moment.")
        await ferry.says("hm")
        assert "One moment." not in str(ferry.model.messages())
