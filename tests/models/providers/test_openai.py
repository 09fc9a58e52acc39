from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.models import Delta, ModelSettings, ProviderSettings, ToolCall, Usage, open_model
from callagent.models.providers.openai import OpenAIModel

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MESSAGES = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "book", "description": "Book", "parameters": {"type": "object"}}}


class Server:
    """An OpenAI-compatible server on loopback; keeps what it was asked."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closed = asyncio.Event()
        """A client went away while it was being answered."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        try:
            return await self.handler(request)
        except (ConnectionError, asyncio.CancelledError):
            self.closed.set()
            raise

    @asynccontextmanager
    async def model(self, **settings: Any) -> AsyncIterator[OpenAIModel]:
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        model = OpenAIModel("small", ProviderSettings(base_url=f"http://127.0.0.1:{port}/v1", **settings))
        try:
            yield model
        finally:
            await model.close()
            await runner.cleanup()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta or {}, "finish_reason": finish}],
        **more,
    }


def call(index: int | None, name: str | None = None, arguments: str = "", id: str | None = None) -> dict[str, Any]:
    fragment: dict[str, Any] = {"function": {"arguments": arguments}}
    fragment |= {"index": index} if index is not None else {}
    fragment |= {"id": id, "type": "function"} if id else {}
    if name:
        fragment["function"]["name"] = name
    return chunk({"tool_calls": [fragment]})


def streams(*chunks: object, done: bool = True) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for item in chunks:
            data = item if isinstance(item, str) else json.dumps(item)
            await response.write(f"data: {data}\n\n".encode())
        if done:
            await response.write(b"data: [DONE]\n\n")
        return response

    return handler


def answers(status: int, body: str = "", **more: Any) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, **more)

    return handler


async def ask(model: OpenAIModel, settings: ModelSettings | None = None, tools: Any = ()) -> list[Delta]:
    deltas = model.stream(MESSAGES, tools, settings or ModelSettings())
    return [delta async for delta in deltas if not delta.progress]


async def ask_server(handler: Handler, **settings: Any) -> list[Delta]:
    async with Server(handler).model(**settings) as model:
        return await ask(model)


async def test_text_is_passed_on_as_it_arrives() -> None:
    usage = {"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 3}}
    words = [chunk({"role": "assistant", "content": ""}), chunk({"content": "Good "}), chunk({"content": "morning."})]
    deltas = await ask_server(streams(*words, chunk(finish="stop"), usage))
    assert deltas == [Delta(text="Good "), Delta(text="morning."), Delta(usage=Usage(12, 3))]


async def test_first_words_come_before_the_answer_is_whole() -> None:
    go_on = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"data: {json.dumps(chunk({'content': 'One'}))}\n\n".encode())
        await go_on.wait()
        await response.write(f"data: {json.dumps(chunk({'content': ' two'}, 'stop'))}\n\n".encode())
        return response

    async with Server(handler).model() as model:
        stream = aiter(model.stream(MESSAGES, (), ModelSettings()))
        assert (await anext(stream)).text == "One"
        go_on.set()
        assert [delta.text async for delta in stream] == [" two"]


async def test_tool_calls_arrive_in_fragments_and_leave_whole() -> None:
    deltas = await ask_server(
        streams(
            chunk({"content": "One moment."}),
            call(0, "book", "", id="a"), call(0, None, '{"si'), call(1, "bill", '{"sum"', id="b"),
            call(0, None, 'ze": 4}'), call(1, None, ": 9}"), chunk(finish="tool_calls"),
        )
    )  # fmt: skip
    assert deltas == [
        Delta(text="One moment."),
        Delta(tool_call=ToolCall("a", "book", '{"size": 4}')),
        Delta(tool_call=ToolCall("b", "bill", '{"sum": 9}')),
    ]


@pytest.mark.parametrize(
    ("fragments", "calls"),
    [
        ([call(None, "book", "{}", id="a"), call(None, "bill", "{}", id="b")], [("a", "book"), ("b", "bill")]),
        ([call(None, "book", '{"a"'), call(None, None, ": 1}")], [("call_1", "book")]),
        ([call(0, "book")], [("call_1", "book")]),
    ],
)
async def test_servers_that_leave_out_indices_and_identifiers(
    fragments: list[dict[str, Any]], calls: list[tuple[str, str]]
) -> None:
    deltas = await ask_server(streams(*fragments, chunk(finish="tool_calls")))
    found = [delta.tool_call for delta in deltas if delta.tool_call]
    assert [(tool_call.id, tool_call.name) for tool_call in found] == calls
    assert all(isinstance(json.loads(tool_call.arguments), dict) for tool_call in found)


async def test_request_has_the_documented_form() -> None:
    server = Server(streams(chunk({"content": "Hi"}, "stop")))
    async with server.model(api_key="secret-key", temperature=0.4) as model:
        await ask(model, ModelSettings(max_tokens=50, json_output=True), [TOOL])
        await ask(model, ModelSettings(model="large", temperature=0.0))
    first, second = server.requests
    assert first == {
        "model": "small", "messages": MESSAGES, "tools": [TOOL], "stream": True, "temperature": 0.4, "max_tokens": 50,
        "stream_options": {"include_usage": True}, "response_format": {"type": "json_object"},
    }  # fmt: skip
    assert second["model"] == "large"
    assert second["temperature"] == 0.0
    assert "tools" not in second
    assert server.headers[0]["Authorization"] == "Bearer secret-key"


async def test_connection_is_closed_when_the_answer_is_not_wanted_any_more() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(f"data: {json.dumps(chunk({'content': 'on and on '}))}\n\n".encode())
            await asyncio.sleep(0.01)

    server = Server(handler)
    async with server.model() as model:
        stream = model.stream(MESSAGES, (), ModelSettings())
        assert (await anext(aiter(stream))).text == "on and on "
        await stream.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            await server.closed.wait()


@pytest.mark.parametrize("status", [400, 401, 404, 429])
async def test_refusal_has_status_and_reason(status: int) -> None:
    body = json.dumps({"error": {"message": "Over quota", "type": "x"}})
    with pytest.raises(ProviderRefused, match="Over quota") as caught:
        await ask_server(answers(status, body))
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("status", "raised"), [(500, ProviderError), (503, ProviderError), (504, ProviderTimeout), (302, ProviderError)]
)
async def test_server_that_fails(status: int, raised: type[ProviderError]) -> None:
    with pytest.raises(raised, match=str(status)) as caught:
        await ask_server(answers(status, "<html>sorry</html>"))
    assert not isinstance(caught.value, ProviderRefused)


async def test_answer_cut_in_the_middle() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"data: {json.dumps(chunk({'content': 'One'}))}\n\n".encode())
        assert request.transport
        request.transport.abort()
        return response

    with pytest.raises(ProviderError, match="cut"):
        await ask_server(handler)


async def test_answer_that_ends_early() -> None:
    with pytest.raises(ProviderError, match="before it was whole"):
        await ask_server(streams(chunk({"content": "One"}), done=False))


@pytest.mark.parametrize(
    "garbage",
    ["no json", "[]", '{"choices": 5}', '{"choices": [5]}', '{"choices": [{"delta": {"tool_calls": [7]}}]}',
     '{"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]}',
     '{"usage": {"prompt_tokens": "many"}}', '{"error": {"message": "out of memory"}}'],
)  # fmt: skip
async def test_garbage_is_a_provider_error(garbage: str) -> None:
    with pytest.raises(ProviderError):
        await ask_server(streams(garbage))


async def test_body_that_is_no_event_stream() -> None:
    with pytest.raises(ProviderError):
        await ask_server(answers(200, '{"choices": []}', content_type="application/json"))
    with pytest.raises(ProviderError, match="no event stream"):
        await ask_server(answers(200, "x" * (2 << 20)))


async def test_answer_without_end_is_bounded() -> None:
    words = {"content": "x" * 50_000}
    with pytest.raises(ProviderError, match="answer is longer than"):
        await ask_server(streams(*[chunk(words)] * 100))


async def silence(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(60)
    return web.Response()


async def headers_and_silence(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    await response.write(b": wait\n\n")
    await asyncio.sleep(60)
    return response


@pytest.mark.parametrize("handler", [silence, headers_and_silence])
async def test_server_that_does_not_begin_in_time(handler: Handler) -> None:
    with pytest.raises(ProviderTimeout, match="begin"):
        await ask_server(handler, first_token_timeout=0.2)


async def test_server_that_does_not_finish_in_time() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"data: {json.dumps(chunk({'content': 'One'}))}\n\n".encode())
        await asyncio.sleep(60)
        return response

    with pytest.raises(ProviderTimeout, match="finish"):
        await ask_server(handler, first_token_timeout=5, total_timeout=0.4)


def sends_and_hangs(*chunks: object, seconds: float = 0.0) -> Handler:
    """A server that sends these, so many seconds apart, and then nothing more."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for item in chunks:
            data = item if isinstance(item, str) else json.dumps(item)
            await response.write(f"data: {data}\n\n".encode())
            await asyncio.sleep(seconds)
        while True:
            # A comment keeps the connection alive; it is no token.
            await response.write(b": still there\n\n")
            await asyncio.sleep(0.05)

    return handler


async def test_server_that_stops_within_a_sentence() -> None:
    heard = []
    async with Server(sends_and_hangs(chunk({"content": "One. Tw"}))).model(next_token_timeout=0.3) as model:
        deltas = aiter(model.stream(MESSAGES, (), ModelSettings()))
        heard.append((await anext(deltas)).text)
        with pytest.raises(ProviderTimeout, match="go on"):
            await anext(deltas)
    assert heard == ["One. Tw"]


async def test_server_that_drips_a_tool_call_is_waited_for() -> None:
    fragments = [call(0, "book", "", id="a"), *(call(0, None, part) for part in ('{"s', 'ize"', ": 4}"))]
    drip = sends_and_hangs(*fragments, chunk(finish="tool_calls"), "[DONE]", seconds=0.5)
    deltas = await ask_server(drip, first_token_timeout=2, next_token_timeout=60)
    assert deltas == [Delta(tool_call=ToolCall("a", "book", '{"size": 4}'))]


async def test_nobody_listens(unused_tcp_port: int) -> None:
    model = OpenAIModel("small", ProviderSettings(base_url=f"http://127.0.0.1:{unused_tcp_port}/v1"))
    with pytest.raises(ProviderError, match="cannot be reached"):
        await ask(model)
    await model.close()


async def test_base_url_that_is_none() -> None:
    model = OpenAIModel("small", ProviderSettings(base_url="nowhere"))
    with pytest.raises(ProviderError, match="cannot be reached"):
        await ask(model)
    await model.close()


async def test_it_is_opened_by_name() -> None:
    model = open_model("openai/gpt-x", ProviderSettings(api_key="secret-key"))
    assert isinstance(model, OpenAIModel)
    assert "secret-key" not in repr(ProviderSettings(api_key="secret-key"))
    await model.close()


async def test_models_that_reason_take_an_effort_and_no_temperature() -> None:
    reason = json.dumps({"error": {"message": "Unsupported value: 'temperature' does not support 0.2"}})
    greeting = streams(chunk({"content": "Hi"}, "stop"))
    handlers = [answers(400, reason), greeting, greeting]

    async def handler(request: web.Request) -> web.StreamResponse:
        return await handlers.pop(0)(request)

    server = Server(handler)
    async with server.model(temperature=0.2, reasoning_effort="low") as model:
        assert await ask(model) == await ask(model) == [Delta("Hi")]
    assert [request.get("temperature") for request in server.requests] == [0.2, None, None]
    assert {request["reasoning_effort"] for request in server.requests} == {"low"}
