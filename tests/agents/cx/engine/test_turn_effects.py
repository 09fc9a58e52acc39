"""What becomes of a response that a callback returns, part by part, and the spans of a turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from callagent.agents import Handoff, HangUp, Listen, Say
from callagent.agents.cx import CxSession
from callagent.agents.cx.engine.turn_effects import MAX_SPANS, TurnSpans
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import results, words

TOOL = {"hours": "def hours(day: str) -> dict:\n    return {'open': day}\n"}
CALL = "Part.from_function_call('hours', {'day': 'Monday'})"
CUSTOM = "Part.from_customized_response(content='Listen.', disable_barge_in=True)"
FALLBACK = "Sorry, I had a problem just now. Could you say that again, please?"


def app_with(root: Path, parts: str, *, partial: bool = False, more: str = "") -> Path:
    """Returns the parts once, on the caller's words; the model is asked in every other case."""
    code = f"""
        def before_model_callback(callback_context, llm_request):
            if callback_context.state.get("done"):
                return None
            callback_context.state["done"] = True
            response = LlmResponse.from_parts([{parts}])
            {"response.partial = True" if partial else ""}
            {more}
            return response
    """
    files = {"agents/other/other.json": '{"displayName": "Other", "instruction": "Be other."}'}
    return write_app(root, callbacks={"before_model": code}, tools=TOOL, agent={"childAgents": ["Other"]}, more=files)


@pytest.mark.parametrize(
    ("parts", "said", "requests"),
    [
        ("Part.from_text('We are closed.')", ["We are closed."], 0),
        ("Part.from_text('A.'), Part.from_text('B.')", ["A.", "B."], 0),
        ("Part.from_text('See.'), Part.from_json('{\"card\": 1}')", ["See."], 0),
        (CUSTOM, ["Listen."], 0),
        (f"Part.from_text('First.'), {CUSTOM}", ["First.", "Listen."], 0),
        (CALL, ["Yes?"], 1),
        (f"Part.from_text('I look it up.'), {CALL}", ["I look it up.", "Yes?"], 1),
        (f"Part.from_text('I look it up.', partial=True), {CALL}", ["I look it up.", "Yes?"], 1),
        ("Part.from_text('One moment.', partial=True)", ["One moment.", "Yes?"], 1),
        ("Part.from_text('A.', partial=True), Part.from_text('B.', partial=True)", ["A.", "B.", "Yes?"], 1),
        ("Part.from_text('A.', partial=True), Part.from_text('B.')", ["A.", "B."], 0),
        ("", [FALLBACK], 0),
        ("Part.from_agent_transfer('Other')", ["Yes?"], 1),
        ("Part.from_text('I put you through.'), Part.from_agent_transfer('Other')", ["I put you through.", "Yes?"], 1),
    ],
)
async def test_parts(parts: str, said: list[str], requests: int, tmp_path: Path) -> None:
    async with driven(app_with(tmp_path, parts), {"text": "Yes?"}) as agent:
        actions = await agent.says("Hello.")
        assert words(actions) == said
        assert len(agent.model.requests) == requests
        assert isinstance(actions[-1], Listen)
        assert ("hours" in results(actions)) == ("hours" in parts)
        assert agent.agent.record().step == ("other" if "Other" in parts else "desk")


async def test_a_response_marked_partial_is_a_filler(tmp_path: Path) -> None:
    async with driven(
        app_with(tmp_path, "Part.from_text('One moment.')", partial=True), {"text": "Yes?"}, {"text": "So."}
    ) as agent:
        assert words(await agent.says("Hello.")) == ["One moment.", "Yes?"]
        await agent.says("And?")
        assert [each["content"] for each in agent.model.messages()[1:]] == ["Hello.", "One moment.", "Yes?", "And?"]


async def test_a_response_without_content_is_an_empty_one(tmp_path: Path) -> None:
    async with driven(app_with(tmp_path, "", more="response = LlmResponse()")) as agent:
        assert words(await agent.says("Hello.")) == [FALLBACK]


@pytest.mark.parametrize(
    ("escalated", "ending"), [(False, HangUp()), (True, Handoff("live_agent", "done", "bye", None, {}))]
)
async def test_text_and_end_come_in_their_order(escalated: bool, ending: Any, tmp_path: Path) -> None:
    parts = f"Part.from_text('Goodbye.'), Part.from_end_session(reason='done', escalated={escalated})"
    async with driven(app_with(tmp_path, parts)) as agent:
        actions = await agent.says("Hello.")
        assert actions.index(Say("Goodbye.")) < len(actions) - 1
        assert actions[-1] == ending


async def test_payloads_are_for_the_client_and_never_in_the_history(tmp_path: Path) -> None:
    parts = "Part.from_text('See.'), Part.from_json('[1, {\"a\": null}]'), Part.from_json('{\"card\": 1}')"
    async with driven(app_with(tmp_path, parts), {"text": "Yes?"}) as agent:
        await agent.says("Hello.")
        assert agent.agent.take_payloads() == [[1, {"a": None}], {"card": 1}]
        assert agent.agent.take_payloads() == []
        await agent.says("And?")
        assert [each["content"] for each in agent.model.messages()[1:]] == ["Hello.", "See.", "And?"]


AFTER = """
    def after_model_callback(callback_context, llm_response):
        if llm_response.content.parts[0].has_function_call("hours"):
            return LlmResponse.from_parts([Part.from_text("Let me see."), *llm_response.content.parts])
        return None
"""


async def test_what_is_put_before_a_call_of_the_model_is_said_and_the_call_is_made(tmp_path: Path) -> None:
    app = write_app(tmp_path, callbacks={"after_model": AFTER}, tools=TOOL)
    call = {"calls": [{"name": "hours", "arguments": {"day": "Monday"}}]}
    async with driven(app, call, {"text": "On Monday."}) as agent:
        actions = await agent.says("When?")
        assert words(actions) == ["Let me see.", "On Monday."]
        assert results(actions)["hours"] == {"open": "Monday"}


ROWS = {
    "one": "def before_model_callback(callback_context, llm_request):\n    set_variable('row', ['one'])\n",
    "two": (
        "def helper():\n    return 'B.'\n"
        "def before_model_callback(callback_context, llm_request):\n    get_variable('row').append('two')\n"
        "    return LlmResponse.from_parts([Part.from_text(helper())])\n"
    ),
    "three": "def before_model_callback(callback_context, llm_request):\n    get_variable('row').append('three')\n",
    "off": "raise RuntimeError('never run')\n",
}


async def test_callbacks_of_a_kind_run_in_order_until_one_answers(tmp_path: Path) -> None:
    row: list[dict[str, Any]] = [{"pythonCode": f"agents/desk/{name}.py"} for name in ("one", "off", "two", "three")]
    row[1]["disabled"] = True
    more = {f"agents/desk/{name}.py": code for name, code in ROWS.items()}
    async with driven(write_app(tmp_path, agent={"beforeModelCallbacks": row}, more=more)) as agent:
        assert words(await agent.says("Hello.")) == ["B."]
        assert agent.state["row"] == ["one", "two"]


@pytest.mark.parametrize(
    ("point", "arguments", "value", "message"),
    [
        ("before_agent", "callback_context", "'text'", "returned str; Content or None is expected"),
        (
            "before_model",
            "callback_context, llm_request",
            "Content()",
            "returned Content; LlmResponse or None is expected",
        ),
    ],
)
async def test_a_value_of_another_kind_is_an_error(
    point: str, arguments: str, value: str, message: str, tmp_path: Path
) -> None:
    code = f"def {point}_callback({arguments}):\n    return {value}\n"
    async with driven(write_app(tmp_path, callbacks={point: code})) as agent:
        assert words(await agent.says("Hello.")) == [FALLBACK]
        assert agent.agent.failure is not None
        assert agent.agent.failure.text == f"{point}_callback {message}"


INSTEAD = """
    def after_agent_callback(callback_context):
        if "secret" in "".join(part.text or "" for part in callback_context.get_last_agent_output()):
            return Content(role="model", parts=[Part.from_text("Instead.")])
"""


async def test_after_agent_content_takes_the_place_of_what_was_said(tmp_path: Path) -> None:
    app = write_app(tmp_path, callbacks={"after_agent": INSTEAD}, tools=TOOL)
    call = {"text": "A secret is coming.", "calls": [{"name": "hours", "arguments": {"day": "Monday"}}]}
    entries: list[dict[str, Any]] = [{"text": "No news."}, call, {"text": "The secret."}, {"text": "Well. So."}]
    async with driven(app, *entries) as agent:
        assert words(await agent.says("Hello.")) == ["No news."]
        assert words(await agent.says("Tell me.")) == ["Instead."]
        assert words(await agent.says("And?")) == ["Well.", "So."]
        told = [each["content"] for each in agent.model.messages() if each["role"] == "assistant"]
        assert told == ["No news.", None, "Instead."]


async def test_a_filler_does_not_wait_for_what_may_take_the_place_of_the_answer(tmp_path: Path) -> None:
    filler = """
        def before_model_callback(callback_context, llm_request):
            response = LlmResponse.from_parts([Part.from_text("One moment.")])
            response.partial = True
            return response
    """
    app = write_app(tmp_path, callbacks={"after_agent": INSTEAD, "before_model": filler})
    async with driven(app, {"text": "A secret."}) as agent:
        assert words(await agent.says("Tell me.")) == ["One moment.", "Instead."]


async def test_words_before_a_transfer_are_said_before_the_other_agents(tmp_path: Path) -> None:
    other = {"agents/other/other.json": '{"displayName": "Other", "instruction": "Be other."}'}
    app = write_app(tmp_path, callbacks={"after_agent": INSTEAD}, agent={"childAgents": ["Other"]}, more=other)
    there = {
        "text": "I put you through.",
        "calls": [{"name": "transfer_to_agent", "arguments": {"agent_name": "Other"}}],
    }
    async with driven(app, there, {"text": "Other here."}) as agent:
        assert words(await agent.says("Hello.")) == ["I put you through.", "Other here."]


def test_parts_come_in_the_order_in_which_they_began() -> None:
    now = iter([0.0, 10.0, 11.0, 12.5, 13.0, 14.0])
    spans = TurnSpans(lambda: next(now))
    spans.begin()
    with spans.measured("outer", agent="a", error=""):
        spans.add_ended("inner", 0.5, {"n": 1})
    whole = spans.root_span({"turnIndex": 1})
    assert (whole["startTime"], whole["duration"]) == ("1970-01-01T00:00:10.000000Z", "4.000000s")
    outer, inner = whole["childSpans"]
    assert (outer["name"], outer["duration"], outer["attributes"]) == ("outer", "2.000000s", {"agent": "a"})
    assert (inner["startTime"], inner["attributes"]) == ("1970-01-01T00:00:12.000000Z", {"n": 1})


def test_a_turn_has_so_many_and_the_next_begins_anew() -> None:
    spans = TurnSpans()
    for number in range(MAX_SPANS + 10):
        spans.add_ended("part", 0.0, {"number": number})
    assert len(spans.root_span({})["childSpans"]) == MAX_SPANS
    spans.begin()
    assert spans.root_span({})["childSpans"] == []


async def test_a_turn_tells_of_model_tool_and_callback(tmp_path: Path) -> None:
    tool = "def look(a: str) -> dict:\n    'Looks.'\n    import time\n    time.sleep(0.05)\n    return {}\n"
    after = "def after_agent_callback(callback_context):\n    return None\n"
    path = write_app(tmp_path, tools={"look": tool}, callbacks={"after_agent": after})
    asks = {"calls": [{"name": "look", "arguments": {"a": "x"}}]}
    async with driven(path, asks, {"text": "Yes."}) as agent:
        outputs: list[dict[str, Any]] = []

        async def send(output: dict[str, Any]) -> None:
            outputs.append(output)

        await CxSession(agent.agent).run_inputs([{"text": "Look."}], send)
    whole = json.loads(json.dumps(outputs[-1]["diagnosticInfo"]["rootSpan"]))
    assert whole["attributes"] == {"turnIndex": 1}
    children = whole["childSpans"]
    assert [each["name"] for each in children] == ["model", "tool", "model", "after_agent_callback"]
    assert children[1]["attributes"] == {"name": "look"}
    assert float(children[1]["duration"].removesuffix("s")) >= 0.05
    assert all(whole["startTime"] <= each["startTime"] <= each["endTime"] <= whole["endTime"] for each in children)


async def test_a_client_that_is_gone_ends_its_turn_and_the_next_one_is_answered(tmp_path: Path) -> None:
    async with driven(write_app(tmp_path), {"text": "First."}, {"text": "Second."}) as agent:
        session, outputs = CxSession(agent.agent), []

        async def fail(output: dict[str, Any]) -> None:
            raise ConnectionResetError("gone")

        async def send(output: dict[str, Any]) -> None:
            outputs.append(output.get("text"))

        with pytest.raises(ConnectionResetError):
            await session.run_inputs([{"text": "One."}], fail)
        await session.run_inputs([{"text": "Two."}], send)
    assert outputs == ["Second.", None]
