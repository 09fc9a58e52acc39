"""The HTTP application on loopback, with what it handed over."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from callagent.agents.flows import ExternalExchange
from callagent.carriers.leg import CarrierLeg
from callagent.carriers.twilio.call_control import TwilioSettings
from callagent.carriers.twilio.webhooks import TwilioRoutes
from callagent.web import ServerHooks, make_app
from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, AUTH_TOKEN
from tests.own_time import own_time
from tests.web.entry import access_of


async def until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for what happens on the other side of a socket: for so many seconds that the machine has time for us."""
    with own_time() as clock:
        began = clock()
        while not condition():
            if clock() - began > seconds:
                raise TimeoutError
            await asyncio.sleep(0.01)


@dataclass
class Server:
    url: str = ""
    legs: list[CarrierLeg] = field(default_factory=list)
    on_leg: Callable[[CarrierLeg], None] = lambda leg: None
    admits: bool = True
    accepts: bool = True
    drains: bool = False
    external: ExternalExchange = field(default_factory=ExternalExchange)
    still: Callable[[], list[str]] = list

    def take(self, leg: CarrierLeg) -> None:
        self.legs.append(leg)
        self.on_leg(leg)


@asynccontextmanager
async def serve(api_url: str = "http://127.0.0.1:9", public_path: str = "") -> AsyncIterator[Server]:
    """`public_path` is what a proxy in front of us takes off; here nothing does."""
    server = Server()
    # The application has to know its address before it is made: the port is ours from here on.
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    server.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    admits, drains, metrics = (lambda: server.admits), (lambda: server.drains), (lambda: "calls_active 0\n")
    hooks = ServerHooks(
        server.take,
        admits,
        drains,
        metrics,
        lambda info: server.accepts,
        server.external,
        stalled_threads=lambda: server.still(),
    )
    settings = TwilioSettings(ACCOUNT_SID, AUTH_TOKEN, server.url + public_path, api_url)
    app = make_app(hooks, [TwilioRoutes(settings, hooks)], access=access_of())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.SockSite(runner, listening).start()
    try:
        yield server
    finally:
        await runner.cleanup()
