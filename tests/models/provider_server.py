"""A provider's HTTP API on loopback: keeps what it was asked, answers what the test says."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from callagent.models import Delta, LanguageModel, ModelSettings, ProviderSettings, open_model

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
HELLO = [{"role": "user", "content": "Hello"}]


class ProviderServer:
    def __init__(self, *handlers: Handler) -> None:
        """Each answers one request, the last one all that follow."""
        self.handlers = list(handlers)
        self.paths: list[str] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closed = asyncio.Event()
        """A client went away while it was being answered."""
        self.connections: set[asyncio.Transport] = set()

    @property
    def open_connections(self) -> int:
        return sum(not transport.is_closing() for transport in self.connections)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.paths.append(request.path_qs)
        self.requests.append(await request.json())
        self.headers.append(dict(request.headers))
        assert request.transport
        self.connections.add(request.transport)
        handler = self.handlers.pop(0) if len(self.handlers) > 1 else self.handlers[0]
        try:
            return await handler(request)
        except (ConnectionError, asyncio.CancelledError):
            self.closed.set()
            raise

    @asynccontextmanager
    async def model(self, name: str, **settings: Any) -> AsyncIterator[LanguageModel]:
        app = web.Application()
        app.router.add_post("/{path:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        model = open_model(name, ProviderSettings(f"http://127.0.0.1:{runner.addresses[0][1]}", **settings))
        try:
            yield model
        finally:
            await model.close()
            await runner.cleanup()


def sends(*events: object, pause: float = 0.0, cut: bool = False) -> Handler:
    """A stream of these events; `pause` in seconds before each but the first."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for place, event in enumerate(events):
            await asyncio.sleep(pause if place else 0)
            data = event if isinstance(event, str) else json.dumps(event)
            kind = event["type"] if isinstance(event, dict) and "type" in event else "message"
            await response.write(f"event: {kind}\ndata: {data}\n\n".encode())
        if cut:
            assert request.transport
            request.transport.abort()
        return response

    return handler


def repeats(*events: object) -> Handler:
    """The last event again and again until the client goes away."""
    return sends(*events, *([events[-1]] * 100_000), pause=0.01)


def refuses(status: int, body: str = "", **more: Any) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, **more)

    return handler


async def ask(
    model: LanguageModel, messages: Any = HELLO, tools: Any = (), settings: ModelSettings | None = None
) -> list[Delta]:
    deltas = model.stream(messages, tools, settings or ModelSettings())
    return [delta async for delta in deltas if not delta.progress]
