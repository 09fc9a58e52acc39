"""Twilio's REST API for calls, as far as its wire protocol is documented, on loopback."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

ACCOUNT_SID = "AC" + "0123456789abcdef" * 2
CALL_SID = "CA" + "fedcba9876543210" * 2
AUTH_TOKEN = "12345"


@dataclass
class FakeTwilio:
    url: str = ""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    """Path and form of each update."""
    status: int = 200
    code: int = 20404
    """Of the error body, where `status` is one."""
    stalls: bool = False

    async def update(self, request: web.Request) -> web.Response:
        credentials = base64.b64encode(f"{ACCOUNT_SID}:{AUTH_TOKEN}".encode()).decode()
        assert request.headers["Authorization"] == f"Basic {credentials}"
        assert request.content_type == "application/x-www-form-urlencoded"
        form = await request.post()
        self.requests.append((request.path, {name: str(value) for name, value in form.items()}))
        if self.stalls:
            request.transport.abort()  # type: ignore[union-attr]
        if self.status >= 400:
            body = {"code": self.code, "message": "no", "more_info": "", "status": self.status}
            return web.json_response(body, status=self.status)
        return web.json_response({"sid": CALL_SID, "account_sid": ACCOUNT_SID, "status": "in-progress"})


@asynccontextmanager
async def fake_twilio() -> AsyncIterator[FakeTwilio]:
    fake = FakeTwilio()
    app = web.Application()
    app.router.add_post("/2010-04-01/Accounts/{account}/Calls/{call}.json", fake.update)
    app.router.add_post("/2010-04-01/Accounts/{account}/Conferences/{room}/Participants.json", fake.update)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    fake.url = f"http://{host}:{port}"
    try:
        yield fake
    finally:
        await runner.cleanup()
