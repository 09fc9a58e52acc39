"""The HTTP application on loopback, with what it handed over."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from callagent.agents.flows import Outside
from callagent.carriers import TwilioSettings
from callagent.legs.carrier_leg import CarrierLeg
from callagent.web import ServerHooks, make_app
from tests.carriers.fake_twilio import ACCOUNT_SID, AUTH_TOKEN


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    """Wait for what happens on the other side of a socket."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


@dataclass
class Server:
    url: str = ""
    legs: list[CarrierLeg] = field(default_factory=list)
    on_leg: Callable[[CarrierLeg], None] = lambda leg: None
    admits: bool = True
    drains: bool = False
    outside: Outside = field(default_factory=Outside)

    def take(self, leg: CarrierLeg) -> None:
        self.legs.append(leg)
        self.on_leg(leg)


@asynccontextmanager
async def serve(api_url: str = "http://127.0.0.1:9", public_path: str = "") -> AsyncIterator[Server]:
    """`public_path` is what a proxy in front of us takes off; here nothing does."""
    server = Server()
    socket = web.AppRunner(web.Application())
    await socket.setup()
    probe = web.TCPSite(socket, "127.0.0.1", 0)
    await probe.start()
    port = socket.addresses[0][1]
    await socket.cleanup()
    server.url = f"http://127.0.0.1:{port}"
    admits, drains, metrics = (lambda: server.admits), (lambda: server.drains), (lambda: "calls_active 0\n")
    hooks = ServerHooks(server.take, admits, drains, metrics, server.outside)
    app = make_app(TwilioSettings(ACCOUNT_SID, AUTH_TOKEN, server.url + public_path, api_url), hooks)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        yield server
    finally:
        await runner.cleanup()
