"""What every provider behind HTTP does when it is not answered as it should be."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from callagent.errors import ProviderError, ProviderRefused, ProviderTimeout
from callagent.models import Delta, ModelSettings, ProviderSettings, open_model
from tests.models.provider_server import HELLO, ProviderServer, ask, refuses, repeats, sends
from tests.models.providers import test_anthropic as anthropic
from tests.models.providers import test_gemini as gemini

OPENAI = {"choices": [{"index": 0, "delta": {"content": "on "}, "finish_reason": None}]}
BEGINNINGS: dict[str, list[dict[str, Any]]] = {
    "anthropic/x": [anthropic.START, *anthropic.words()[:1], anthropic.delta(0, "text_delta", text="on ")],
    "gemini/x": [gemini.content({"text": "on "})],
    "openai/x": [OPENAI],
}
each_provider = pytest.mark.parametrize("name", BEGINNINGS)


@each_provider
async def test_an_answer_that_is_not_wanted_any_more_leaves_no_open_socket(name: str) -> None:
    server = ProviderServer(repeats(*BEGINNINGS[name]))
    async with server.model(name) as model:
        stream = model.stream(HELLO, (), ModelSettings())
        assert await anext(aiter(stream)) == Delta("on ")
        await stream.aclose()  # type: ignore[attr-defined]
        async with asyncio.timeout(60):
            await server.closed.wait()
        assert server.open_connections == 0


@each_provider
async def test_a_cancelled_task_leaves_no_open_socket(name: str) -> None:
    server = ProviderServer(repeats(*BEGINNINGS[name]))
    async with server.model(name) as model:
        asking = asyncio.create_task(ask(model))
        async with asyncio.timeout(60):
            while not server.requests:
                await asyncio.sleep(0.01)
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            await server.closed.wait()
        assert server.open_connections == 0


@each_provider
@pytest.mark.parametrize("status", [400, 401, 404, 429])
async def test_refusal_has_status_reason_and_how_long_to_wait(name: str, status: int) -> None:
    body = json.dumps({"error": {"message": "Over quota", "type": "x"}})
    async with ProviderServer(refuses(status, body, headers={"Retry-After": "7"})).model(name) as model:
        with pytest.raises(ProviderRefused, match="Over quota") as caught:
            await ask(model)
    assert (caught.value.status, caught.value.retry_after) == (status, 7.0)


@each_provider
@pytest.mark.parametrize(("status", "raised"), [(500, ProviderError), (529, ProviderError), (504, ProviderTimeout)])
async def test_server_that_fails(name: str, status: int, raised: type[ProviderError]) -> None:
    async with ProviderServer(refuses(status, "<html>sorry</html>")).model(name) as model:
        with pytest.raises(raised, match=str(status)) as caught:
            await ask(model)
    assert not isinstance(caught.value, ProviderRefused)


@each_provider
async def test_error_within_the_stream(name: str) -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    async with ProviderServer(sends(*BEGINNINGS[name], error)).model(name) as model:
        with pytest.raises(ProviderError, match="Overloaded"):
            await ask(model)


@each_provider
async def test_answer_cut_in_the_middle(name: str) -> None:
    async with ProviderServer(sends(*BEGINNINGS[name], cut=True)).model(name) as model:
        with pytest.raises(ProviderError, match="cut"):
            await ask(model)


@each_provider
async def test_answer_that_ends_early(name: str) -> None:
    async with ProviderServer(sends(*BEGINNINGS[name])).model(name) as model:
        with pytest.raises(ProviderError, match="before it was whole"):
            await ask(model)


@each_provider
@pytest.mark.parametrize(
    "garbage",
    ["no json", "[]", "[" * 60_000, '{"candidates": [5], "choices": [5], "type": "content_block_delta"}',
     '{"candidates": 5, "choices": 5, "type": "message_start"}',
     '{"candidates": [{"content": {"parts": [{"functionCall": {}}]}}], "choices": [{"delta": 1}], '
     '"type": "content_block_start", "index": "x"}'],
)  # fmt: skip
async def test_stream_of_something_else(name: str, garbage: str) -> None:
    async with ProviderServer(sends(garbage)).model(name) as model:
        with pytest.raises(ProviderError, match="something that is no"):
            await ask(model)


@each_provider
async def test_server_that_does_not_begin_in_time(name: str) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        raise AssertionError

    async with ProviderServer(handler).model(name, first_token_timeout=0.2) as model:
        with pytest.raises(ProviderTimeout, match="begin"):
            await ask(model)


@each_provider
async def test_server_that_does_not_finish_in_time(name: str) -> None:
    async with ProviderServer(repeats(*BEGINNINGS[name])).model(name, total_timeout=0.4) as model:
        with pytest.raises(ProviderTimeout, match="finish"):
            await ask(model)


@each_provider
async def test_nobody_listens(name: str, unused_tcp_port: int) -> None:
    model = open_model(name, ProviderSettings(f"http://127.0.0.1:{unused_tcp_port}"))
    with pytest.raises(ProviderError, match="cannot be reached"):
        await ask(model)
    await model.close()
