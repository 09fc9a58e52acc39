"""A speech provider on loopback: answers HTTP and sockets as a test says, and keeps what it was asked."""

from __future__ import annotations

import asyncio
import math
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

from callagent.speech.providers import SpeechProvider

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Asked:
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""
    repeated: tuple[tuple[str, str], ...] = ()
    """The query with every value of a name."""


@dataclass
class ProviderServer:
    handler: Handler
    asked: list[Asked] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """A client went away while it was being answered."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read() if request.can_read_body else b""
        repeated = tuple(request.query.items())
        self.asked.append(Asked(request.path, dict(request.query), dict(request.headers), body, repeated))
        try:
            return await self.handler(request)
        except (ConnectionError, asyncio.CancelledError):
            self.gone.set()
            raise

    @asynccontextmanager
    async def settings(self, **more: Any) -> AsyncIterator[SpeechProvider]:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            # A busy machine connects late; a test of the deadline names its own.
            more = {"connect_timeout": 60.0, **more}
            yield SpeechProvider("secret", f"http://127.0.0.1:{runner.addresses[0][1]}", **more)
        finally:
            await runner.cleanup()


def tone(seconds: float, rate: int = 8000, hertz: float = 440) -> bytes:
    """16-bit PCM."""
    samples = (round(8000 * math.sin(2 * math.pi * hertz * n / rate)) for n in range(round(seconds * rate)))
    return array("h", samples).tobytes()


def answers(status: int, body: str = "", **more: Any) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, **more)

    return handler


def streams(*parts: bytes, content_type: str = "audio/mulaw", cut: bool = False, pause: float = 0.0) -> Handler:
    """The parts one after the other; `cut`: the connection ends before the body does."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": content_type})
        if cut:
            response.content_length = sum(map(len, parts)) + 1000
        await response.prepare(request)
        for part in parts:
            await response.write(part)
            await asyncio.sleep(pause)
        if cut:
            assert request.transport is not None
            request.transport.close()
        return response

    return handler


async def black_hole(request: web.Request) -> web.StreamResponse:
    """Takes the request and says nothing."""
    await asyncio.Event().wait()
    raise AssertionError


Say = Callable[[Any], Awaitable[None]]


def socket(react: Callable[[Say, str | bytes], Awaitable[None]], greeting: Any = None) -> Handler:
    """A socket whose every message is handed to `react` with a function that answers; None cuts."""

    async def handler(request: web.Request) -> web.StreamResponse:
        ws = web.WebSocketResponse()
        await ws.prepare(request)

        async def say(what: Any) -> None:
            if what is None:
                assert request.transport is not None
                request.transport.abort()
            elif isinstance(what, str):
                await ws.send_str(what)
            else:
                await ws.send_json(what)

        if greeting is not None:
            await say(greeting)
        async for message in ws:
            if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
                await react(say, message.data)
        return ws

    return handler


async def unused_port() -> int:
    """A port of loopback where nobody listens."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    return port
