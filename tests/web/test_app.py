"""Health, metrics, and who may see what."""

from __future__ import annotations

import json
import threading

import aiohttp
import pytest

from callagent.carriers.twilio.call_control import TwilioSettings
from callagent.carriers.twilio.webhooks import TwilioRoutes
from callagent.rtp import Pump
from callagent.server.process_health import Watchdog
from callagent.web import ServerHooks, make_app
from tests.web.entry import HEADERS
from tests.web.server import serve, until

HOOKS = ServerHooks(lambda leg: None, lambda: True, lambda: False, lambda: "")


async def get(url: str, **headers: str) -> tuple[int, str]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with aiohttp.ClientSession() as session, session.get(url, headers=named) as response:
        return response.status, await response.text()


async def test_health_and_readiness() -> None:
    async with serve() as server:
        assert (await get(server.url + "/health"))[0] == 200
        assert (await get(server.url + "/ready"))[0] == 200
        server.drains = True
        assert (await get(server.url + "/health"))[0] == 200
        assert (await get(server.url + "/ready"))[0] == 503


async def test_a_sending_clock_that_stands_still_is_not_healthy() -> None:
    went_on = threading.Event()

    class Stuck:
        """A sender that does not come back."""

        def send(self, due: float, skipped: int) -> None:
            went_on.wait(60)

        def fail(self, error: Exception) -> None:
            raise error

    async with serve() as server:
        pump, watchdog = Pump(), Watchdog()
        watchdog.watch("sending clock", lambda: pump.moved_at, lambda: pump.thread)
        server.still = lambda: watchdog.still
        pump.start()
        watchdog.start()
        try:
            assert (await get(server.url + "/health"))[0] == 200
            handle = pump.add(Stuck())
            await until(lambda: watchdog.still)
            status, body = await get(server.url + "/health")
            assert (status, json.loads(body)) == (503, {"status": "stands still", "threads": ["sending clock"]})
            went_on.set()
            pump.remove(handle)
            await until(lambda: not watchdog.still)
            assert (await get(server.url + "/health"))[0] == 200
        finally:
            went_on.set()
            watchdog.stop()
            pump.stop()


async def test_metrics_are_plain_text() -> None:
    async with serve() as server:
        assert await get(server.url + "/metrics", **HEADERS) == (200, "calls_active 0\n")


@pytest.mark.parametrize("host", ["localhost", "localhost:80", "127.0.0.1:1", "[::1]:8080", "phone.example.com"])
async def test_no_name_and_no_address_lets_anybody_in(host: str) -> None:
    async with serve() as server:
        assert (await get(server.url + "/metrics", Host=host))[0] == 401
        assert (await get(server.url + "/nothing", Host=host))[0] == 401
        assert (await get(server.url + "/health", Host=host))[0] == 200


async def test_without_twilio_its_paths_are_not_there() -> None:
    paths = {resource.canonical for resource in make_app(HOOKS).router.resources()}
    assert paths == {"/health", "/ready", "/metrics", "/external-events", "/api/handoffs"}


async def test_settings_that_cannot_be_safe_are_an_error() -> None:
    with pytest.raises(ValueError, match="auth token"):
        TwilioRoutes(TwilioSettings("AC1", "", "https://phone.example.com"), HOOKS)
    with pytest.raises(ValueError, match="public URL"):
        TwilioRoutes(TwilioSettings("AC1", "x", ""), HOOKS)
