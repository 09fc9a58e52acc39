from __future__ import annotations

import json
from typing import Any

import pytest

from callagent.errors import AnswerWithheld, ProviderError
from callagent.models import Delta, ModelSettings, ToolCall, Usage
from tests.models.provider_server import HELLO, ProviderServer, ask, sends

NAME = "gemini/gemini-3-flash"
PARAMETERS = {"type": "object", "properties": {"size": {"type": "integer"}}, "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "book", "description": "Book", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "hang_up", "parameters": {"type": "object", "properties": {}}}},
]


def content(*parts: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": list(parts)}, "index": 0}
    return {"candidates": [candidate | ({"finishReason": finish} if finish else {})], **more}


COUNTED = {"promptTokenCount": 20, "candidatesTokenCount": 5, "thoughtsTokenCount": 4, "totalTokenCount": 29}
GREETING = content({"text": "Hi"}, finish="STOP")


async def test_text_is_passed_on_as_it_arrives_and_tokens_are_counted() -> None:
    thought = content({"text": "Hm.", "thought": True})
    last = content({"text": "morning."}, finish="STOP", usageMetadata=COUNTED)
    async with ProviderServer(sends(thought, content({"text": "Good "}), last)).model(NAME) as model:
        assert await ask(model) == [Delta("Good "), Delta("morning."), Delta(usage=Usage(20, 9))]


async def test_parallel_calls_get_identifiers_of_their_own() -> None:
    calls = [{"functionCall": {"name": "book", "args": {"size": 4}}}, {"functionCall": {"name": "hang_up"}}]
    async with ProviderServer(sends(content(*calls), GREETING)).model(NAME) as model:
        first = [delta.tool_call for delta in await ask(model) if delta.tool_call]
        second = [delta.tool_call for delta in await ask(model) if delta.tool_call]
    assert [(call.name, call.arguments) for call in first] == [("book", '{"size": 4}'), ("hang_up", "{}")]
    assert len({call.id for call in first + second}) == 4


async def test_signature_of_a_call_goes_back_with_it() -> None:
    call = {"functionCall": {"name": "book", "args": {"size": 4}, "id": "c1"}, "thoughtSignature": "c2ln"}
    server = ProviderServer(sends(content(call, finish="STOP")), sends(GREETING))
    async with server.model(NAME) as model:
        assert (await ask(model)) == [Delta(tool_call=ToolCall("c1", "book", '{"size": 4}'))]
        await ask(model, conversation("c1"))
        await ask(model, conversation("from-elsewhere"))
    signatures = [request["contents"][1]["parts"][0]["thoughtSignature"] for request in server.requests[1:]]
    assert signatures == ["c2ln", "skip_thought_signature_validator"]


def conversation(call_id: str, result: str = "booked") -> list[dict[str, Any]]:
    function = {"name": "book", "arguments": '{"size": 4}'}
    return [
        *HELLO,
        {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]},
        {"role": "tool", "tool_call_id": call_id, "content": result},
    ]


@pytest.mark.parametrize(
    ("result", "response"), [("booked", {"result": "booked"}), ('{"a": 1}', {"a": 1}), ("[1]", {"result": [1]})]
)
async def test_result_of_a_call_is_an_object(result: str, response: dict[str, Any]) -> None:
    server = ProviderServer(sends(GREETING))
    async with server.model("gemini/gemini-2.5-flash") as model:
        await ask(model, conversation("c1", result))
    assert server.requests[0]["contents"] == [
        {"role": "user", "parts": [{"text": "Hello"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "book", "args": {"size": 4}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "book", "response": response}}]},
    ]


async def test_request_has_the_documented_form() -> None:
    server = ProviderServer(sends(GREETING))
    greeted = [{"role": "system", "content": "Be brief."}, {"role": "assistant", "content": "Good morning."}]
    async with server.model(NAME, api_key="secret-key", temperature=0.4, reasoning_effort="low") as model:
        await ask(model, greeted, TOOLS, ModelSettings(max_tokens=50, json_output=True))
        await ask(model, settings=ModelSettings(model="gemini-2.5-flash", json_output=True))
    assert server.paths == [
        f"/v1beta/models/{name}:streamGenerateContent?alt=sse" for name in ("gemini-3-flash", "gemini-2.5-flash")
    ]
    assert server.headers[0]["x-goog-api-key"] == "secret-key"
    assert server.requests[0] == {
        "contents": [
            {"role": "user", "parts": [{"text": "(The call begins.)"}]},
            {"role": "model", "parts": [{"text": "Good morning."}]},
            {"role": "user", "parts": [{"text": "(The caller says nothing.)"}]},
        ],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [
            {"functionDeclarations": [
                {"name": "book", "description": "Book", "parametersJsonSchema": PARAMETERS},
                {"name": "hang_up", "description": ""},
            ]}
        ],
        "generationConfig": {"temperature": 0.4, "maxOutputTokens": 50, "thinkingConfig": {"thinkingLevel": "low"}},
    }  # fmt: skip
    assert server.requests[1]["generationConfig"] == {
        "temperature": 0.4,
        "responseMimeType": "application/json",
        "thinkingConfig": {"thinkingBudget": 1024},
    }


@pytest.mark.parametrize(
    "event",
    [
        {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}},
        {"candidates": [{"finishReason": "SAFETY", "index": 0}]},
        content(finish="MALFORMED_FUNCTION_CALL"),
    ],
)
async def test_answer_that_the_provider_withholds(event: dict[str, Any]) -> None:
    async with ProviderServer(sends(event)).model(NAME) as model:
        with pytest.raises(ProviderError, match=r"PROHIBITED_CONTENT|SAFETY|MALFORMED"):
            await ask(model)


async def test_safety_settings_go_with_the_request_and_cut_an_answer_that_has_begun() -> None:
    settings = ModelSettings(safety={"HARM_CATEGORY_HARASSMENT": "BLOCK_LOW_AND_ABOVE"})
    begun = content({"text": "You are a"})
    cut = {"candidates": [{"finishReason": "SAFETY", "index": 0}]}
    server = ProviderServer(sends(begun, cut), sends(begun, cut))
    async with server.model(NAME) as model:
        with pytest.raises(AnswerWithheld, match="SAFETY"):
            await ask(model, settings=settings)
        # Nobody asked for a filter: what was said was said.
        assert await ask(model) == [Delta("You are a")]
    wanted = [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_LOW_AND_ABOVE"}]
    assert [request.get("safetySettings") for request in server.requests] == [wanted, None]


async def test_arguments_keep_their_letters() -> None:
    call = {"functionCall": {"name": "book", "args": {"name": "Jürgen"}}}
    async with ProviderServer(sends(content(call, finish="STOP"))).model(NAME) as model:
        (delta,) = await ask(model)
    assert delta.tool_call
    assert json.loads(delta.tool_call.arguments) == {"name": "Jürgen"}
    assert "ü" in delta.tool_call.arguments
