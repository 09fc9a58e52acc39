"""Behind any proxy of the same host, and from loopback itself, nobody gets in who has not shown who they are."""

from __future__ import annotations

import re
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from callagent.carriers.twilio.call_control import TwilioSettings
from callagent.web.accounts import Account, Right, hash_password
from callagent.web.pages import STATIC
from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, AUTH_TOKEN
from tests.web.dashboard_server import Served, live_call, serve_dashboard
from tests.web.entry import HEADERS
from tests.web.proxies import PROXIES, is_here, proxy

PUBLIC_URL = "https://phone.example.com"
TWILIO = TwilioSettings(ACCOUNT_SID, AUTH_TOKEN, PUBLIC_URL, "http://127.0.0.1:9")
OPEN_TO_ALL = {"/health", "/ready", "/login"} | {
    f"/static/{name}" for name in ("icon.svg", "link.js", "login.js", "style.css")
}
WAYS_IN = {"/api/login", "/api/login/link"}
CLAIMS: list[dict[str, str]] = [
    {},
    {"Host": "localhost"},
    {"Host": "127.0.0.1:8080", "X-Forwarded-For": "127.0.0.1", "X-Real-IP": "127.0.0.1", "Forwarded": "for=127.0.0.1"},
    {"Authorization": "Bearer ", "Cookie": "callagent_session="},
]
UPGRADE = {
    "Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip
ANN = Account("ann", frozenset(Right), hash_password("correct horse"))


def requests_of(app: web.Application) -> Iterator[tuple[str, str]]:
    """Every method and path of the route table; a file for each that is served."""
    for route in app.router.routes():
        assert route.resource is not None
        path = route.resource.canonical
        if isinstance(route.resource, web.StaticResource):
            yield from ((route.method, f"{path}/{file.relative_to(STATIC)}") for file in STATIC.rglob("*.*"))
        else:
            yield route.method, re.sub(r"\{\w+(:[^}]*)?\}", "live1", path)


def body_of(method: str, path: str) -> dict[str, str] | None:
    """A carrier's webhooks are forms."""
    return {"CallSid": "CA1"} if method == "POST" and path.startswith("/twilio/") else None


def refused(method: str, path: str, status: int) -> bool:
    if path in OPEN_TO_ALL and method in ("GET", "HEAD"):
        return status == 200
    if path in WAYS_IN:
        return status == 415
    if path == "/external-events":
        return status == 404
    return status == (403 if path.startswith("/twilio/") else 401)


def client() -> aiohttp.ClientSession:
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusting), cookie_jar=aiohttp.DummyCookieJar())


@asynccontextmanager
async def server(folder: Path, *accounts: Account) -> AsyncIterator[Served]:
    ways_in = {"public_url": PUBLIC_URL, "secure": True, "metrics_token": "for the metrics"}
    async with serve_dashboard(folder, accounts, count=1, twilio=TWILIO, ways_in=ways_in) as served:
        served.calls["live1"] = live_call()
        yield served


async def ask_for_everything(served: Served, url: str) -> int:
    asked = 0
    async with client() as session:
        for method, path in requests_of(served.app):
            upgrade = [UPGRADE] if method == "GET" else []
            form = body_of(method, path)
            for headers in [*CLAIMS, *upgrade]:
                async with session.request(
                    method, url + path, headers=headers, data=form, allow_redirects=False
                ) as answer:
                    assert refused(method, path, answer.status), f"{method} {path} {headers}: {answer.status}"
                    asked += 1
            if method == "GET" and path not in OPEN_TO_ALL and not path.startswith("/twilio/"):
                browser = {"Accept": "text/html"}
                async with session.get(url + path, headers=browser, allow_redirects=False) as answer:
                    assert (answer.status, answer.headers["Location"]) == (303, "/login")
    return asked


@pytest.mark.parametrize("accounts", [(), (ANN,)], ids=["alone", "users"])
async def test_nothing_is_open_on_loopback(tmp_path: Path, accounts: tuple[Account, ...]) -> None:
    async with server(tmp_path, *accounts) as served:
        assert await ask_for_everything(served, served.url) > 200
        assert served.calls["live1"].ended == []


@pytest.mark.parametrize("accounts", [(), (ANN,)], ids=["alone", "users"])
@pytest.mark.parametrize("name", PROXIES)
async def test_nothing_is_open_behind_a_proxy(tmp_path: Path, name: str, accounts: tuple[Account, ...]) -> None:
    if not is_here(name):
        pytest.skip(f"{name} is not installed")
    async with (
        server(tmp_path, *accounts) as served,
        proxy(name, tmp_path / "proxy", int(served.url.rpartition(":")[2])) as url,
    ):
        assert await ask_for_everything(served, url) > 200
        assert served.calls["live1"].ended == []


@pytest.mark.parametrize("name", PROXIES)
async def test_who_shows_who_they_are_gets_in_behind_a_proxy(tmp_path: Path, name: str) -> None:
    """As a browser does that knows us by our public name, whatever the proxy makes of it."""
    if not is_here(name):
        pytest.skip(f"{name} is not installed")
    page = {"Origin": PUBLIC_URL, "Sec-Fetch-Site": "same-origin"}
    async with (
        server(tmp_path, ANN) as served,
        proxy(name, tmp_path / "proxy", int(served.url.rpartition(":")[2])) as url,
        client() as session,
    ):
        sent = {"name": "ann", "password": "correct horse"}
        cookie = await logged_in(session, url + "/api/login", sent, page)
        async with session.get(url + "/api/me", headers={"Cookie": cookie}) as answer:
            me = await answer.json()
        assert (me["name"], len(me["rights"])) == ("ann", len(Right))
        proven = {**page, "Cookie": cookie, "X-CSRF-Token": me["csrf"]}
        async with session.post(url + "/api/calls/live1/hangup", headers=proven) as answer:
            assert answer.status == 202
        for site in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Sec-Fetch-Site": ""}):
            foreign = {**proven, "Origin": "https://evil.example", **site}
            async with session.post(url + "/api/calls/live1/hangup", headers=foreign) as answer:
                assert answer.status == 403
        # Of a browser, or a page over plain HTTP, that sends the Origin alone.
        del foreign["Sec-Fetch-Site"]
        async with session.post(url + "/api/calls/live1/hangup", headers=foreign) as answer:
            assert answer.status == 403


@pytest.mark.skipif(not is_here("nginx"), reason="nginx is not installed")
async def test_a_browser_is_let_in_behind_a_proxy_whose_name_for_us_nobody_has_set(tmp_path: Path) -> None:
    """The proxy's Host is its own name for us, and there is no `public_url` to tell ours."""
    page = {"Origin": "https://calls.example", "Sec-Fetch-Site": "same-origin"}
    async with (
        serve_dashboard(tmp_path, (ANN,), count=1) as served,
        proxy("nginx", tmp_path / "proxy", int(served.url.rpartition(":")[2])) as url,
        client() as session,
    ):
        sent = {"name": "ann", "password": "correct horse"}
        async with session.post(url + "/api/login", json=sent, headers=page) as answer:
            assert answer.status == 200, await answer.text()
        # Without the browser's word for it the names decide, and the answer says what is missing.
        async with session.post(url + "/api/login", json=sent, headers={"Origin": page["Origin"]}) as answer:
            assert answer.status == 403
            assert "http.public_url" in await answer.text()


async def test_a_browser_that_would_not_keep_the_session_is_told_where_it_would(tmp_path: Path) -> None:
    """With an HTTPS `public_url` the cookie is for HTTPS alone: over plain HTTP browsers drop it without a word."""
    sent = {"name": "ann", "password": "correct horse"}
    async with server(tmp_path, ANN) as served, client() as session:
        at = served.url.replace("127.0.0.1", "10.0.0.5")
        async with session.post(
            served.url + "/api/login", json=sent, headers={"Origin": at, "Host": at.partition("//")[2]}
        ) as answer:
            assert (answer.status, answer.cookies) == (403, {})
            assert PUBLIC_URL in await answer.text()
        async with session.post(served.url + "/api/login", json=sent, headers={"Origin": "http://["}) as answer:
            assert answer.status == 403
        for near in (served.url, served.url.replace("127.0.0.1", "localhost")):
            page = {"Origin": near, "Host": near.partition("//")[2]}
            await logged_in(session, served.url + "/api/login", sent, page)


async def logged_in(session: aiohttp.ClientSession, url: str, sent: Any, headers: dict[str, str]) -> str:
    async with session.post(url, json=sent, headers=headers) as answer:
        assert answer.status == 200, await answer.text()
        cookie = answer.cookies["callagent_session"]
        assert (cookie["httponly"], cookie["secure"], cookie["samesite"]) == (True, True, "Strict")
        return f"callagent_session={cookie.value}"


async def test_a_link_opens_one_session_and_the_token_all_that_there_is(tmp_path: Path) -> None:
    async with server(tmp_path) as served, client() as session:
        assert served.access.local is not None
        link = {"link": served.access.local.make_link(time.monotonic())}
        cookie = await logged_in(session, served.url + "/api/login/link", link, {})
        async with session.get(served.url + "/api/me", headers={"Cookie": cookie}) as answer:
            assert (await answer.json())["name"] == "local"
        async with session.post(served.url + "/api/login/link", json=link) as answer:
            assert answer.status == 401
        for headers, status in ((HEADERS, 200), ({"Authorization": "Bearer another"}, 401), ({}, 401)):
            async with session.post(served.url + "/api/login-links", headers=headers) as answer:
                assert answer.status == status
        # A browser's session asks with its proof, as for everything that changes something.
        async with session.post(served.url + "/api/login-links", headers={"Cookie": cookie}) as answer:
            assert answer.status == 403


async def test_with_accounts_there_are_no_links_and_no_token(tmp_path: Path) -> None:
    async with server(tmp_path, ANN) as served, client() as session:
        for path in ("/api/me", "/metrics"):
            async with session.get(served.url + path, headers=HEADERS) as answer:
                assert answer.status == 401
        async with session.post(served.url + "/api/login/link", json={"link": "x"}) as answer:
            assert answer.status == 401
        async with session.get(served.url + "/login") as answer:
            assert "password" in await answer.text()


@pytest.mark.parametrize("accounts", [(), (ANN,)], ids=["alone", "users"])
async def test_the_token_of_the_metrics_opens_nothing_else(tmp_path: Path, accounts: tuple[Account, ...]) -> None:
    headers = {"Authorization": "Bearer for the metrics"}
    async with server(tmp_path, *accounts) as served, client() as session:
        for method, path in requests_of(served.app):
            form = body_of(method, path)
            async with session.request(method, served.url + path, headers=headers, data=form) as answer:
                if path == "/metrics":
                    assert answer.status == 200
                else:
                    assert refused(method, path, answer.status), f"{method} {path}: {answer.status}"
