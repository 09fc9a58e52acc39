"""Inside a turn: guards, filters, tool calls that go wrong, chains of function steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from callagent.agents import FunctionStarted, Handoff, HangUp, Listen, ModelAnswered, Say
from callagent.agents.flows import FlowSettings
from callagent.call_info import EndReason
from tests.agents.flows.support import (
    FERRY,
    driven,
    flow_config,
    function,
    functions,
    of,
    words,
    write_project,
)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def test_a_filtered_phrase_is_not_said_and_its_function_takes_over():
    async with driven(FERRY, {"text": "Of course. Let me transfer you now. Bye."}) as ferry:
        await ferry.start()
        actions = await ferry.says("hm")
        assert words(actions) == ["Of course.", "I am putting you through."]
        assert isinstance(actions[-1], Handoff)


async def test_sentences_are_said_one_by_one_before_the_answer_is_complete():
    async with driven(FERRY, {"text": "First sentence here. Second one. Third"}) as ferry:
        await ferry.start()
        actions = await ferry.says("hm")
        assert words(actions) == ["First sentence here.", "Second one.", "Third"]
        assert [type(a) for a in actions] == [Say, Say, Say, ModelAnswered, Listen]


async def test_a_provider_that_fails_costs_a_spoken_line_and_the_call_goes_on():
    async with driven(FERRY, {"error": "refused"}, {"text": "Now it works."}) as ferry:
        await ferry.start()
        actions = await ferry.says("hm")
        assert words(actions) == [FlowSettings().fallback_utterance]
        assert isinstance(actions[-1], Listen)
        assert "ProviderRefused" in str(of(ModelAnswered, actions)[0].error)
        assert words(await ferry.says("again")) == ["Now it works."]


async def test_the_guard_ends_a_turn_in_which_the_model_only_calls():
    async with driven(FERRY, *[{"calls": [call("dog_noted")]}] * 10) as ferry:
        await ferry.start()
        actions = await ferry.says("hm, my dog")
        assert functions(actions) == ["dog_noted"] * 10
        assert words(actions) == [FlowSettings().fallback_utterance]


async def test_an_unknown_tool_is_answered_and_the_turn_goes_on():
    async with driven(FERRY, {"calls": [call("sing")]}, {"text": "I cannot."}) as ferry:
        await ferry.start()
        assert words(await ferry.says("sing")) == ["I cannot."]
        assert ferry.model.messages()[-1]["role"] == "tool"
        assert "no function of that name" in ferry.model.messages()[-1]["content"]


async def test_every_tool_call_has_exactly_one_answer_also_when_a_row_is_cut_short():
    calls = [call("dog_noted"), call("booking_wanted"), call("goodbye")]
    async with driven(FERRY, {"calls": calls}, {"text": "When?"}) as ferry:
        await ferry.start()
        actions = await ferry.says("my dog and I want to book")
        assert functions(actions) == ["dog_noted", "booking_wanted", "entry"]
        tool_messages = [m for m in ferry.model.messages() if m["role"] == "tool"]
        assert [m["content"] for m in tool_messages] == ["The dog is noted.", "", "Not executed."]


async def test_a_function_step_that_leads_nowhere_leaves_the_turn_to_the_model(tmp_path: Path):
    project = write_project(
        tmp_path,
        {
            "agent_settings/rules.txt": "{{fn:go}}",
            "functions/go.py": function("go", "conv.goto_flow('F')"),
            "flows/f/flow_config.yaml": flow_config("F", "stay"),
            "flows/f/function_steps/stay.py": function("stay", "return 'Say sorry.'", flow=True, decorators="\n"),
        },
    )
    async with driven(project, {"calls": [call("go")]}, {"text": "Sorry."}) as agent:
        await agent.start()
        actions = await agent.says("x")
        assert functions(actions) == ["go", "stay"]
        assert words(actions) == ["Sorry."]
        assert "Say sorry." in agent.model.system()


async def test_a_chain_of_function_steps_without_end_is_stopped(tmp_path: Path):
    project = write_project(
        tmp_path,
        {
            "agent_settings/rules.txt": "{{fn:go}}",
            "functions/go.py": function("go", "conv.goto_flow('F')"),
            "flows/f/flow_config.yaml": flow_config("F", "a"),
            "flows/f/function_steps/a.py": function("a", "flow.goto_step('b')", flow=True, decorators="\n"),
            "flows/f/function_steps/b.py": function("b", "flow.goto_step('a')", flow=True, decorators="\n"),
        },
    )
    async with driven(project, {"calls": [call("go")]}, {"text": "Sorry."}) as agent:
        await agent.start()
        actions = await agent.says("x")
        assert len(functions(actions)) == 21
        assert words(actions) == ["Sorry."]


async def test_prompt_llm_asks_the_call_s_model(tmp_path: Path):
    body = "answer = conv.utils.prompt_llm('Is it Anna?', return_json=True)\nreturn str(answer['yes'])"
    project = write_project(
        tmp_path, {"agent_settings/rules.txt": "{{fn:ask}}", "functions/ask.py": function("ask", body)}
    )
    script = ({"calls": [call("ask")]}, {"text": '```json\n{"yes": 1}\n```'}, {"text": "Fine."})
    async with driven(project, *script) as agent:
        await agent.start()
        assert words(await agent.says("Anna")) == ["Fine."]
        assert agent.model.messages()[-1]["content"] == "1"


async def test_a_filter_without_a_function_ends_the_turn_with_what_was_said(tmp_path: Path):
    rules = "phrase_filtering: [{name: a, regular_expressions: [secret], say_phrase: false}]\n"
    project = write_project(
        tmp_path, {"agent_settings/rules.txt": "R.", "voice/response_control/phrase_filtering.yaml": rules}
    )
    script = ({"text": "Well. The secret is out."}, {"text": "secret"}, {"text": "Nothing to say."})
    async with driven(project, *script) as agent:
        await agent.start()
        assert words(await agent.says("x")) == ["Well.", "The"]
        # Nothing of the answer may be said: the model is asked again.
        assert words(await agent.says("y")) == ["Nothing to say."]


async def test_what_a_function_sets_for_recognition_and_topics_lasts(tmp_path: Path):
    body = "conv.set_asr_biasing(keywords=['quay'])\nconv.knowledge_base.disable_topics(['dogs'])\nreturn 'ok'"
    files = {
        "agent_settings/rules.txt": "{{fn:tune}}",
        "functions/tune.py": function("tune", body),
        "topics/dogs.yaml": "name: dogs\ncontent: Dogs bark.\nexample_queries: [do you have dogs]\n",
    }
    script = ({"calls": [call("tune")]}, {"text": "Fine."}, {"text": "No."})
    async with driven(write_project(tmp_path, files), *script) as agent:
        await agent.start()
        listen = of(Listen, await agent.says("tune"))[0]
        assert listen.settings.keywords == ("quay",)
        await agent.says("do you have dogs")
        assert "Dogs bark" not in agent.model.system()


async def test_arguments_that_are_not_an_object_are_refused(tmp_path: Path):
    async with driven(FERRY, {"calls": [call("goodbye")]}, {"text": "Hm."}) as ferry:
        await ferry.start()
        entry = ferry.model._script.entries[0]
        object.__setattr__(entry, "calls", (("goodbye", "[1]"),))
        assert words(await ferry.says("bye")) == ["Hm."]
        assert "not a JSON object" in ferry.model.messages()[-1]["content"]


async def test_delay_responses_may_come_in_any_order_once_each(tmp_path: Path):
    control = '@func_latency_control(delay_responses=[("a", 1), ("b", 1), ("c", 1)], randomize=True)'
    decorators = f'@func_description("d")\n{control}\n'
    files = {
        "agent_settings/rules.txt": "{{fn:slow}}",
        "functions/slow.py": function("slow", "pass", decorators=decorators),
    }
    async with driven(write_project(tmp_path, files), {"calls": [call("slow")]}, {"text": "Hm."}) as agent:
        await agent.start()
        (started,) = of(FunctionStarted, await agent.says("x"))
        assert started.latency is not None
        assert sorted(response.text for response in started.latency.responses) == ["a", "b", "c"]


async def test_a_model_that_fails_in_three_turns_in_a_row_ends_the_call():
    failing = {"error": "refused"}
    async with driven(FERRY, failing, failing, {"text": "Here."}, failing, failing, failing) as ferry:
        await ferry.start()
        for _ in range(5):
            actions = await ferry.says("hm")
            assert isinstance(actions[-1], Listen)
        actions = await ferry.says("hm")
        assert words(actions) == [FlowSettings().failure_utterance]
        assert actions[-1] == HangUp(EndReason.ERROR)
