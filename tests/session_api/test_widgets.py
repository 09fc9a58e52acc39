"""Widgets: what clients of the Session API are shown, in all three ways in."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession, web

from callagent.agents.cx import check_cx_app, cx_runtime, load_cx_app
from callagent.session_api.routes import SessionRoutes
from callagent.testing.in_process import InProcessPool
from callagent.web.access import guard
from tests.agents.cx.support import driven, write_app
from tests.agents.driving import words
from tests.agents.flows.support import scripted
from tests.session_api.test_routes import SESSION, Served, calls, received
from tests.web.entry import HEADERS, access_of

PRODUCTS = [{"productId": "sku_1", "title": "Trail shoe", "price": "$110", "imageUris": ["https://example.com/1.jpg"]}]
PARAMETERS = {"type": "OBJECT", "properties": {"productDetails": {"type": "ARRAY", "items": {"type": "OBJECT"}}}}
CAROUSEL = calls("shoes", productDetails=PRODUCTS)
STATIC = {"type": "STATIC", "staticText": "Here they are."}
GENERATED = {"type": "LLM_GENERATED", "textResponseInstruction": "One sentence about the shoes."}
PRICE = """
    def price() -> dict:
        'Says what the shoes cost.'
        return {"price": 110}
"""
NOTE = """
    def after_tool_callback(tool, input, callback_context, tool_response):
        return {**tool_response, "seen": tool.name}
"""


def write(root: Path, callback: str = "", **widget: Any) -> Path:
    own = {"name": "shoes", "description": "Shows shoes.", "widgetType": "PRODUCT_CAROUSEL", "parameters": PARAMETERS}
    tool = {"displayName": "shoes", "widgetTool": {**own, **widget}}
    return write_app(
        root,
        tools={"price": PRICE},
        callbacks={"after_tool": callback} if callback else {},
        agent={"tools": ["shoes", "price", "end_session"]},
        more={"tools/shoes/shoes.json": json.dumps(tool, indent=1)},
    )


@asynccontextmanager
async def serving(path: Path, entries: Sequence[Any]) -> AsyncIterator[tuple[Served, Any]]:
    model = scripted(*entries)
    project = load_cx_app(path, model, InProcessPool(cx_runtime(path)))
    app = web.Application(middlewares=[guard(frozenset(), access_of())])
    SessionRoutes(lambda: [project]).register(app)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with ClientSession(headers=HEADERS) as client:
            yield Served(project, f"http://127.0.0.1:{runner.addresses[0][1]}", client), model
    finally:
        await runner.cleanup()
        await project.close()


def without_diagnosis(outputs: Sequence[Any]) -> list[Any]:
    return [{key: value for key, value in each.items() if key != "diagnosticInfo"} for each in outputs]


SHOWN = {"payload": {"type": "product_detail_carousel", "productDetails": PRODUCTS}, "turnIndex": 1}
OVER = {"turnIndex": 1, "turnCompleted": True}


async def test_a_request_is_answered_with_the_widget_and_the_turn_is_over(tmp_path: Path) -> None:
    entries = [CAROUSEL, {"text": "A good choice."}]
    async with serving(write(tmp_path), entries) as (served, model):
        outputs = (await served.ask({"text": "Show me shoes."}))["outputs"]
        assert without_diagnosis(outputs) == [SHOWN, OVER]
        assert len(model.requests) == 1
        (chosen,) = (await served.ask({"text": "sku_1, please."}))["outputs"]
        assert (chosen["text"], chosen["turnIndex"]) == ("A good choice.", 2)
        result = next(each for each in model.messages(-1) if each["role"] == "tool")
        assert json.loads(result["content"]) == {"status": "ok"}


async def test_a_stream_and_a_socket_have_it_too(tmp_path: Path) -> None:
    entries = [{"text": "These fit.", **CAROUSEL}] * 2
    async with serving(write(tmp_path), entries) as (served, _):
        messages = await served.ask({"text": "Show me shoes."}, method="streamRunSession")
        outputs = without_diagnosis([output for message in messages for output in message["outputs"]])
        assert outputs == [{"text": "These fit.", "turnIndex": 1}, SHOWN, OVER]
        async with served.socket() as socket:
            await socket.send_json({"config": {"session": SESSION.replace("session-1", "session-2")}})
            await socket.send_json({"realtimeInput": {"text": "Show me shoes."}})
            told = [(await received(socket))["sessionOutput"] for _ in range(3)]
        assert without_diagnosis(told) == outputs


@pytest.mark.parametrize(
    ("kind", "type_"),
    [
        ("PRODUCT_COMPARISON", "product_comparison"),
        ("PRODUCT_DETAILS", "base_product_detail"),
        ("ORDER_SUMMARY", "order_summary"),
        ("CUSTOM", None),
        ("", None),
    ],
)
async def test_the_payload_says_what_it_is(kind: str, type_: str | None, tmp_path: Path) -> None:
    async with serving(write(tmp_path, widgetType=kind), [calls("shoes", title="Shoes")]) as (served, _):
        shown, _last = (await served.ask({"text": "Show me shoes."}))["outputs"]
    assert shown["payload"] == ({"type": type_, "title": "Shoes"} if type_ else {"title": "Shoes"})


async def test_words_beside_it_are_fixed_or_the_models(tmp_path: Path) -> None:
    async with serving(write(tmp_path / "fixed", textResponseConfig=STATIC), [CAROUSEL]) as (served, _):
        shown, last = (await served.ask({"text": "Show me shoes."}))["outputs"]
    assert (shown["payload"], last["text"]) == (SHOWN["payload"], "Here they are.")
    entries = [calls("shoes", productDetails=PRODUCTS, text_response="Light ones.")]
    async with serving(write(tmp_path / "own", textResponseConfig=GENERATED), entries) as (served, model):
        shown, last = (await served.ask({"text": "Show me shoes."}))["outputs"]
        (offered,) = (each["function"] for each in model.requests[0][1] if each["function"]["name"] == "shoes")
    assert (shown["payload"], last["text"]) == (SHOWN["payload"], "Light ones.")
    assert offered["parameters"]["properties"]["text_response"]["description"] == "One sentence about the shoes."
    assert offered["parameters"]["required"] == ["text_response"]
    assert offered["description"] == "Shows shoes."


async def test_beside_another_tool_the_model_answers_and_callbacks_are_around_it(tmp_path: Path) -> None:
    both = {"calls": [*CAROUSEL["calls"], *calls("price")["calls"]]}
    async with serving(write(tmp_path, NOTE), [both, {"text": "They cost 110 dollars."}]) as (served, model):
        shown, last = (await served.ask({"text": "Show me shoes, and what they cost."}))["outputs"]
        assert (shown["payload"], last["text"]) == (SHOWN["payload"], "They cost 110 dollars.")
        assert len(model.requests) == 2
        results = [json.loads(each["content"]) for each in model.messages(-1) if each["role"] == "tool"]
    assert results == [{"status": "ok", "seen": "shoes"}, {"price": 110, "seen": "price"}]


async def test_on_the_telephone_there_is_none_and_check_tells(tmp_path: Path) -> None:
    app = write(tmp_path, dataMapping={"sourceToolName": "price"}, uiConfig={"color": "blue"})
    found = [(each.rule, each.message.partition(":")[0]) for each in check_cx_app(app).warnings]
    assert found == [
        ("CX013", "widgets work in sessions only"),
        ("CX011", "'dataMapping' has no effect here"),
        ("CX011", "'uiConfig' has no effect here"),
    ]
    async with driven(app, CAROUSEL, {"text": "I cannot show you any."}) as agent:
        assert words(await agent.says("Show me shoes.")) == ["I cannot show you any."]
