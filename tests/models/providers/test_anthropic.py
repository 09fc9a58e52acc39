from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models import Delta, ModelSettings, ToolCall, Usage
from callagent.models.providers.anthropic import AnthropicModel, to_turns
from tests.models.provider_server import HELLO, ProviderServer, ask, refuses, sends

NAME = "anthropic/claude-small"
TOOL = {
    "type": "function",
    "function": {"name": "book", "description": "Book", "parameters": {"properties": {"size": {"type": "integer"}}}},
}
START = {
    "type": "message_start",
    "message": {"id": "msg_1", "role": "assistant", "content": [], "usage": {"input_tokens": 20, "output_tokens": 1}},
}
STOP = {"type": "message_stop"}


def block(index: int, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, kind: str, **content: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": {"type": kind, **content}}


def words(*texts: str, index: int = 0) -> list[dict[str, Any]]:
    begun = block(index, type="text", text="")
    return [begun, *(delta(index, "text_delta", text=text) for text in texts), end_of(index)]


def end_of(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def ended(reason: str = "end_turn", output_tokens: int = 9) -> dict[str, Any]:
    return {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": output_tokens}}


async def test_text_is_passed_on_as_it_arrives_and_tokens_are_counted() -> None:
    server = ProviderServer(sends(START, {"type": "ping"}, *words("Good ", "morning."), ended(), STOP))
    async with server.model(NAME) as model:
        assert await ask(model) == [Delta("Good "), Delta("morning."), Delta(usage=Usage(20, 9))]


async def test_tokens_from_the_cache_are_counted_as_read() -> None:
    usage = {"input_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7, "output_tokens": 1}
    start = {"type": "message_start", "message": {"usage": usage}}
    async with ProviderServer(sends(start, *words("Hi"), ended(), STOP)).model(NAME) as model:
        assert (await ask(model))[-1].usage == Usage(112, 9)


async def test_parallel_tool_calls_arrive_in_fragments_and_leave_whole() -> None:
    first, second = (
        block(1, type="tool_use", id="toolu_1", name="book", input={}),
        block(2, type="tool_use", id="toolu_2", name="bill", input={"sum": 9}),
    )
    fragments = [delta(1, "input_json_delta", partial_json=text) for text in ("", '{"si', 'ze": 4}')]
    events = [START, *words("One moment."), first, *fragments, end_of(1), second, end_of(2), ended("tool_use"), STOP]
    async with ProviderServer(sends(*events)).model(NAME) as model:
        deltas = await ask(model)
    assert deltas[:3] == [
        Delta("One moment."),
        Delta(tool_call=ToolCall("toolu_1", "book", '{"size": 4}')),
        Delta(tool_call=ToolCall("toolu_2", "bill", '{"sum": 9}')),
    ]


async def test_thoughts_and_unknown_events_are_not_spoken() -> None:
    thoughts = [block(0, type="thinking", thinking=""), delta(0, "thinking_delta", thinking="Hm."), end_of(0)]
    events = [START, *thoughts, {"type": "news"}, *words("Yes.", index=1), ended(), STOP]
    async with ProviderServer(sends(*events)).model(NAME) as model:
        assert "".join(each.text for each in await ask(model)) == "Yes."


async def test_request_has_the_documented_form() -> None:
    server = ProviderServer(sends(START, *words("Hi"), ended(), STOP))
    messages = [{"role": "system", "content": "Be brief."}, *HELLO, {"role": "system", "content": "You are in step A."}]
    async with server.model(NAME, api_key="secret-key", temperature=1.4) as model:
        await ask(model, messages, [TOOL], ModelSettings(max_tokens=50, json_output=True))
        await ask(model, settings=ModelSettings(model="claude-large", temperature=0.0))
    assert server.paths == ["/v1/messages", "/v1/messages"]
    assert server.headers[0]["x-api-key"] == "secret-key"
    assert server.headers[0]["anthropic-version"] == "2023-06-01"
    assert server.requests[0] == {
        "model": "claude-small", "max_tokens": 50, "stream": True, "temperature": 1.0,
        "system": "Be brief.\n\nYou are in step A.\n\nAnswer with one JSON object and nothing else.",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
        "tools": [{"name": "book", "description": "Book",
                   "input_schema": {"type": "object", "properties": {"size": {"type": "integer"}}}}],
    }  # fmt: skip
    assert server.requests[1] == {
        "model": "claude-large", "max_tokens": 1024, "stream": True, "temperature": 0.0,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}],
    }  # fmt: skip


async def test_model_that_takes_no_temperature_is_asked_without_it_from_then_on() -> None:
    reason = json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": "temperature: no"}})
    server = ProviderServer(refuses(400, reason), sends(START, *words("Hi"), ended(), STOP))
    async with server.model(NAME, temperature=0.2) as model:
        assert (await ask(model))[0] == Delta("Hi")
        assert (await ask(model))[0] == Delta("Hi")
    assert ["temperature" in request for request in server.requests] == [True, False, False]


@pytest.mark.parametrize(("effort", "asked"), [("none", "low"), ("minimal", "low"), ("low", "low"), ("high", "high")])
async def test_effort_goes_with_the_request(effort: str, asked: str) -> None:
    server = ProviderServer(sends(START, *words("Hi"), ended(), STOP))
    async with server.model(NAME, reasoning_effort=effort) as model:
        await ask(model)
    assert server.requests[0]["output_config"] == {"effort": asked}


async def test_model_without_efforts_is_asked_without_one_from_then_on() -> None:
    reason = {"type": "invalid_request_error", "message": "This model does not support the effort parameter."}
    refused = refuses(400, json.dumps({"type": "error", "error": reason}))
    server = ProviderServer(refused, sends(START, *words("Hi"), ended(), STOP))
    async with server.model(NAME, reasoning_effort="low", temperature=0.2) as model:
        assert (await ask(model))[0] == (await ask(model))[0] == Delta("Hi")
    assert ["output_config" in request for request in server.requests] == [True, False, False]
    assert [request["temperature"] for request in server.requests] == [0.2] * 3


def test_conversation_of_a_call_becomes_alternating_turns() -> None:
    function = {"name": "book", "arguments": '{"size": 4}'}
    turns = to_turns(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "assistant", "content": "How can I help?"},
            {"role": "user", "content": "A table"},
            {"role": "user", "content": "for four"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "call.1", "function": function}]},
            {"role": "tool", "tool_call_id": "call.1", "content": '{"ok": true}'},
            {"role": "tool", "tool_call_id": "lost", "content": "an answer to nothing"},
            {"role": "assistant", "content": "Done."},
        ]
    )
    assert turns == [
        {"role": "user", "content": [{"type": "text", "text": "(The call begins.)"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "How can I help?"}]},
        {"role": "user", "content": [{"type": "text", "text": "A table"}, {"type": "text", "text": "for four"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "call_1", "name": "book", "input": {"size": 4}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": '{"ok": true}'}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Done."}]},
        {"role": "user", "content": [{"type": "text", "text": "(The caller says nothing.)"}]},
    ]


@given(st.lists(st.tuples(st.sampled_from(["system", "user", "assistant"]), st.sampled_from(["", " ", "Hi", "{}"]))))
def test_any_conversation_alternates_from_user_to_user_without_empty_text(said: list[tuple[str, str]]) -> None:
    turns = to_turns([{"role": role, "content": text} for role, text in said])
    assert [turn["role"] for turn in turns] == [("user", "assistant")[place % 2] for place in range(len(turns))]
    assert len(turns) % 2 == 1
    assert all(part["text"].strip() for turn in turns for part in turn["content"])


async def test_base_url_may_name_the_version() -> None:
    from callagent.models import ProviderSettings

    model = AnthropicModel("claude-small", ProviderSettings("http://127.0.0.1:9/v1"))
    assert model._url == "http://127.0.0.1:9/v1/messages"
    await model.close()
