"""Events from outside and the data of handoffs, over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from callagent.agents.flows import ExternalExchange
from callagent.web import ServerHooks, make_app
from tests.web.entry import HEADERS, access_of


@asynccontextmanager
async def served(external: ExternalExchange) -> AsyncIterator[str]:
    hooks = ServerHooks(lambda leg: None, lambda: True, lambda: False, lambda: "", external=external)
    runner = web.AppRunner(make_app(hooks, access=access_of()))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def ask(method: str, url: str, **more: Any) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.request(method, url, **more) as response:
        return response.status, await response.text()


async def test_an_event_comes_in_through_a_tunnel_for_who_knows_its_identifier() -> None:
    external, seen = ExternalExchange(), list[Any]()
    identifier = external.expect("call-1", seen.append, send_to_llm=False)
    async with served(external) as url:
        path, tunnel = f"{url}/external-events", {"X-Forwarded-For": "198.51.100.7"}
        assert (await ask("POST", f"{path}?id={identifier}", data="paid", headers=tunnel))[0] == 202
        assert (await ask("POST", path, json={"event_id": identifier, "paid": 5}, headers=tunnel))[0] == 202
        assert (await ask("POST", f"{path}?id=guessed", data="x", headers=tunnel))[0] == 404
        assert (await ask("POST", path, json=[1], headers=tunnel))[0] == 404
        broken = {"Content-Type": "application/json", **tunnel}
        assert (await ask("POST", f"{path}?id={identifier}", data="{", headers=broken))[0] == 400
        assert (await ask("POST", f"{path}?id={identifier}", data="x" * 100_000))[0] == 413
    assert [event["data"] for event in seen] == ["paid", {"event_id": identifier, "paid": 5}]


async def test_the_data_of_a_handoff_is_for_who_may_see_it() -> None:
    external = ExternalExchange()
    external.store_handoff("call-1", "abc", {"name": "Ada"})
    async with served(external) as url:
        for query in ("id=call-1", "shared_id=abc"):
            status, text = await ask("GET", f"{url}/api/handoffs?{query}", headers=HEADERS)
            assert (status, '"name": "Ada"' in text) == (200, True)
        assert (await ask("GET", f"{url}/api/handoffs?id=call-2", headers=HEADERS))[0] == 404
        assert (await ask("GET", f"{url}/api/handoffs?id=call-1"))[0] == 401


@pytest.mark.parametrize("method", ["GET", "DELETE"])
async def test_events_are_posted(method: str) -> None:
    async with served(ExternalExchange()) as url:
        assert (await ask(method, f"{url}/external-events?id=x"))[0] == 405


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("application/json", b"[" * 30_000), ("application/json; charset=nonsense", b"{}"),
        ("text/plain; charset=utf-16", b"\xff"), ("application/json", b"\xff\xfe"),
    ],
)  # fmt: skip
async def test_no_event_makes_the_server_fail(kind: str, data: bytes) -> None:
    async with served(ExternalExchange()) as url:
        headers = {"Content-Type": kind}
        assert (await ask("POST", f"{url}/external-events?id=x", data=data, headers=headers))[0] < 500
