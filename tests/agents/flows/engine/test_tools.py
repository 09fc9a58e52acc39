"""Which tools the model sees, and what the system messages say."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import Handoff, Listen, SetLanguage, SetVoice
from callagent.agents.flows import FlowSettings
from tests.agents.flows.support import (
    call_info,
    driven,
    flow_config,
    function,
    functions,
    of,
    step,
    steps,
    words,
    write_project,
)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


HANDOFFS = """
handoffs:
  - {name: Front Desk, is_default: true, sip_config: {method: refer, phone_number: "+491"}}
  - {name: Night, is_default: false, sip_config: {method: bye}, sip_headers: [{key: X-Who, value: $who}]}
"""
SMS = "sms_templates: [{name: address, text: Here., env_phone_numbers: {live: ''}}]\n"
ENTITIES = """
entities:
- {name: colour, description: Which, entity_type: enum, config: {options: [red, blue]}}
"""
CATS = """
name: cats
content: 'Cats {{fn:unreferenced}} purr.'
actions: '{{fn:from_topic}}'
example_queries: [do you have cats]
"""
TOWNS = """
variants: [{name: a, is_default: true}, {name: b}]
attributes: [{name: town, values: {a: Aachen, b: Bonn}}]
"""
STYLE = """
greeting: {welcome_message: Hi, language_code: de-DE}
style_prompt: {prompt: Slowly.}
"""
TOOLS_IN_FLOW = '{"llm": {"flow_overrides": {"F": {"include_kb_functions_in_flows": true}}}}'
PROJECT = {
    "agent_settings/persona.txt": "You are Pat.",
    "agent_settings/rules.txt": (
        "Rules. {{fn:enter}} {{ho:Front Desk}} {{twilio_sms:address}} <channel:webchat>CHAT</channel>"
    ),
    "config/handoffs.yaml": HANDOFFS,
    "config/sms_templates.yaml": SMS,
    "config/entities.yaml": ENTITIES,
    "functions/enter.py": function(
        "enter",
        "conv.state.who = 'Anna'\nconv.goto_flow('F')\nreturn 'Call {{fn:extra}} next.'",
        ", size: int, exact: bool",
        decorators='@func_description("Enters.")\n@func_parameter("size", "How big")\n@func_parameter("exact", "")\n',
    ),
    "functions/extra.py": function("extra", "return ''"),
    "functions/from_topic.py": function("from_topic", "return ''"),
    "functions/unreferenced.py": function("unreferenced", "return ''"),
    "functions/start_function.py": function("start_function", "pass", decorators="\n"),
    "topics/cats.yaml": CATS,
    "flows/f/flow_config.yaml": flow_config("F", "Advanced"),
    "flows/f/steps/advanced.yaml": step("Advanced", "Step of $who. {{ft:onward}}"),
    "flows/f/steps/default.yaml": (
        "step_type: default_step\nname: Default\nprompt: Colours.\nextracted_entities: [colour]\n"
        "conditions:\n- {name: Has colour, condition_type: exit_flow_condition, required_entities: [colour]}\n"
        "- {name: No colour, condition_type: step_condition, child_step: Advanced}\n"
    ),
    "flows/f/functions/onward.py": function("onward", "flow.goto_step('Default')", flow=True),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_project(tmp_path, PROJECT)


async def test_outside_flows_the_tools_of_rules_and_of_matching_topics_are_offered(project: Path):
    async with driven(project, {"text": "Hm."}, {"text": "Hm."}) as agent:
        await agent.start()
        await agent.says("hello")
        assert agent.model.tools() == ["enter", "transfer_to_front_desk", "send_sms_address"]
        await agent.says("do you have cats")
        assert agent.model.tools() == ["enter", "transfer_to_front_desk", "send_sms_address", "from_topic"]
        assert "faq_description: Cats unreferenced purr." in agent.model.system()


async def test_in_an_advanced_step_its_tools_come_first_then_those_of_the_rules_and_of_results(project: Path):
    async with driven(project, {"calls": [call("enter", size=1, exact=True)]}, {"text": "Hm."}) as agent:
        await agent.start()
        await agent.says("do you have cats")
        assert agent.model.tools() == ["onward", "enter", "transfer_to_front_desk", "send_sms_address", "extra"]
        assert agent.model.messages()[-1] == {"role": "system", "content": "Step of Anna. onward"}
        assert agent.model.messages()[-2]["content"] == "Call extra next."


async def test_topics_offer_tools_in_flows_where_the_project_says_so(project: Path):
    write_project(
        project,
        {"agent_settings/experimental_config.json": TOOLS_IN_FLOW},
    )
    async with driven(project, {"calls": [call("enter", size=1, exact=True)]}, {"text": "Hm."}) as agent:
        await agent.start()
        await agent.says("do you have cats")
        assert "from_topic" in agent.model.tools()


async def test_in_a_default_step_the_implicit_tools_are_offered_as_entities_come_in(project: Path):
    script = (
        {"calls": [call("enter", size=1, exact=True)]},
        {"calls": [call("onward")]},
        {"calls": [call("save_entities", colour="RED", size=3)]},
        {"text": "Fine."},
    )
    async with driven(project, *script) as agent:
        await agent.start()
        actions = await agent.says("go on")
        assert steps(actions) == [("F", "Advanced"), ("F", "Default")]
        assert agent.model.tools(2)[:2] == ["save_entities", "condition_no_colour"]
        assert agent.model.tools(3)[:3] == ["save_entities", "condition_has_colour", "condition_no_colour"]
        schema = agent.model.requests[2][1][0]["function"]["parameters"]["properties"]["colour"]
        assert schema["enum"] == ["red", "blue"]
        assert '"saved": {"colour": "red"}' in agent.model.messages(3)[-2]["content"]
        assert "colour (enum, collected: red)" in agent.model.system()
        assert agent.agent.record().state["colour"] == "red"


async def test_schemas_come_from_signature_and_decorators(project: Path):
    async with driven(project, {"text": "Hm."}) as agent:
        await agent.start()
        await agent.says("hello")
        assert agent.model.requests[0][1][0] == {
            "type": "function",
            "function": {
                "name": "enter",
                "description": "Enters.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "size": {"type": "integer", "description": "How big"},
                        "exact": {"type": "boolean", "description": ""},
                    },
                    "required": ["size", "exact"],
                },
            },
        }


async def test_the_system_message_is_in_the_platform_s_order(project: Path):
    files = {
        "agent_settings/guardrails.yaml": "platform_guardrails:\n"
        + "".join(
            f"- {{name: {name}, enabled: {str(name == 'ai_identity').lower()}}}\n"
            for name in (
                "jailbreak_defence",
                "hallucination_control",
                "ai_identity",
                "emergency_escalation",
                "tool_call_integrity",
            )
        ),
        "voice/configuration.yaml": STYLE,
        "agent_settings/experimental_config.json": '{"prompts": {"step_header": "HEAD", "step_footer": "FOOT"}}',
        "agent_settings/languages.yaml": "default_language: de-DE\n",
    }
    async with driven(
        write_project(project, files), {"calls": [call("enter", size=1, exact=True)]}, {"text": "Hm."}
    ) as agent:
        await agent.start()
        await agent.says("do you have cats")
        system = agent.model.messages(0)[0]["content"]
        parts = ["You are Pat.", "Rules.", "virtual assistant", "Slowly.", "German", "faq_id: cats"]
        assert [system.index(part) for part in parts] == sorted(system.index(part) for part in parts)
        assert "CHAT" not in system
        assert agent.model.messages()[-1]["content"] == "HEAD\n\nStep of Anna. onward\n\nFOOT"


async def test_a_handoff_tool_hands_over_with_resolved_headers(project: Path):
    write_project(project, {"agent_settings/rules.txt": "{{fn:enter}} {{ho:Night}}"})
    script = ({"calls": [call("enter", size=1, exact=True)]}, {"calls": [call("transfer_to_night", reason="late")]})
    async with driven(project, *script) as agent:
        await agent.start()
        (handoff,) = of(Handoff, await agent.says("x"))
        assert handoff == Handoff("Night", "late", "bye", None, {"X-Who": "Anna"})


async def test_a_header_whose_variable_has_no_value_is_left_out(tmp_path: Path):
    headers = "[{key: X-Who, value: $who}, {key: X-Empty, value: 'a $empty'}, {key: X-Town, value: '{{attr:town}}'}, "
    headers += "{key: X-Old, value: '{{vrbl:who}}'}, {key: X-Price, value: $5.00}, {key: X-Set, value: 'for $name'}]"
    handoff = f"{{name: Night, is_default: true, sip_config: {{method: bye}}, sip_headers: {headers}}}"
    files = {
        "config/handoffs.yaml": f"handoffs:\n  - {handoff}\n",
        "agent_settings/rules.txt": "{{fn:enter}} {{ho:Night}}",
        "functions/enter.py": function("enter", "conv.state.name = 'Anna'\nconv.state.empty = None\nreturn 'ok'"),
    }
    script = ({"calls": [call("enter")]}, {"calls": [call("transfer_to_night", reason="late")]})
    async with driven(write_project(tmp_path, files), *script) as agent:
        await agent.start()
        (ended,) = of(Handoff, await agent.says("x"))
        assert ended.headers == {"X-Price": "$5.00", "X-Set": "for Anna"}


async def test_language_and_variant_change_before_the_words_are_said(tmp_path: Path):
    files = {
        "agent_settings/rules.txt": "{{fn:change}} {{attr:town}}",
        "agent_settings/languages.yaml": "default_language: en-US\nadditional_languages: [de-DE]\n",
        "config/variant_attributes.yaml": TOWNS,
        "functions/change.py": function(
            "change", "conv.set_language('de-DE')\nconv.set_variant('b')\nreturn {'utterance': 'Hallo'}"
        ),
    }
    async with driven(write_project(tmp_path, files), {"calls": [call("change")]}, {"text": "Ja."}) as agent:
        await agent.start()
        actions = await agent.says("deutsch bitte")
        kinds = [type(action).__name__ for action in actions]
        assert kinds.index("SetLanguage") < kinds.index("Say")
        assert of(SetLanguage, actions) == [SetLanguage("de-DE")]
        await agent.says("und?")
        assert "Bonn" in agent.model.system()
        assert "German" in agent.model.system()
        assert (agent.agent.record().language, agent.agent.record().variant) == ("de-DE", "b")


async def test_a_voice_is_told_by_provider_and_name(tmp_path: Path):
    body = "conv.set_voice(ElevenLabsVoice(provider_voice_id='v1'))\nreturn {'utterance': 'x'}"
    files = {"agent_settings/rules.txt": "{{fn:change}}", "functions/change.py": function("change", body)}
    async with driven(write_project(tmp_path, files), {"calls": [call("change")]}) as agent:
        await agent.start()
        (voice,) = of(SetVoice, await agent.says("x"))
        assert voice.name == "v1"


async def test_content_with_a_transition_is_answered_in_the_new_step(tmp_path: Path):
    files = {
        "agent_settings/rules.txt": "{{fn:enter}}",
        "functions/enter.py": function(
            "enter", "return {'content': 'ok', 'transition': {'goto_flow': 'F', 'goto_step': 'B'}}"
        ),
        "flows/f/flow_config.yaml": flow_config("F", "A"),
        "flows/f/steps/a.yaml": step("A", "Prompt A."),
        "flows/f/steps/b.yaml": step("B", "Prompt B. {{ft:back}}"),
        "flows/f/functions/back.py": function(
            "back", "return {'utterance': 'Back.', 'transition': flow.goto_step('A')}", flow=True
        ),
    }
    script = ({"calls": [call("enter")]}, {"text": "In B."}, {"calls": [call("back")]}, {"text": "In A."})
    async with driven(write_project(tmp_path, files), *script) as agent:
        await agent.start()
        entered = await agent.says("x")
        assert words(entered) == ["In B."]
        assert agent.model.messages()[-1]["content"].startswith("Prompt B.")
        # Transition and utterance: spoken, and the new step's prompt waits for the caller.
        back = await agent.says("y")
        assert (words(back), steps(back), functions(back)) == (["Back."], [("F", "A")], ["back"])
        assert isinstance(back[-1], Listen)
        await agent.says("z")
        assert agent.model.messages()[-1]["content"] == "Prompt A."


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ("return ['a']", "cannot be used"),
        ("raise KeyError('x')", "KeyError"),
        ("return conv.call_handoff('Nowhere')", "MissingHandoff"),
        ("return {'handoff': {'type': 'Nowhere'}}", "there is no handoff 'Nowhere'"),
    ],
)
async def test_what_a_function_does_wrong_is_told_to_the_model(project: Path, body: str, error: str):
    write_project(project, {"agent_settings/rules.txt": "{{fn:bad}}", "functions/bad.py": function("bad", body)})
    async with driven(project, {"calls": [call("bad")]}, {"text": "Sorry."}) as agent:
        await agent.start()
        assert words(await agent.says("x")) == ["Sorry."]
        assert error in agent.model.messages()[-1]["content"]


async def test_values_that_cannot_be_used_are_tried_three_times(project: Path):
    write_project(
        project, {"agent_settings/rules.txt": "{{fn:bad}}", "functions/bad.py": function("bad", "return [1]")}
    )
    async with driven(project, *[{"calls": [call("bad")]}] * 3) as agent:
        await agent.start()
        actions = await agent.says("x")
        assert functions(actions) == ["bad"] * 3
        assert words(actions) == [FlowSettings().fallback_utterance]


async def test_end_turn_false_speaks_and_goes_on_in_the_same_turn(project: Path):
    body = "return {'utterance': 'One moment.', 'end_turn': False}"
    write_project(project, {"agent_settings/rules.txt": "{{fn:wait}}", "functions/wait.py": function("wait", body)})
    async with driven(project, {"calls": [call("wait"), call("wait")]}, {"text": "Here."}) as agent:
        await agent.start()
        actions = await agent.says("x")
        assert words(actions) == ["One moment.", "Here."]
        assert functions(actions) == ["wait"]


async def test_listen_of_a_function_holds_for_one_turn(project: Path):
    listen = (
        "{'asr': {'timeout': 20, 'keywords': ['blue']}, 'channel': 'SPEECH_AND_DTMF', "
        "'dtmf': {'num_digits': 4, 'finish_on_key': '*', 'is_pii': True}, 'barge_in': {'is_enabled': False}}"
    )
    body = f"return {{'utterance': '', 'listen': {listen}}}"
    write_project(project, {"agent_settings/rules.txt": "{{fn:wait}}", "functions/wait.py": function("wait", body)})
    async with driven(project, {"calls": [call("wait")]}, {"text": "Hm."}) as agent:
        await agent.start()
        settings = of(Listen, await agent.says("x"))[0].settings
        assert (settings.no_input_timeout, settings.keywords, settings.barge_in, settings.speech) == (
            20,
            ("blue",),
            False,
            True,
        )
        assert settings.digits is not None
        assert (settings.digits.max_digits, settings.digits.end_key, settings.digits.is_pii) == (4, "*", True)
        after = of(Listen, await agent.says("y"))[0].settings
        assert (after.no_input_timeout, after.digits) == (None, None)


async def test_project_code_sees_the_call(project: Path):
    body = (
        "return '|'.join(str(x) for x in (conv.caller_number, conv.env, conv.channel_type, conv.current_flow, "
        "conv.sip_headers.get('X-A'), [h.text for h in conv.history], conv.clock.now().year, conv.state.call_sid))"
    )
    write_project(project, {"agent_settings/rules.txt": "{{fn:look}}", "functions/look.py": function("look", body)})
    settings = FlowSettings(environment="sandbox", at=datetime(2031, 1, 1, tzinfo=UTC))
    info = call_info(headers={"X-A": "1"})
    async with driven(project, {"calls": [call("look")]}, {"text": "Hm."}, settings=settings, info=info) as agent:
        await agent.start()
        await agent.says("hello")
        content = agent.model.messages()[-1]["content"]
        assert content == "+4930555|sandbox|sip.polyai|None|1|['hello']|2031|call-1"


async def test_real_time_configuration_is_read_again_when_it_changes(project: Path):
    write_project(
        project,
        {
            "agent_settings/rules.txt": "{{fn:look}}",
            "functions/look.py": function("look", "return str(conv.real_time_config.get('open'))"),
            "real_time_configuration/live/data.json": '{"open": true}',
        },
    )
    async with driven(project, *[{"calls": [call("look")]}, {"text": "Hm."}] * 2) as agent:
        await agent.start()
        await agent.says("x")
        assert agent.model.messages()[-1]["content"] == "True"
        path = project / "real_time_configuration/live/data.json"
        path.write_text('{"open": false}')
        os.utime(path, (1, 1))
        await agent.says("y")
        assert agent.model.messages()[-1]["content"] == "False"
