"""What an app says of its calls: errors, deadlines, examples, limits; and what its code sees of an interruption."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import Handoff, HangUp, Listen
from callagent.agents.cx import check_cx_app
from callagent.agents.tree import TreeSettings
from callagent.agents.tree.events import responses
from callagent.workers import ProcessPool
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import results, words

FAILING = {"before_model": "def before_model_callback(callback_context, llm_request):\n    raise KeyError('x')\n"}
OURS = "Sorry, I had a problem just now. Could you say that again, please?"
MESSAGES = {"en-US": "Again, please.", "de-DE": "Noch einmal, bitte."}


@pytest.mark.parametrize(
    ("errors", "said", "ending"),
    [
        ({}, OURS, Listen),
        ({"errorHandlingStrategy": "NONE"}, OURS, Listen),
        ({"errorHandlingStrategy": "FALLBACK_RESPONSE"}, OURS, Listen),
        (
            {
                "errorHandlingStrategy": "FALLBACK_RESPONSE",
                "fallbackResponseConfig": {"customFallbackMessages": MESSAGES},
            },
            "Noch einmal, bitte.",
            Listen,
        ),
        ({"errorHandlingStrategy": "END_SESSION"}, OURS, HangUp),
        ({"errorHandlingStrategy": "END_SESSION", "endSessionConfig": {"escalateSession": True}}, OURS, Handoff),
    ],
)
async def test_what_an_error_does(errors: dict[str, Any], said: str, ending: type, tmp_path: Path) -> None:
    app = {"errorHandlingSettings": errors, "languageSettings": {"defaultLanguageCode": "de-DE"}}
    async with driven(write_app(tmp_path, app=app, callbacks=FAILING)) as agent:
        actions = await agent.says("Hello.")
        assert words(actions) == [said]
        assert isinstance(actions[-1], ending)
        if isinstance(actions[-1], Handoff):
            assert (actions[-1].destination, actions[-1].method) == ("live_agent", "bye")


async def test_a_model_that_fails_is_an_error_too_and_a_good_turn_starts_the_count_anew(tmp_path: Path) -> None:
    errors = {"errorHandlingStrategy": "FALLBACK_RESPONSE", "fallbackResponseConfig": {"maxFallbackAttempts": 1}}
    entries: list[dict[str, Any]] = [{"error": "500"}, {"text": "Yes?"}, {"error": "500"}, {"error": "500"}]
    async with driven(write_app(tmp_path, app={"errorHandlingSettings": errors}), *entries) as agent:
        endings = [(await agent.says("Hello."))[-1] for _ in range(4)]
        assert [type(ending) for ending in endings] == [Listen, Listen, Listen, HangUp]


def with_timeout(app: Path, tool: str, timeout: str) -> Path:
    file = app / f"tools/{tool}/{tool}.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "timeout": timeout}))
    return app


@pytest.mark.parametrize(("setting", "timeout", "ends"), [(0.5, "10s", True), (10.0, "0.5s", False)])
async def test_a_tool_has_the_deadline_that_it_names(setting: float, timeout: str, ends: bool, tmp_path: Path) -> None:
    tools = {"slow": "import time\n\ndef slow() -> dict:\n    time.sleep(2)\n    return {'done': True}\n"}
    app = with_timeout(write_app(tmp_path, tools=tools), "slow", timeout)
    settings = TreeSettings(function_timeout=setting)
    entries = [{"calls": [{"name": "slow"}]}, {"text": "So."}]
    async with driven(app, *entries, settings=settings, make_pool=ProcessPool) as agent:
        answer = results(await agent.says("Go."))["slow"]
        assert answer == {"done": True} if ends else "FunctionTimeout" in answer["error"]


EXAMPLE = {
    "displayName": "A bill",
    "messages": [
        {"role": "user", "chunks": [{"defaultVariables": {"known": True}}, {"text": "How much is it?"}]},
        {"role": "agent", "chunks": [{"toolCall": {"tool": "apps/a/tools/look_up", "args": {"month": "May"}}}]},
        {"role": "agent", "chunks": [{"toolResponse": {"displayName": "look_up", "response": {"euros": 7}}}]},
        {
            "role": "agent",
            "chunks": [{"text": "Seven euros."}, {"payload": {"card": 1}}, {"updatedVariables": {"n": 2}}],
        },
        {"role": "agent", "chunks": [{"agentTransfer": {"targetAgent": "apps/a/agents/other"}}]},
    ],
}


async def test_examples_are_shown_to_the_agent_that_answers_first_in_them(tmp_path: Path) -> None:
    more = {
        "agents/other/other.json": json.dumps({"displayName": "Other", "instruction": "Be other."}),
        "examples/bill/bill.json": json.dumps(EXAMPLE),
        "examples/far/far.json": json.dumps({**EXAMPLE, "displayName": "Far", "entryAgent": "Other"}),
        "examples/old/old.json": json.dumps({**EXAMPLE, "displayName": "Old", "invalid": True}),
        "examples/lost/lost.json": json.dumps({**EXAMPLE, "entryAgent": "nobody"}),
    }
    tools = {"look_up": "def look_up(month: str) -> dict:\n    'Looks a bill up.'\n    return {}\n"}
    app = write_app(tmp_path, tools=tools, agent={"childAgents": ["other"]}, more=more)
    there = {"calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "other"}}]}
    async with driven(app, there, {"text": "Yes?"}) as agent:
        await agent.says("Hello.")
        first, second = (agent.model.messages(index)[0]["content"] for index in range(2))
    assert "Example 1, A bill:\nThe variable known is true\nCaller: How much is it?\n" in first
    assert 'Agent calls look_up({"month": "May"})\nlook_up answers {"euros": 7}\nAgent: Seven euros.\n' in first
    assert 'Agent shows {"card": 1}\nThe variable n is 2\nAgent gives the conversation to other' in first
    assert "Far" not in first
    assert "Example 1, Far:" in second
    assert "Old" not in first + second
    (warning,) = check_cx_app(app).warnings
    assert str(warning) == "examples/lost/lost.json:1: [CX004] 'entryAgent' is 'nobody', which is not in agents/"


async def test_code_sees_what_was_heard_of_an_interrupted_answer_and_when(tmp_path: Path) -> None:
    source = """
        def before_model_callback(callback_context, llm_request):
            told = [[event.interrupted, event.timestamp, event.content.parts[0].text]
                    for event in callback_context.events if event.is_agent()]
            callback_context.state["told"] = told
    """
    app = write_app(tmp_path, callbacks={"before_model": source})
    async with driven(app, {"text": "One two three four."}, {"text": "Yes?"}, {"text": "So."}) as agent:
        began = int(time.time())
        await agent.says("Count.")
        agent.agent.heard("One two", cut=True)
        await agent.says("Stop.")
        await agent.says("And?")
        (cut, at, text), (whole, _, _) = agent.state["told"]
        assert (cut, text, whole) == (True, "One two", None)
        assert began <= at <= time.time()


def test_more_than_the_platform_takes_is_told(tmp_path: Path) -> None:
    tools = {f"t{number}": f"def t{number}() -> dict:\n    'Does it.'\n    return {{}}\n" for number in range(201)}
    variables = [{"name": f"v{number}", "schema": {}} for number in range(101)]
    more = {f"agents/a{number}/a{number}.json": json.dumps({"displayName": f"A{number}"}) for number in range(100)}
    file = "agents/desk/before_model_callbacks/before_model_callbacks_01/python_code.py"
    app = write_app(
        tmp_path,
        app={"variableDeclarations": variables},
        tools=tools,
        callbacks={"before_model": "def before_model_callback(callback_context, llm_request):\n    pass\n"},
        agent={"beforeModelCallbacks": [{"pythonCode": file}] * 51},
        more=more,
    )
    told = {(each.file, each.message) for each in check_cx_app(app).warnings}
    assert told == {
        ("app.json", "101 agents; the platform takes 100"),
        ("app.json", "201 tools; the platform takes 200"),
        ("app.json", "101 variables; the platform takes 100"),
        ("agents/desk/desk.json", "203 tools; the platform takes 100 per agent"),
        ("agents/desk/desk.json", "more than 50 callbacks; the platform takes 50 per agent"),
    }


ASKS = {
    "before_model": """
    def before_model_callback(callback_context, llm_request):
        return LlmResponse.from_parts([Part.from_customized_response(content="Your number?", enable_dtmf=True)])
"""
}


@pytest.mark.parametrize(
    ("profile", "barge_in", "keys"),
    [({}, None, True), ({"disableBargeInControl": True}, False, True), ({"disableDtmf": True}, None, False)],
)
async def test_what_the_channel_says_of_keys_and_interruptions(
    profile: dict[str, Any], barge_in: bool | None, keys: bool, tmp_path: Path
) -> None:
    async with driven(write_app(tmp_path, app={"defaultChannelProfile": profile}, callbacks=ASKS)) as agent:
        ending: Any = (await agent.says("Hello."))[-1]
        assert ending.settings.barge_in is barge_in
        assert (ending.settings.digits is not None) is keys


def test_what_nothing_here_heeds_is_told(tmp_path: Path) -> None:
    tools = {
        "look": "def look(a: str = None, b: int = 'x', c: float = 1, d: dict | str = '',\n"
        "         *, e: bool = None) -> dict:\n    'Looks.'\n    return {}\n"
    }
    app = {
        "audioProcessingConfig": {"synthesizeSpeechConfigs": {"en-US": {"voice": "x"}}},
        "loggingSettings": {"audioRecordingConfig": {"gcsBucket": "gs://b"}, "redactionConfig": {}},
    }
    file = "agents/desk/code.py"
    callback = {"pythonCode": file, "proactiveExecutionEnabled": True}
    more = {file: "def after_model_callback(callback_context, llm_response):\n    pass\n"}
    path = write_app(tmp_path, app=app, agent={"afterModelCallbacks": [callback]}, tools=tools, more=more)
    told = [
        (each.file.rpartition("/")[2], each.line, each.message.split(":")[0]) for each in check_cx_app(path).warnings
    ]
    assert sorted(told) == [
        (
            "app.json",
            1,
            "'audioRecordingConfig' names a folder below the setting records.recordings, if that is set",
        ),
        ("app.json", 1, "'synthesizeSpeechConfigs' has no effect here"),
        ("desk.json", 1, "'proactiveExecutionEnabled' has no effect here"),
        ("python_code.py", 1, "'a' has the default None"),
        ("python_code.py", 1, "'b' is hinted as int; its default 'x' is not one"),
        ("python_code.py", 2, "'e' has the default None"),
    ]


SEARCH = """
    import os
    import time

    def search(word: str) -> dict:
        while not os.path.exists("GATE"):
            time.sleep(0.02)
        context.state["places"].append(word)
        set_variable("found", word)
        return {"found": word, "said": context.get_last_user_input()[0].text}
"""
LOOKS_ON = {
    "before_model": """
    def before_model_callback(callback_context, llm_request):
        callback_context.state["asked"] = callback_context.state.get("asked", 0) + 1
        if callback_context.state.get("found"):
            return LlmResponse.from_parts([Part.from_text(f"Found in {callback_context.state['places']}.")])
"""
}


async def test_the_conversation_goes_on_while_an_asynchronous_tool_runs(tmp_path: Path) -> None:
    variables = [{"name": "places", "schema": {"type": "ARRAY", "default": ["here"]}}]
    gate = tmp_path / "gate"
    search = SEARCH.replace("GATE", str(gate))
    app = write_app(tmp_path, app={"variableDeclarations": variables}, tools={"search": search}, callbacks=LOOKS_ON)
    file = app / "tools/search/search.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "executionType": "ASYNCHRONOUS"}))
    searches = {"calls": [{"name": "search", "arguments": {"word": "sea"}}]}
    entries: list[dict[str, Any]] = [searches, {"text": "I am looking."}, {"text": "Not yet."}]
    settings = TreeSettings(function_timeout=2.0)
    async with driven(app, *entries, settings=settings, make_pool=ProcessPool) as agent:
        began = time.monotonic()
        assert words(await agent.says("Search.")) == ["I am looking."]
        assert words(await agent.says("And?")) == ["Not yet."]
        # It may take longer than others.
        await asyncio.sleep(began + 2.5 - time.monotonic())
        assert "found" not in agent.state
        gate.touch()
        async with asyncio.timeout(60):
            while "found" not in agent.state:
                await asyncio.sleep(0.05)
        assert agent.state["asked"] == 3
        late = await agent.says("And now?")
        assert words(late) == ["Found in ['here', 'sea']."]
        assert results(late)["search"] == {"found": "sea", "said": "Search."}
        assert agent.state["asked"] == 4


async def test_an_asynchronous_tool_that_dies_is_an_error_and_nothing_else(tmp_path: Path) -> None:
    app = write_app(
        tmp_path, tools={"search": "import os\n\ndef search() -> dict:\n    os._exit(3)\n"}, callbacks=LOOKS_ON
    )
    file = app / "tools/search/search.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "executionType": "ASYNCHRONOUS"}))
    entries = [{"calls": [{"name": "search"}]}, {"text": "I am looking."}, {"text": "So."}, {"text": "Well."}]
    async with driven(app, *entries, make_pool=ProcessPool) as agent:
        begun = await agent.says("Search.")
        assert words(begun) == ["I am looking."]
        events = agent.agent.conversation.events
        async with asyncio.timeout(60):
            while not any(event.author == "user" and responses(event.content) for event in events):
                await asyncio.sleep(0.01)
        actions = await agent.says("And?")
        assert words(actions) == ["So."]
        # The first turn has it where the worker died before the model had spoken.
        assert "WorkerDied" in results([*begun, *actions])["search"]["error"]
        assert agent.state["asked"] == 3
