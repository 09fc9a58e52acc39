"""Health, metrics, and who may see what."""

from __future__ import annotations

import aiohttp
import pytest

from callagent.carriers import TwilioSettings
from callagent.web import ServerHooks, make_app
from tests.web.entry import HEADERS
from tests.web.server import serve

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
    paths = {resource.canonical for resource in make_app(None, HOOKS).router.resources()}
    assert paths == {"/health", "/ready", "/metrics", "/external-events", "/api/handoffs"}


async def test_settings_that_cannot_be_safe_are_an_error() -> None:
    with pytest.raises(ValueError, match="auth token"):
        make_app(TwilioSettings("AC1", "", "https://phone.example.com"), HOOKS)
    with pytest.raises(ValueError, match="public URL"):
        make_app(TwilioSettings("AC1", "x", ""), HOOKS)
