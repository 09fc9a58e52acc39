"""Agent-config projects through the contract that a call drives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from callagent.agents import (
    CallerTurn,
    DigitSettings,
    FunctionEnded,
    FunctionStarted,
    Handoff,
    HangUp,
    Listen,
    ListenSettings,
    ModelAnswered,
    Say,
    StepEntered,
)
from callagent.agents.adk import adk_runtime, check_adk_imports, load_adk_project
from callagent.agents.tree import LlmNode, TreeSettings
from callagent.call_info import EndReason
from callagent.errors import ProjectError
from callagent.models.scripted import ScriptedModel
from callagent.testing.in_process import InProcessPool
from callagent.testing.virtual_time import run
from tests.agents.adk.support import PROJECTS, driven, write_project
from tests.agents.driving import interrupted, replied, results, words
from tests.agents.flows.support import call_info, of

DESK = PROJECTS / "adk_desk"
PHONE = """
name: reception
instruction: Answer the telephone.
tools:
  - name: callagent.hang_up
  - name: callagent.hand_off
    args: {destination: people, method: refer, number: "+4930200", headers: {X-Topic: bicycles}}
  - name: callagent.collect_digits
    args: {max_digits: 4, end_key: "#"}
"""


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def test_a_greeting_is_said_and_the_model_knows_of_it() -> None:
    settings = TreeSettings(greeting="Alder Bicycles, good morning.")
    async with driven(DESK, {"text": "Yes?"}, settings=settings) as desk:
        assert await desk.start() == [Say("Alder Bicycles, good morning."), Listen()]
        await desk.says("hello")
        assert [m["content"] for m in desk.model.messages()[1:]] == ["Alder Bicycles, good morning.", "hello"]


async def test_without_a_greeting_the_caller_speaks_first() -> None:
    async with driven(DESK) as desk:
        assert await desk.start() == [Listen()]


async def test_a_transfer_is_not_heard_and_the_next_turn_begins_at_the_new_agent() -> None:
    transfer = {"calls": [call("transfer_to_agent", agent_name="repairs")]}
    async with driven(DESK, transfer, {"text": "What is broken?"}, {"text": "Bring it."}) as desk:
        actions = await desk.says("repair")
        assert words(actions) == ["What is broken?"]
        assert [each.step for each in of(StepEntered, actions)] == ["desk", "repairs"]
        assert actions[-1] == Listen()

        actions = await desk.says("the chain")

        assert words(actions) == ["Bring it."]
        assert of(StepEntered, actions) == []
        assert '"repairs"' in desk.model.system()
        assert (desk.agent.record().flow, desk.agent.record().step) == ("desk", "repairs")


async def test_an_answer_is_said_sentence_by_sentence_while_the_model_writes(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"root_agent.yaml": "name: a\ninstruction: x\n"})
    async with driven(project, {"text": "One. Two. Three."}) as agent:
        actions = await agent.says("hi")
    assert words(actions) == ["One.", "Two.", "Three."]
    assert len(of(ModelAnswered, actions)) == 1


async def test_functions_are_told_with_arguments_result_and_changes_of_the_state() -> None:
    look_up = {"calls": [call("look_up_bicycle", number="12")]}
    async with driven(DESK, look_up, {"text": "Found."}) as desk:
        actions = await desk.says("12")
        started, ended = of(FunctionStarted, actions)[0], of(FunctionEnded, actions)[0]
        assert (started.number, started.name, started.arguments) == (1, "look_up_bicycle", {"number": "12"})
        assert (ended.number, ended.result, ended.error) == (1, {"number": 12}, None)
        assert ended.state_changes["updated"]["bicycle"] == {"number": 12, "parts": []}
        assert desk.agent.record().state["bicycle"] == {"number": 12, "parts": []}


async def test_a_change_inside_a_value_survives() -> None:
    calls = [
        [call("look_up_bicycle", number=1)],
        [call("order_part", part="saddle")],
        [call("order_part", part="lamp")],
    ]
    entries = [{"calls": each} for each in calls]
    async with driven(DESK, *entries, {"text": "Done."}) as desk:
        await desk.says("order")
        assert desk.agent.record().state["bicycle"]["parts"] == ["saddle", "lamp"]


async def test_temporary_keys_are_gone_after_the_turn_and_user_keys_come_back_in_the_next_call() -> None:
    model = ScriptedModel.from_entries({"text": "Hello."})
    project = load_adk_project(DESK, model, InProcessPool(adk_runtime(DESK)))

    async def write_metric(name: str, value: Any) -> None: ...

    states = []
    for _ in range(2):
        agent = await project.open(call_info(), write_metric)
        states.append(agent.record().state)
        await replied(agent, CallerTurn("hi"))
        assert "temp:now" not in agent.record().state
        await agent.close()
    assert states == [{}, {"user:caller_name": "Ada"}]


async def test_a_tool_that_fails_ends_the_turn_and_not_the_call() -> None:
    async with driven(DESK, {"calls": [call("break_down")]}, {"text": "Here."}) as desk:
        actions = await desk.says("hm")
        assert words(actions) == [TreeSettings().fallback_utterance]
        assert of(FunctionEnded, actions)[0].error == "RuntimeError: the telephone is on fire"
        assert actions[-1] == Listen()
        assert words(await desk.says("hello?")) == ["Here."]


async def test_an_unknown_transfer_target_ends_the_turn_and_not_the_call() -> None:
    entries = ({"calls": [call("transfer_to_agent", agent_name="nobody")]}, {"text": "Here."})
    async with driven(DESK, *entries) as desk:
        assert words(await desk.says("hm")) == [TreeSettings().fallback_utterance]
        assert words(await desk.says("hello?")) == ["Here."]


async def test_a_provider_that_fails_is_told_and_the_call_goes_on() -> None:
    async with driven(DESK, {"error": "refused"}, {"text": "Here."}) as desk:
        actions = await desk.says("hm")
        assert words(actions) == [TreeSettings().fallback_utterance]
        assert "ProviderRefused" in str(of(ModelAnswered, actions)[0].error)
        assert words(await desk.says("hello?")) == ["Here."]


async def test_requests_to_the_model_are_limited() -> None:
    entries = [{"calls": [call("order_part", part="bell")]}] * 4
    async with driven(DESK, *entries, settings=TreeSettings(max_model_calls=3)) as desk:
        actions = await desk.says("bells")
        assert len(of(ModelAnswered, actions)) == 3
        assert words(actions) == [TreeSettings().fallback_utterance]


async def test_agents_may_pass_the_conversation_on_for_long(tmp_path: Path) -> None:
    files = {
        "root_agent.yaml": "name: a\ninstruction: x\nsub_agents: [{config_path: b.yaml}]\n",
        "b.yaml": "name: b\ninstruction: y\n",
    }
    there = {"calls": [call("transfer_to_agent", agent_name="b")]}
    back = {"calls": [call("transfer_to_agent", agent_name="a")]}
    async with driven(write_project(tmp_path, files), *([there, back] * 150), {"text": "At last."}) as agent:
        assert words(await agent.says("hm")) == ["At last."]


async def test_silence_is_told_to_the_model_and_ends_the_call_in_the_end() -> None:
    settings = TreeSettings(max_silences=2)
    async with driven(DESK, {"text": "Are you there?"}, {"text": "Hello?"}, settings=settings) as desk:
        assert words(await desk.says("")) == ["Are you there?"]
        assert desk.model.messages()[-1]["content"] == settings.no_input_text
        assert words(await desk.says("")) == ["Hello?"]
        assert await desk.says("") == [Say(settings.hangup_utterance), HangUp(EndReason.SILENCE)]


async def test_the_phone_tools_end_the_turn_in_their_own_ways(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"root_agent.yaml": PHONE})
    entries = (
        {"text": "Please enter your number.", "calls": [call("collect_digits")]},
        {"text": "I am putting you through.", "calls": [call("hand_off", reason="wants a person")]},
        {"text": "Goodbye.", "calls": [call("hang_up")]},
    )
    async with driven(project, *entries) as agent:
        actions = await agent.says("hi")
        assert words(actions) == ["Please enter your number."]
        assert actions[-1] == Listen(ListenSettings(digits=DigitSettings(max_digits=4, end_key="#")))

        actions = await agent.says(digits="123")
        assert agent.model.messages()[-1]["content"] == "123"
        headers = {"X-Topic": "bicycles"}
        assert actions[-1] == Handoff("people", "wants a person", "refer", "+4930200", headers)
        assert agent.agent.record().handoff == {"destination": "people", "reason": "wants a person"}

        actions = await agent.handoff_failed("people", "busy")
        assert "did not happen: busy" in agent.model.messages()[-1]["content"]
        assert (words(actions), actions[-1]) == (["Goodbye."], HangUp())


def test_a_caller_who_interrupts_stops_the_words_and_the_model_knows_what_was_heard(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"root_agent.yaml": "name: a\ninstruction: x\n"})

    async def invocation() -> None:
        entries = ({"text": "First we do this. Then we do that. And then the rest."}, {"text": "Yes."})
        async with driven(project, *entries) as agent:
            await interrupted(agent.agent, CallerTurn("how?"), lambda action: action == Say("First we do this."))
            agent.agent.heard("First we", cut=True)
            assert words(await agent.says("stop")) == ["Yes."]
            said = [m["content"] for m in agent.model.messages() if m["role"] != "system"]
            assert said == ["how?", "First we", "stop"]

    run(invocation())


SLOW = {
    "root_agent.yaml": "name: a\ninstruction: x\ntools: [{name: agency.tools.slow}, {name: callagent.hang_up}]\n",
    "__init__.py": "",
    "tools.py": """
        import time

        def slow(tool_context) -> str:
            time.sleep(2)
            tool_context.state["done"] = True
            return "done"
    """,
}


def test_a_function_that_runs_when_the_caller_interrupts_is_let_finish(tmp_path: Path) -> None:
    project = write_project(tmp_path, SLOW)

    async def invocation() -> None:
        async with driven(project, {"calls": [call("slow")]}, {"text": "Done already."}) as agent:
            await interrupted(agent.agent, CallerTurn("go"), lambda action: isinstance(action, FunctionStarted))
            actions = await agent.says("well?")
            assert results(actions) == {"slow": "done"}
            assert words(actions) == ["Done already."]
            assert agent.agent.record().state == {"done": True}
            assert [m["role"] for m in agent.model.messages()] == ["system", "user", "assistant", "tool", "user"]

    run(invocation())


def test_a_function_past_its_deadline_fails_and_the_call_goes_on(tmp_path: Path) -> None:
    project = write_project(tmp_path, SLOW)

    async def invocation() -> None:
        settings = TreeSettings(function_timeout=1.0)
        async with driven(project, {"calls": [call("slow")]}, {"text": "Sorry."}, settings=settings) as agent:
            actions = await agent.says("go")
            assert str(of(FunctionEnded, actions)[0].error).startswith("FunctionTimeout: ")
            assert words(await agent.says("and?")) == ["Sorry."]

    run(invocation())


async def test_hanging_up_is_not_forgotten_when_the_caller_interrupts_the_goodbye(tmp_path: Path) -> None:
    project = write_project(tmp_path, PHONE_FILES)
    async with driven(project, {"text": "Goodbye.", "calls": [call("hang_up")]}) as agent:
        await interrupted(agent.agent, CallerTurn("bye"), lambda action: isinstance(action, FunctionEnded))
        assert (await agent.says("one more thing"))[-1] == HangUp()


PHONE_FILES = {"root_agent.yaml": PHONE}


async def test_agents_at_the_same_time_are_said_one_after_the_other() -> None:
    entries = [{"text": text} for text in ("Elbrus.", "Ladoga. Deep.", "Elbrus?", "1", "2", "Goodbye.")]
    async with driven(PROJECTS / "adk_steps", *entries) as agent:
        actions = await agent.says("plan")
        assert words(actions)[:2] == ["Elbrus.", "Ladoga. Deep."]
        assert words(actions)[-2:] == ["Goodbye.", "Planned: 2"]


async def test_what_an_agent_that_is_a_tool_says_is_a_result_and_not_heard() -> None:
    entries = (
        {"calls": [call("summary", title="Emma")]},
        {"text": '{"text": "short", "stars": 4}'},
        {"text": "It is short."},
    )
    async with driven(PROJECTS / "adk_library", *entries) as agent:
        actions = await agent.says("Emma?")
        assert words(actions) == ["It is short."]
        assert results(actions) == {"summary": {"text": "short", "stars": 4}}
        assert agent.agent.record().state["summary"] == {"text": "short", "stars": 4}


async def test_a_form_that_is_not_kept_is_an_error_for_the_turn() -> None:
    entries = ({"calls": [call("summary", title="Emma")]}, {"text": "no form"})
    async with driven(PROJECTS / "adk_library", *entries) as agent:
        actions = await agent.says("Emma?")
        assert "ValidationError" in str(of(FunctionEnded, actions)[0].error)
        assert words(actions) == [TreeSettings().fallback_utterance]


@pytest.mark.parametrize(
    ("root", "code", "expected"),
    [
        ("tools: [{name: agency.code.nothing}]", "", "'agency.code.nothing' cannot be imported: AttributeError"),
        ("tools: [{name: agency.no.thing}]", "", "cannot be imported"),
        ("tools: [{name: agency.code.thing}]", "import missing_package\n", "ModuleNotFoundError"),
        ("tools: [{name: agency.code.thing}]", "import sys\nsys.exit(3)\n", "SystemExit"),
        ("tools: [{name: agency.code.os.system}]", "import os\n", "leads out of the project"),
        ("tools: [{name: agency.code.thing}]", "thing = 3\n", "is neither a tool nor a function"),
        ("tools: [{name: no_such_tool}]", "", "there is no built-in tool 'no_such_tool' here"),
        ("sub_agents: [{code: agency.code.f}]", "def f(): pass\n", "'agency.code.f' is a function"),
        ("sub_agents: [{code: agency.code.A}]", "class A: pass\n", "'agency.code.A' is a class"),
        ("agent_class: agency.code.A", "class A: pass\n", "is not a class of agents"),
        (
            "output_schema: {name: agency.code.f}",
            "def f(a, /, *, b): pass\n",
            "'agency.code.f' is neither a pydantic class",
        ),
        ("input_schema: {name: agency.code.A}", "class A: pass\n", "'agency.code.A' is neither a pydantic class"),
        ("model_code: {name: agency.code.m}", "m = 3\n", "'model_code' names neither a model's name nor an object"),
        ("after_tool_callbacks: [{name: agency.code.f}]", "f = 3\n", "'agency.code.f' is not a function"),
        ("tools: [{name: LongRunningFunctionTool, args: {func: agency.code.f}}]", "f = 3\n", "is not a function"),
        ("tools: [{name: FunctionTool}]", "", "'args.func', a dotted path, is missing"),
        ("tools: [{name: ExampleTool}]", "", "'examples' must be a list"),
        (
            "tools: [{name: agency.code.T}]",
            "from google.adk.tools import BaseTool\n\nclass T(BaseTool):\n    def __init__(self, ink): pass\n",
            "tool 'agency.code.T': ",
        ),
        ("tools: [{name: agency.code.f, args: {}}]", "def f(args): pass\n", "the function did not return a tool"),
    ],
)
async def test_references_that_lead_nowhere_name_file_and_line(
    tmp_path: Path, root: str, code: str, expected: str
) -> None:
    files = {"root_agent.yaml": f"name: a\ninstruction: x\n{root}\n", "__init__.py": "", "code.py": code}
    project = write_project(tmp_path, files)
    (found,) = (await check_adk_imports(InProcessPool(adk_runtime(project)))).errors
    assert (found.file, found.line) == ("root_agent.yaml", 3)
    assert expected in found.message


async def test_a_project_with_errors_is_not_opened(tmp_path: Path) -> None:
    project = write_project(tmp_path, {"root_agent.yaml": "name: a\n"})
    with pytest.raises(ProjectError, match="the key 'instruction' is missing"):
        load_adk_project(project, ScriptedModel.from_entries(), InProcessPool(adk_runtime(project)))


async def test_a_callback_can_be_made_with_arguments_and_have_parameters_of_other_names(tmp_path: Path) -> None:
    code = """
        def say(first, second):
            def callback(context):
                return {"role": "model", "parts": [{"text": f"{first} {second}"}]}
            return callback
    """
    made = "{name: .hooks.say, args: [{value: one}, {name: second, value: two}]}"
    files = {
        "root_agent.yaml": f"name: a\ninstruction: x\nbefore_agent_callbacks:\n  - {made}\n",
        "__init__.py": "",
        "hooks.py": code,
    }
    async with driven(write_project(tmp_path, files)) as agent:
        assert words(await agent.says("go")) == ["one two"]


async def test_the_model_is_told_the_form_of_its_answer(tmp_path: Path) -> None:
    files = {
        "root_agent.yaml": "name: a\ninstruction: x\noutput_key: k\noutput_schema: {name: .forms.Order}\n",
        "__init__.py": "",
        "forms.py": """
            from pydantic import BaseModel

            class Order(BaseModel):
                size: int
                sauce: str = "none"
        """,
    }
    async with driven(write_project(tmp_path, files), {"text": '{"size": "3", "note": "x"}'}) as agent:
        await agent.says("go")
        assert '"size"' in agent.model.system()
        # As the class has it: a number, the default, and no key that it does not know.
        assert agent.agent.record().state == {"k": {"size": 3, "sauce": "none"}}


async def test_an_answer_that_does_not_follow_its_form_fails_the_turn(tmp_path: Path) -> None:
    code = "from pydantic import BaseModel\n\nclass Order(BaseModel):\n    size: int\n"
    files = {
        "root_agent.yaml": "name: a\ninstruction: x\noutput_key: k\noutput_schema: {name: .forms.Order}\n",
        "__init__.py": "",
        "forms.py": code,
    }
    async with driven(write_project(tmp_path, files), {"text": '{"size": "many"}'}, {"text": "{}"}) as agent:
        for _ in range(2):
            assert words(await agent.says("go")) == [TreeSettings().fallback_utterance]
        assert agent.agent.record().state == {}


async def test_an_agent_class_of_the_project_may_be_one_with_a_model(tmp_path: Path) -> None:
    root = """
        name: own
        agent_class: .code.Own
        level: 3
        instruction: Be there.
        output_key: said
        tools: [{name: .code.look}]
        before_model_callbacks: [{name: .code.count}]
        generate_content_config: {temperature: 0.25}
    """
    code = """
        from google.adk.agents import LlmAgent

        class Own(LlmAgent):
            level: int = 0

        def look() -> str:
            return "seen"

        def count(callback_context, llm_request):
            callback_context.state["temperature"] = llm_request.config.temperature
    """
    project = write_project(tmp_path, {"root_agent.yaml": root, "__init__.py": "", "code.py": code})
    async with driven(project, {"calls": [call("look")]}, {"text": "Done."}) as agent:
        actions = await agent.says("go")
        assert results(actions) == {"look": "seen"}
        assert agent.agent.record().state == {"said": "Done.", "temperature": 0.25}


async def test_objects_of_code_name_models_and_say_what_only_some_models_know(tmp_path: Path) -> None:
    code = """
        from google.adk.agents import LlmAgent
        from google.adk.models.lite_llm import LiteLlm
        from google.genai import types

        small = LiteLlm(model="openai/small", api_base="http://127.0.0.1:1")
        careful = LlmAgent(
            name="careful",
            instruction="y",
            generate_content_config=types.GenerateContentConfig(
                temperature=0.5,
                safety_settings=[
                    types.SafetySetting(
                        category=types.HarmCategory.HARM_CATEGORY_DANGEROUS_CONTENT,
                        threshold=types.HarmBlockThreshold.OFF,
                    )
                ],
                thinking_config=types.ThinkingConfig(thinking_budget=0),
            ),
        )
    """
    root = "name: a\ninstruction: x\nmodel_code: {name: .code.small}\nsub_agents: [{code: .code.careful}]\n"
    project = write_project(tmp_path, {"root_agent.yaml": root, "__init__.py": "", "code.py": code})
    loaded = load_adk_project(project, ScriptedModel.from_entries(), InProcessPool(adk_runtime(project)))
    tree = await loaded.prepare()
    assert [(each.model_name, each.temperature) for each in tree.walk() if isinstance(each, LlmNode)] == [
        ("openai/small", None),
        ("openai/small", 0.5),
    ]
    await loaded.close()


async def test_calls_side_by_side_leave_the_state_that_the_last_of_them_made(tmp_path: Path) -> None:
    code = """
        import asyncio

        async def add(word: str, seconds: float, tool_context):
            await asyncio.sleep(seconds)
            tool_context.state.setdefault("words", []).append(word)
    """
    root = "name: a\ninstruction: x\ntools: [{name: .code.add}]\n"
    project = write_project(tmp_path, {"root_agent.yaml": root, "__init__.py": "", "code.py": code})
    calls = [call("add", word=word, seconds=seconds) for word, seconds in (("slow", 0.05), ("quick", 0))]
    async with driven(project, {"calls": calls}, {"text": "Done."}) as agent:
        await agent.says("go")
        assert agent.agent.record().state == {"words": ["quick", "slow"]}


async def test_an_agent_that_is_a_tool_cannot_wait_for_late_results(tmp_path: Path) -> None:
    root = "name: a\ninstruction: x\ntools: [{name: AgentTool, args: {agent: {config_path: b.yaml}}}]\n"
    inner = "name: b\ninstruction: y\ntools: [{name: get_user_choice}]\n"
    project = write_project(tmp_path, {"root_agent.yaml": root, "b.yaml": inner})
    asks = {"calls": [call("get_user_choice", options=["red", "blue"])]}
    async with driven(project, {"calls": [call("b", request="r")]}, asks, {"text": "Sorry."}) as agent:
        actions = await agent.says("go")
        assert "get_user_choice, which cannot answer here" in results(actions)["b"]
        assert words(actions) == ["Sorry."]
