"""Calls through the ferry project: start, turns, guards, end."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import FunctionEnded, FunctionStarted, Handoff, HangUp, Listen, Say
from callagent.agents.flows import FlowSettings
from callagent.call_info import EndReason
from tests.agents.flows.support import (
    FERRY,
    call_info,
    driven,
    flow_config,
    function,
    functions,
    metrics,
    of,
    step,
    steps,
    words,
    write_project,
)

MONDAY = datetime(2026, 8, 24, 9, 0, tzinfo=UTC)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def test_the_start_function_runs_then_disclaimer_and_greeting_are_said():
    async with driven(FERRY, info=call_info(headers={"X-Line": "blue"})) as ferry:
        actions = await ferry.start()
        assert words(actions) == ["This call may be recorded.", "Welcome to North Island Ferries. How can I help?"]
        assert isinstance(actions[-1], Listen)
        assert metrics(actions) == [("CALL_STARTED", "blue")]
        assert ferry.written == [("CALL_STARTED", "blue")]


async def test_the_greeting_is_not_interruptible_and_later_words_are():
    async with driven(FERRY, {"text": "Yes?"}) as ferry:
        assert not any(say.interruptible for say in of(Say, await ferry.start()))
        assert all(say.interruptible for say in of(Say, await ferry.says("hello")))


async def test_a_whole_booking_by_entities_conditions_and_a_slow_function():
    script = (
        {"calls": [call("booking_wanted")]},
        {"text": "How many people, and when?", "expect": {"tools": ["save_entities", "condition_gave_up"]}},
        {"calls": [call("save_entities", party="four", travel_day="next friday")]},
        {"calls": [call("condition_all_given")], "expect": {"tools": ["condition_all_given"]}},
        {"text": "Four people on the 28th?", "expect": {"system": "4 people on 2026-08-28"}},
        {"calls": [call("confirmed")], "expect": {"tools": ["confirmed", "rejected", "person_wanted"]}},
    )
    async with driven(FERRY, *script, settings=FlowSettings(at=MONDAY)) as ferry:
        await ferry.start()
        asked = await ferry.says("I want to book")
        assert functions(asked) == ["booking_wanted", "entry"]
        assert steps(asked) == [("Booking", "entry"), ("Booking", "Collect details")]
        confirm = await ferry.says("four of us next friday")
        assert steps(confirm) == [("Booking", "Confirm")]
        assert words(confirm) == ["Four people on the 28th?"]
        done = await ferry.says("yes")
        (started,) = of(FunctionStarted, done)
        assert started.latency is not None
        assert [response.text for response in started.latency.responses] == ["Booking for 4.", "Nearly there."]
        assert words(done) == ["Booked for 4."]
        assert metrics(done) == [("BOOKED", 4)]
        record = ferry.agent.record()
        assert (record.flow, record.step, record.state["booked"]) == (None, None, True)
        assert record.entities == {"party": "4", "travel_day": "2026-08-28"}


async def test_the_step_of_the_next_turn_says_how_to_listen():
    script = (
        {"calls": [call("booking_wanted")]},
        {"calls": [call("save_entities", party=2, travel_day="2026-09-01"), call("condition_all_given")]},
        {"text": "Right?"},
    )
    async with driven(FERRY, *script) as ferry:
        await ferry.start()
        settings = of(Listen, await ferry.says("book for two on the first of september"))[0].settings
        assert settings.digits is not None
        assert (settings.digits.max_digits, settings.digits.end_key, settings.digits.inter_digit_timeout) == (
            1,
            "#",
            3.0,
        )
        assert settings.expected == "Yes, please."
        assert settings.keywords == ("crossing",)


async def test_an_invalid_entity_is_told_to_the_model_and_the_former_value_stays():
    script = (
        {"calls": [call("booking_wanted")]},
        {"calls": [call("save_entities", party=3)]},
        {"calls": [call("save_entities", party=40)]},
        {"text": "At most nine."},
    )
    async with driven(FERRY, *script) as ferry:
        await ferry.start()
        await ferry.says("book")
        assert "It should be between 1 and 9" in ferry.model.messages()[-2]["content"]
        assert ferry.agent.record().entities == {"party": "3"}


async def test_a_condition_whose_entities_are_missing_is_neither_offered_nor_followed():
    script = ({"calls": [call("booking_wanted")]}, {"calls": [call("condition_all_given")]}, {"text": "How many?"})
    async with driven(FERRY, *script) as ferry:
        await ferry.start()
        actions = await ferry.says("book")
        assert "condition_all_given" not in ferry.model.tools(1)
        assert "still needed" in ferry.model.messages()[-2]["content"]
        assert steps(actions)[-1] == ("Booking", "Collect details")


async def test_an_exit_condition_leaves_the_flow_and_the_model_goes_on_without_the_step():
    script = (
        {"calls": [call("booking_wanted")]},
        {"calls": [call("condition_gave_up")]},
        {"text": "Anything else?"},
    )
    async with driven(FERRY, *script) as ferry:
        await ferry.start()
        actions = await ferry.says("book, no, forget it")
        assert steps(actions)[-1] == (None, None)
        assert ferry.model.messages()[-1]["role"] == "tool"
        assert "save_entities" not in ferry.model.tools()


async def test_a_handoff_is_handed_over_after_its_words_with_headers_and_metrics():
    async with driven(FERRY, {"calls": [call("person_wanted", reason="lost bag")]}) as ferry:
        await ferry.start()
        actions = await ferry.says("a person please")
        assert isinstance(actions[-1], Handoff)
        assert actions[-1].destination == "office"
        assert (actions[-1].method, actions[-1].number, actions[-1].reason) == ("refer", "+4930111222", "lost bag")
        assert words(actions) == ["I am putting you through."]
        assert metrics(actions) == [("HANDOFF_TO", "office"), ("HANDOFF_REASON", "lost bag")]
        assert ferry.agent.record().handoff == {"destination": "office", "reason": "lost bag"}


async def test_a_handoff_that_fails_comes_back_to_the_model():
    script = ({"calls": [call("transfer_to_office", utterance="One moment.")]}, {"text": "Nobody answers there."})
    async with driven(FERRY, *script) as ferry:
        await ferry.start()
        assert of(Handoff, await ferry.says("office"))
        actions = await ferry.handoff_failed("office", "486 Busy Here")
        assert words(actions) == ["Nobody answers there."]
        assert "486 Busy Here" in ferry.model.system()
        assert ferry.agent.record().handoff is None


async def test_goodbye_hangs_up_after_its_words():
    async with driven(FERRY, {"calls": [call("goodbye")]}) as ferry:
        await ferry.start()
        actions = await ferry.says("bye")
        assert actions[-1] == HangUp(EndReason.AGENT_HANGUP)
        assert words(actions) == ["Have a good crossing. Goodbye."]


async def test_silent_turns_are_told_to_the_model_and_end_the_call_at_the_limit():
    async with driven(FERRY, {"text": "Hello?"}, {"text": "Are you there?"}) as ferry:
        await ferry.start()
        await ferry.says("")
        assert ferry.model.messages()[-1]["content"] == "The user is silent."
        await ferry.says("")
        last = await ferry.says("")
        assert words(last) == ["I cannot hear you. Goodbye."]
        assert last[-1] == HangUp(EndReason.SILENCE)


async def test_words_between_silences_start_the_count_again():
    texts = [{"text": "Yes?"}] * 5
    async with driven(FERRY, *texts) as ferry:
        await ferry.start()
        for text in ("", "", "hello", "", ""):
            assert isinstance((await ferry.says(text))[-1], Listen)


async def test_a_silent_turn_that_does_not_count_is_not_counted():
    async with driven(FERRY, *[{"text": "Yes?"}] * 4) as ferry:
        await ferry.start()
        for _ in range(4):
            assert isinstance((await ferry.says("", counts_as_silence=False))[-1], Listen)


async def test_the_end_function_sees_state_and_position_and_its_metrics_are_kept():
    async with driven(FERRY, {"calls": [call("booking_wanted")]}, {"text": "When?"}) as ferry:
        await ferry.start()
        await ferry.says("book")
        assert await ferry.agent.end(EndReason.CALLER_HANGUP, 1)
        assert ferry.written[-2:] == [("OUTCOME", "open"), ("ENDED_IN", "Booking/Collect details")]
        assert ferry.agent.record().metrics[-1] == {"name": "ENDED_IN", "value": "Booking/Collect details"}


async def test_the_end_function_sees_what_the_caller_hung_up_with():
    async with driven(FERRY, {"text": "When?"}) as ferry:
        await ferry.start()
        assert await ferry.agent.end(EndReason.CALLER_HANGUP, 1, {"X-Survey": "5"})
        assert ("SURVEY", "5") in ferry.written


async def test_key_presses_are_the_text_of_a_turn_without_words():
    async with driven(FERRY, {"text": "Thanks.", "expect": {"last_user": "^42$"}}) as ferry:
        await ferry.start()
        assert words(await ferry.says("", digits="42")) == ["Thanks."]


async def test_a_correction_changes_what_the_model_reads():
    async with driven(FERRY, {"text": "Yes.", "expect": {"last_user": "the ferry"}}) as ferry:
        await ferry.start()
        await ferry.says("when does the fairy leave")


async def test_a_topic_that_matches_is_in_the_prompt_offers_its_tools_and_writes_the_metric():
    async with driven(FERRY, {"text": "Free."}, {"text": "Yes."}) as ferry:
        await ferry.start()
        actions = await ferry.says("can I bring my dog on the ferry?")
        assert "faq_description: Dogs travel free" in ferry.model.system()
        assert "dog_noted" in ferry.model.tools()
        assert metrics(actions) == [("QA", "dogs")]
        assert metrics(await ferry.says("yes")) == []


START_IDIOM = """
conv.goto_flow('F')
return {'utterance': '', 'listen': {'asr': {'timeout': 0.1}}}
"""


async def test_a_start_function_may_open_a_flow_in_silence_and_the_first_step_speaks(tmp_path: Path):
    project = write_project(
        tmp_path,
        {
            "agent_settings/rules.txt": "Rules.",
            "functions/start_function.py": function("start_function", START_IDIOM, decorators="\n"),
            "flows/f/flow_config.yaml": flow_config("F", "Hello"),
            "flows/f/steps/hello.yaml": step("Hello", "Say hello."),
        },
    )
    settings = FlowSettings()
    async with driven(project, *[{"text": "Hello!"}] * 4, settings=settings) as agent:
        actions = await agent.start()
        assert words(actions) == []
        assert of(Listen, actions)[0].settings.no_input_timeout == pytest.approx(0.1)
        assert words(await agent.says("")) == ["Hello!"]
        # The first silence was the start function's own, so three more are allowed.
        for _ in range(3):
            assert isinstance((await agent.says(""))[-1], Listen)


async def test_a_start_function_that_fails_does_not_cost_the_greeting(tmp_path: Path):
    project = write_project(
        tmp_path,
        {
            "voice/configuration.yaml": "greeting: {welcome_message: Hello., language_code: en-US}\n",
            "functions/start_function.py": function("start_function", "raise ValueError('no')", decorators="\n"),
        },
    )
    async with driven(project) as agent:
        actions = await agent.start()
        assert words(actions) == ["Hello."]
        assert of(FunctionEnded, actions)[0].error == "ValueError: no"


async def test_an_end_function_that_fails_is_reported_as_not_done(tmp_path: Path):
    project = write_project(
        tmp_path, {"functions/end_function.py": function("end_function", "raise ValueError('no')", decorators="\n")}
    )
    async with driven(project) as agent:
        assert await agent.agent.end(EndReason.CALLER_HANGUP, 1) is False
