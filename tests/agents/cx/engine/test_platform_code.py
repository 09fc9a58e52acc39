"""What an app's callbacks, tools and variables make of a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import DigitSettings, FunctionEnded, Handoff, HangUp, Listen, Say
from callagent.agents.tree import TreeSettings
from callagent.workers import ProcessPool
from tests.agents.cx.support import GREETING, driven, write_app
from tests.agents.driving import results, words

PARTIAL = """
    def before_model_callback(callback_context, llm_request):
        if callback_context.get_last_user_input()[0].text == "Look it up.":
            response = LlmResponse.from_parts([Part.from_text("One moment.")])
            response.partial = True
            return response
"""
CUSTOMIZED = """
    def before_model_callback(callback_context, llm_request):
        return LlmResponse.from_parts([
            Part.from_customized_response(content="Enter your number.", disable_barge_in=True, enable_dtmf=True),
        ])
"""


def model_callback(body: str) -> dict[str, str]:
    return {"before_model": f"def before_model_callback(callback_context, llm_request):\n    {body}\n"}


async def test_a_partial_text_is_said_and_the_model_is_asked_all_the_same(tmp_path: Path) -> None:
    app = write_app(tmp_path, callbacks={"before_model": PARTIAL})
    async with driven(app, {"text": "It is open."}) as agent:
        assert words(await agent.says("Look it up.")) == ["One moment.", "It is open."]
        assert len(agent.model.requests) == 1


async def test_text_and_end_session_come_in_their_order(tmp_path: Path) -> None:
    body = 'return LlmResponse.from_parts([Part.from_text("Bye."), Part.from_end_session(reason="done")])'
    async with driven(write_app(tmp_path, callbacks=model_callback(body))) as agent:
        actions = await agent.says("Thank you.")
        assert words(actions) == ["Bye."]
        assert actions[-1] == HangUp()
        assert agent.agent.record().metrics == [{"name": "end_session_reason", "value": "done"}]


async def test_a_function_call_of_a_callback_runs_and_the_model_is_asked_after_it(tmp_path: Path) -> None:
    body = (
        "if not callback_context.state.get('looked'):\n        callback_context.state['looked'] = True\n"
        "        return LlmResponse.from_parts([Part.from_function_call('hours', {'day': 'Monday'})])"
    )
    tools = {"hours": "def hours(day: str) -> dict:\n    return {'open': day}\n"}
    app = write_app(tmp_path, callbacks=model_callback(body), tools=tools, agent={"tools": ["end_session"]})
    async with driven(app, {"text": "On Monday."}) as agent:
        actions = await agent.says("When?")
        assert results(actions)["hours"] == {"open": "Monday"}
        assert words(actions) == ["On Monday."]


async def test_a_customized_response_cannot_be_interrupted_and_asks_for_keys(tmp_path: Path) -> None:
    async with driven(write_app(tmp_path, callbacks={"before_model": CUSTOMIZED})) as agent:
        actions = await agent.says("Hello.")
        assert Say("Enter your number.", interruptible=False) in actions
        ending: Any = actions[-1]
        assert ending.settings.digits == DigitSettings(
            end_key="#", end_key_alone=True, first_digit_timeout=10.0, inter_digit_timeout=3.0, while_speaking=True
        )


async def test_keys_are_off_after_an_ordinary_answer(tmp_path: Path) -> None:
    async with driven(write_app(tmp_path), {"text": "Yes?"}) as agent:
        ending: Any = (await agent.says("Hello."))[-1]
        assert isinstance(ending, Listen)
        assert ending.settings.digits is None


async def test_the_model_customizes_its_response(tmp_path: Path) -> None:
    given = {"content": "Your code?", "enable_dtmf": True, "dtmf_endpointing_timeout_modes": "long"}
    async with driven(write_app(tmp_path), {"calls": [{"name": "customize_response", "arguments": given}]}) as agent:
        actions = await agent.says("Hello.")
        assert Say("Your code?") in actions
        ending: Any = actions[-1]
        assert (ending.settings.digits.end_key, ending.settings.digits.inter_digit_timeout) == ("", 5.0)


async def test_a_payload_for_a_screen_is_neither_said_nor_shown_to_the_model(tmp_path: Path) -> None:
    body = "return LlmResponse.from_parts([Part.from_json('{\"card\": 1}')])"
    async with driven(write_app(tmp_path, callbacks=model_callback(body))) as agent:
        actions = await agent.says("Hello.")
        assert words(actions) == []
        assert isinstance(actions[-1], Listen)


async def test_before_agent_content_stands_for_the_whole_turn(tmp_path: Path) -> None:
    source = """
        def before_agent_callback(callback_context):
            return Content(role="model", parts=[Part(text="We are closed.")])
    """
    async with driven(write_app(tmp_path, callbacks={"before_agent": source})) as agent:
        assert words(await agent.says("Hello.")) == ["We are closed."]
        assert agent.model.requests == []


async def test_after_model_replaces_what_the_model_said(tmp_path: Path) -> None:
    source = """
        def after_model_callback(callback_context, llm_response):
            llm_response.content.parts[0].text = llm_response.content.parts[0].text.upper()
    """
    async with driven(write_app(tmp_path, callbacks={"after_model": source}), {"text": "Quiet."}) as agent:
        assert words(await agent.says("Hello.")) == ["QUIET."]


async def test_a_callback_hides_a_tool_and_changes_the_instruction(tmp_path: Path) -> None:
    source = """
        def before_model_callback(callback_context, llm_request):
            llm_request.config.hide_tool("hours")
            llm_request.config.system_instruction = Content(parts=[Part.from_text("Talk like a pirate.")])
    """
    tools = {"hours": "def hours() -> dict:\n    return {}\n"}
    async with driven(write_app(tmp_path, callbacks={"before_model": source}, tools=tools), {"text": "Arr."}) as agent:
        await agent.says("Hello.")
        assert agent.model.tools() == ["end_session", "customize_response"]
        assert agent.model.system() == "Talk like a pirate."


async def test_tool_callbacks_change_arguments_and_results(tmp_path: Path) -> None:
    callbacks = {
        "before_tool": """
            def before_tool_callback(tool, input, callback_context):
                input["day"] = "Friday"
        """,
        "after_tool": """
            def after_tool_callback(tool, input, callback_context, tool_response):
                return {**tool_response, "asked": tool.name, "for": input["day"]}
        """,
    }
    tools = {"hours": "def hours(day: str):\n    return 'open on ' + day\n"}
    call = {"calls": [{"name": "hours", "arguments": {"day": "Monday"}}]}
    async with driven(write_app(tmp_path, callbacks=callbacks, tools=tools), call, {"text": "Yes."}) as agent:
        actions = await agent.says("When?")
        assert results(actions)["hours"] == {"result": "open on Friday", "asked": "hours", "for": "Friday"}


async def test_a_callback_fills_in_the_parameters_of_end_session(tmp_path: Path) -> None:
    source = """
        def before_tool_callback(tool, input, callback_context):
            if tool.name == "end_session":
                input["params"] = {
                    "ESCALATION_MESSAGE": "I put you through.",
                    "PHONE_GATEWAY_TRANSFER": {"phone_number": "+4930123"},
                    "LIVE_AGENT_HANDOFF": {"sip-refer": True, "x-headers": {"X-Topic": "bill"},
                                           "uui-headers": [{"k1": "v1"}, {"k2": "v2"}]},
                }
    """
    call = {"calls": [{"name": "end_session", "arguments": {"reason": "person", "session_escalated": True}}]}
    async with driven(write_app(tmp_path, callbacks={"before_tool": source}), call) as agent:
        actions = await agent.says("A person, please.")
        assert words(actions) == ["I put you through."]
        uui = b"k1=v1;k2=v2".hex() + ";encoding=hex;purpose=Goog-Session-Param"
        assert actions[-1] == Handoff(
            "+4930123", "person", "refer", "+4930123", {"X-Topic": "bill", "User-to-User": uui}
        )


@pytest.mark.parametrize(("returned", "result"), [("{}", {}), ("None", {"status": "ok"}), ("{'a': 1}", {"a": 1})])
async def test_any_dictionary_of_an_after_tool_callback_is_the_result_of_a_system_tool(
    tmp_path: Path, returned: str, result: dict[str, Any]
) -> None:
    source = f"""
        def after_tool_callback(tool, input, callback_context, tool_response):
            return {returned}
    """
    app = write_app(
        tmp_path, callbacks={"after_tool": source}, tools={"hours": "def hours():\n    return {'open': 9}\n"}
    )
    call = {
        "calls": [{"name": "hours", "arguments": {}}, {"name": "customize_response", "arguments": {"content": "Hm?"}}]
    }
    async with driven(app, call, {"text": "Yes."}) as agent:
        actions = await agent.says("Hello.")
        assert results(actions)["customize_response"] == result
        # The rule is the same for the app's own tools.
        assert results(actions)["hours"] == (result if returned != "None" else {"open": 9})


async def test_nested_changes_of_variables_are_kept(tmp_path: Path) -> None:
    tools = {
        "fill": """
            def fill(key: str, value: str) -> dict:
                context.state["form"]["filled"][key] = value
                return {}
        """
    }
    variables = [{"name": "form", "schema": {"type": "OBJECT", "default": {"filled": {}}}}]
    app = write_app(tmp_path, app={"variableDeclarations": variables}, tools=tools)
    call = {"calls": [{"name": "fill", "arguments": {"key": "size", "value": "4"}}]}
    async with driven(app, call, {"text": "Thanks."}) as agent:
        await agent.says("Four.")
        assert agent.state["form"] == {"filled": {"size": "4"}}


async def test_variable_functions_and_other_tools_are_globals(tmp_path: Path) -> None:
    tools = {
        "add": "def add(a: int, b: int) -> dict:\n    return {'sum': a + b}\n",
        "work": """
            def work() -> dict:
                set_variable("count", 5)
                total = tools.add({"a": get_variable("count"), "b": 2}).json()["sum"]
                later = async_tools.add({"a": 1, "b": 1})
                set_variable("gone", 1)
                remove_variable("gone")
                try:
                    tools.nobody({})
                except Exception as error:
                    unknown = str(error)
                return {"total": total, "later": later().json(), "unknown": "nobody" in unknown,
                        "missing": get_variable("gone", "none"), "call": bool(context.function_call_id)}
        """,
    }
    async with driven(
        write_app(tmp_path, tools=tools), {"calls": [{"name": "work", "arguments": {}}]}, {"text": "Done."}
    ) as agent:
        actions = await agent.says("Go.")
        assert results(actions)["work"] == {
            "total": 7, "later": {"sum": 2}, "unknown": True, "missing": "none", "call": True,
        }  # fmt: skip
        assert agent.state["count"] == 5
        assert "gone" not in agent.state


async def test_a_tool_that_raises_is_an_error_for_the_model(tmp_path: Path) -> None:
    tools = {"breaks": "def breaks() -> dict:\n    raise ValueError('no such day')\n"}
    app = write_app(tmp_path, tools=tools)
    async with driven(app, {"calls": [{"name": "breaks", "arguments": {}}]}, {"text": "Another day?"}) as agent:
        actions = await agent.says("When?")
        assert results(actions)["breaks"] == {"error": "ValueError: no such day"}
        assert words(actions) == ["Another day?"]


async def test_variables_in_the_instruction(tmp_path: Path) -> None:
    variables = [{"name": "plan", "schema": {"type": "STRING", "default": "Gold"}}, {"name": "name", "schema": {}}]
    tools = {"rename": "def rename(name: str) -> dict:\n    set_variable('name', name)\n    return {}\n"}
    app = write_app(
        tmp_path,
        app={"variableDeclarations": variables},
        tools=tools,
        instruction="Plan {{plan}}, caller {name}, use {@TOOL: rename}, keep {braces}.",
    )
    entries: list[dict[str, Any]] = [
        {"calls": [{"name": "rename", "arguments": {"name": "Ada"}}]},
        {"text": "Hello Ada."},
    ]
    async with driven(app, *entries) as agent:
        await agent.says("I am Ada.")
        assert agent.model.system().startswith("Plan Gold, caller {name}, use rename, keep {braces}.")
        said = [message["content"] for message in agent.model.messages() if message["role"] == "user"]
        assert said == ["I am Ada.\n<state_update>name: </state_update>", "<state_update>name: Ada</state_update>"]


async def test_a_failing_callback_has_the_apps_fallback_and_then_ends_the_call(tmp_path: Path) -> None:
    errors = {
        "errorHandlingStrategy": "FALLBACK_RESPONSE",
        "fallbackResponseConfig": {"customFallbackMessages": {"en-US": "Again, please."}, "maxFallbackAttempts": 1},
    }
    app = write_app(tmp_path, app={"errorHandlingSettings": errors}, callbacks=model_callback("raise KeyError('x')"))
    async with driven(app) as agent:
        first, second = await agent.says("Hello."), await agent.says("Hello.")
        assert words(first) == ["Again, please."]
        assert isinstance(first[-1], Listen)
        assert second[-1] == HangUp()


@pytest.mark.parametrize("escalates", [False, True])
async def test_an_app_may_end_the_call_at_its_first_failure(escalates: bool, tmp_path: Path) -> None:
    errors = {"errorHandlingStrategy": "END_SESSION", "endSessionConfig": {"escalateSession": escalates}}
    app = write_app(tmp_path, app={"errorHandlingSettings": errors})
    async with driven(app, {"error": "500"}) as agent:
        actions = await agent.says("Hello.")
        assert actions[-1] == (Handoff("live_agent", "error", "bye") if escalates else HangUp())
        assert agent.agent.end_metadata() == {"reason": "error", "session_escalated": escalates}


async def test_without_a_strategy_a_failing_model_is_answered_by_our_own_words(tmp_path: Path) -> None:
    messages = {"customFallbackMessages": {"en-US": "Again, please."}}
    errors = {"errorHandlingStrategy": "NONE", "fallbackResponseConfig": messages}
    app = write_app(tmp_path, app={"errorHandlingSettings": errors})
    async with driven(app, *[{"error": "500"}] * 3) as agent:
        for _ in range(3):
            actions = await agent.says("Hello.")
            assert words(actions) == [TreeSettings().fallback_utterance]
            assert isinstance(actions[-1], Listen)


async def test_the_app_sets_the_silence_and_the_barge_in(tmp_path: Path) -> None:
    audio = {"inactivityTimeout": "7s", "bargeInConfig": {"disableBargeIn": True}}
    app = write_app(tmp_path, app={"audioProcessingConfig": audio}, callbacks={"before_model": GREETING})
    async with driven(app, {"text": "Still there?"}) as agent:
        ending: Any = (await agent.start())[-1]
        assert (ending.settings.no_input_timeout, ending.settings.barge_in) == (7.0, False)
        await agent.says()
        assert agent.model.messages()[-1]["content"] == "<context>no user activity detected for 7 seconds.</context>"


async def test_the_platforms_variables_tell_of_the_caller(tmp_path: Path) -> None:
    headers = {"X-Account": "77", "User-to-User": b"a=b".hex() + ";encoding=hex"}
    async with driven(write_app(tmp_path), headers=headers, caller="+4930555") as agent:
        assert agent.state["telephony-caller-id"] == "+4930555"
        assert agent.state["x-headers"] == {"X-Account": "77"}
        assert agent.state["uui-headers"] == [{"a": "b"}]


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("import time\ndef bad() -> dict:\n    while True:\n        pass\n", "FunctionTimeout"),
        ("import sys\ndef bad() -> dict:\n    sys.exit(3)\n", "SystemExit"),
        ("import os\ndef bad() -> dict:\n    os._exit(3)\n", "WorkerDied"),
        ("import os\ndef bad() -> dict:\n    while True:\n        os.fork()\n", ("WorkerDied", "FunctionTimeout")),
        ("def bad() -> dict:\n    import socket\n    return {}\n", "ImportError"),
        ("def bad() -> dict:\n    return {'much': 'x' * (1 << 30)}\n", "TooLarge"),
    ],
)
async def test_harmful_code_is_contained_and_the_call_goes_on(tmp_path: Path, source: str, kind: Any) -> None:
    entries: list[dict[str, Any]] = [
        {"calls": [{"name": "bad", "arguments": {}}]},
        {"text": "Sorry."},
        {"text": "Still here."},
    ]
    app = write_app(tmp_path, tools={"bad": source})
    async with driven(app, *entries, settings=TreeSettings(function_timeout=2.0), make_pool=ProcessPool) as agent:
        actions = await agent.says("Go.")
        assert results(actions)["bad"]["error"].startswith(
            (*((kind,) if isinstance(kind, str) else kind), "MemoryError")
        )
        assert words(actions) == ["Sorry."]
        assert words(await agent.says("Hello?")) == ["Still here."]


async def test_tools_of_one_answer_run_one_after_the_other_where_the_app_says_so(tmp_path: Path) -> None:
    source = """
        def count() -> dict:
            set_variable("n", (get_variable("n") or 0) + 1)
            return {"n": get_variable("n")}
    """
    tools = {"count": source}
    app = write_app(tmp_path, app={"toolExecutionMode": "SEQUENTIAL"}, tools=tools)
    call = {"name": "count", "arguments": {}}
    async with driven(app, {"calls": [call, call]}, {"text": "Two."}) as agent:
        actions = await agent.says("Count.")
        assert [action.result for action in actions if isinstance(action, FunctionEnded)] == [{"n": 1}, {"n": 2}]


async def test_an_agent_is_a_tool_of_another(tmp_path: Path) -> None:
    expert = {"displayName": "Expert", "instruction": "Know {topic}.", "tools": []}
    tool = {"displayName": "ask_expert", "agentTool": {"rootAgent": "Expert", "description": "Knows a lot."}}
    more = {"agents/expert/expert.json": json.dumps(expert), "tools/ask_expert/ask_expert.json": json.dumps(tool)}
    variables = [{"name": "topic", "schema": {"default": "tea"}}]
    app = write_app(tmp_path, agent={"tools": ["ask_expert"]}, app={"variableDeclarations": variables}, more=more)
    call = {"calls": [{"name": "ask_expert", "arguments": {"request": "How hot?"}}]}
    async with driven(app, call, {"text": "80 degrees."}, {"text": "Eighty."}) as agent:
        actions = await agent.says("How hot is tea?")
        assert words(actions) == ["Eighty."]
        assert results(actions)["ask_expert"] == "80 degrees."
        assert agent.model.messages(1)[-1]["content"] == "How hot?\n<state_update>topic: tea</state_update>"


async def test_words_that_the_caller_interrupted_are_corrected_for_callbacks(tmp_path: Path) -> None:
    source = """
        def before_model_callback(callback_context, llm_request):
            spoken = [part.text for part in callback_context.get_last_agent_output()]
            if spoken:
                return LlmResponse.from_parts([Part.from_text("You heard: " + spoken[-1])])
    """
    async with driven(
        write_app(tmp_path, callbacks={"before_model": source}), {"text": "One two three four."}
    ) as agent:
        await agent.says("Count.")
        agent.agent.heard("One two", cut=True)
        assert words(await agent.says("Stop.")) == ["You heard: One two"]
