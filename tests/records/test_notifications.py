from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from callagent.records.notifications import SIGNATURE, JsonLines, WebhookReceiver, Webhooks
from tests.end_to_end.scripted import until


@dataclass
class Listener:
    """Takes events; answers with the given statuses first."""

    statuses: list[int] = field(default_factory=list)
    requests: list[tuple[bytes, str]] = field(default_factory=list)
    url: str = ""

    async def take(self, request: web.Request) -> web.Response:
        self.requests.append((await request.read(), request.headers[SIGNATURE]))
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)

    async def until(self, number: int) -> None:
        async with asyncio.timeout(20):
            while len(self.requests) < number:
                await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(*statuses: int) -> AsyncIterator[Listener]:
    listener = Listener(list(statuses))
    app = web.Application()
    app.router.add_post("/", listener.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    listener.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    try:
        yield listener
    finally:
        await runner.cleanup()


async def test_an_event_is_signed_so_that_the_receiver_can_tell() -> None:
    async with listening() as listener:
        webhooks = Webhooks([WebhookReceiver(listener.url, "hush")])
        await webhooks.start()
        webhooks.send("call.ended", {"id": "c1"})
        await listener.until(1)
        await webhooks.close()
        body, signed = listener.requests[0]
        sent = json.loads(body)
        assert (sent["type"], sent["data"]) == ("call.ended", {"id": "c1"})
        parts = dict(part.split("=") for part in signed.split(","))
        assert parts["v1"] == hmac.new(b"hush", parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()


async def test_a_receiver_that_fails_gets_the_same_event_again_and_then_the_next() -> None:
    async with listening(500, 503, 429) as listener:
        webhooks = Webhooks([WebhookReceiver(listener.url, "hush")], waits=(0.01, 0.01, 0.01))
        await webhooks.start()
        webhooks.send("call.started", {"id": "c1"})
        webhooks.send("call.ended", {"id": "c1"})
        await listener.until(5)
        await webhooks.close()
        ids = [json.loads(body)["id"] for body, _ in listener.requests]
        assert len(set(ids[:4])) == 1
        assert ids[4] != ids[0]


async def test_a_receiver_that_refuses_is_not_asked_again() -> None:
    async with listening(400) as listener:
        webhooks = Webhooks([WebhookReceiver(listener.url, "hush")], waits=(0.01,))
        await webhooks.start()
        webhooks.send("call.started", {})
        await webhooks.close()
        assert len(listener.requests) == 1


async def test_only_the_events_that_are_wanted_are_sent() -> None:
    async with listening() as listener:
        webhooks = Webhooks([WebhookReceiver(listener.url, "hush", ("call.ended",))])
        await webhooks.start()
        webhooks.send("call.started", {})
        webhooks.send("call.ended", {})
        await webhooks.close()
        assert [json.loads(body)["type"] for body, _ in listener.requests] == ["call.ended"]


async def test_a_receiver_that_is_away_holds_up_nobody() -> None:
    webhooks = Webhooks([WebhookReceiver("http://127.0.0.1:1/", "hush")], waits=(0.01,))
    await webhooks.start()
    for _ in range(1100):
        webhooks.send("call.started", {})
    async with asyncio.timeout(20):
        await webhooks.close()


@pytest.fixture
def small_files() -> Iterator[int]:
    """A bound of a file's size, as a full disk has one; it is taken away by the test."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, before[1]))
    yield before[0]
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


async def test_lines_wait_while_the_disk_is_full(tmp_path: Path, small_files: int) -> None:
    path = tmp_path / "below" / "calls.jsonl"
    lines = JsonLines(path)
    texts = [f"{number:0400}" for number in range(5)]
    for text in texts:
        lines.add(text)
    await until(lambda: path.exists() and path.stat().st_size == 2 * 401, 60)
    resource.setrlimit(resource.RLIMIT_FSIZE, (small_files, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
    await until(lambda: path.stat().st_size == 5 * 401, 60)
    await lines.close()
    assert path.read_text().splitlines() == texts
