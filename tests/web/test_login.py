from __future__ import annotations

import asyncio
import hashlib
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from multidict import CIMultiDict

from callagent.web.accounts import Account, Accounts, Right, hash_password, password_fits
from tests.web.dashboard_server import Served, live_call, serve_dashboard

TOKEN = "t" * 40
ACCOUNTS = (
    Account("ann", frozenset(Right), hash_password("correct horse")),
    Account("vic", frozenset({Right.VIEW}), hash_password("viewer")),
    Account("prom", frozenset({Right.VIEW}), token=hashlib.sha256(TOKEN.encode()).hexdigest()),
)
OUTSIDE = {"Host": "phone.example.com"}


class Visitor:
    """Somebody from elsewhere, with a browser's memory."""

    def __init__(self, served: Served, session: aiohttp.ClientSession) -> None:
        self.served, self.session = served, session
        self.cookie = ""
        self.csrf = ""

    async def ask(self, path: str, method: str = "GET", data: Any = None, **headers: str) -> tuple[int, Any]:
        sent = {**OUTSIDE, **headers}
        if self.cookie:
            sent["Cookie"] = f"callagent_session={self.cookie}"
        async with self.session.request(
            method, self.served.url + path, headers=sent, json=data, allow_redirects=False
        ) as answer:
            if "callagent_session" in answer.cookies:
                self.cookie = answer.cookies["callagent_session"].value
                self.attributes = answer.cookies["callagent_session"]
            self.headers = answer.headers
            is_json = answer.content_type == "application/json"
            return answer.status, await (answer.json() if is_json else answer.text())

    async def log_in(self, name: str, password: str) -> int:
        status, _ = await self.ask("/api/login", "POST", {"name": name, "password": password})
        if status == 200:
            self.csrf = (await self.ask("/api/me"))[1]["csrf"]
        return status


@pytest.fixture
async def visitor(tmp_path: Path) -> Any:
    async with (
        serve_dashboard(tmp_path, ACCOUNTS, count=3) as served,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Visitor(served, session)


def test_a_password_fits_its_hash_and_no_other() -> None:
    hashed = hash_password("pass")
    assert hashed != hash_password("pass")
    assert password_fits("pass", hashed)
    assert not password_fits("Pass", hashed)
    assert not password_fits("pass", "")


async def test_without_login_there_are_only_the_login_page_and_health(visitor: Visitor) -> None:
    for path in ("/api/calls", "/metrics", "/api/live/events", "/", "/api/me", "/api/openapi.json"):
        assert (await visitor.ask(path))[0] == 401
    status, _ = await visitor.ask("/calls", Accept="text/html")
    assert (status, visitor.headers["Location"]) == (303, "/login")
    assert (await visitor.ask("/login"))[0] == 200
    assert (await visitor.ask("/static/login.js"))[0] == 200
    assert (await visitor.ask("/health"))[0] == 200


async def test_who_logs_in_sees_calls_until_logging_out(visitor: Visitor) -> None:
    assert await visitor.log_in("ann", "wrong") == 401
    assert await visitor.log_in("nobody", "correct horse") == 401
    assert await visitor.log_in("ann", "correct horse") == 200
    assert visitor.attributes["httponly"]
    assert visitor.attributes["samesite"] == "Strict"
    assert (await visitor.ask("/api/calls"))[1]["total"] == 3
    assert (await visitor.ask("/api/logout", "POST"))[0] == 403
    kept = visitor.cookie
    assert (await visitor.ask("/api/logout", "POST", **{"X-CSRF-Token": visitor.csrf}))[0] == 200
    visitor.cookie = kept
    assert (await visitor.ask("/api/calls"))[0] == 401


async def test_who_has_a_session_may_log_in_again(visitor: Visitor) -> None:
    assert await visitor.log_in("ann", "correct horse") == 200
    assert await visitor.log_in("vic", "viewer") == 200
    assert (await visitor.ask("/api/me"))[1]["name"] == "vic"
    foreign = {"Origin": "https://evil.example"}
    assert (await visitor.ask("/api/login", "POST", {"name": "vic", "password": "viewer"}, **foreign))[0] == 403


async def test_an_unsafe_request_needs_the_sessions_token(visitor: Visitor) -> None:
    call = live_call()
    visitor.served.calls["live1"] = call
    await visitor.log_in("ann", "correct horse")
    assert (await visitor.ask("/api/calls/live1/hangup", "POST"))[0] == 403
    assert (await visitor.ask("/api/calls/live1/hangup", "POST", **{"X-CSRF-Token": "x"}))[0] == 403
    assert call.ended == []
    foreign = {"X-CSRF-Token": visitor.csrf, "Origin": "https://evil.example"}
    assert (await visitor.ask("/api/calls/live1/hangup", "POST", **foreign))[0] == 403
    ours = {"X-CSRF-Token": visitor.csrf, "Origin": "https://phone.example.com"}
    assert (await visitor.ask("/api/calls/live1/hangup", "POST", **ours))[0] == 202


async def test_a_viewer_sees_no_personal_data_and_controls_nothing(visitor: Visitor) -> None:
    visitor.served.calls["live1"] = live_call()
    await visitor.log_in("vic", "viewer")
    record = visitor.served.records[-1]
    _, page = await visitor.ask("/api/calls")
    assert all(call["from_number"].startswith("•••") for call in page["calls"])
    _, call = await visitor.ask(f"/api/calls/{record.id}")
    assert record.turns[1].user_input not in str(call)
    assert "84276" not in str(call)
    assert "where is my parcel" not in str(await visitor.ask("/api/live"))
    assert "where is my parcel" not in str(await visitor.ask("/api/live/live1"))
    for path in (f"/api/calls/{record.id}/recording", f"/api/calls/{record.id}/waveform", "/api/calls?search=parcel"):
        assert (await visitor.ask(path))[0] == 403
    proof = {"X-CSRF-Token": visitor.csrf}
    assert (await visitor.ask("/api/calls/live1/hangup", "POST", **proof))[0] == 403
    assert (await visitor.ask("/api/callers/x", "DELETE", **proof))[0] == 403


async def test_a_token_is_for_programs(visitor: Visitor) -> None:
    assert (await visitor.ask("/metrics", Authorization=f"Bearer {TOKEN}"))[0] == 200
    assert (await visitor.ask("/metrics", Authorization="Bearer wrong"))[0] == 401
    assert (await visitor.ask("/metrics", Authorization=f"Basic {TOKEN}"))[0] == 401


async def test_guessing_is_slowed_down(visitor: Visitor) -> None:
    statuses = [await visitor.log_in("ann", str(guess)) for guess in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert await visitor.log_in("ann", "correct horse") == 429


async def test_many_guesses_at_once_are_not_one_guess(visitor: Visitor) -> None:
    """150 wrong passwords side by side: as many are looked at as one after the other."""
    statuses = await asyncio.gather(*(visitor.log_in("ann", f"guess {guess}") for guess in range(150)))
    assert sorted(statuses) == [401] * 10 + [429] * 140


def test_only_wrong_passwords_go_on_counting() -> None:
    accounts = Accounts(ACCOUNTS)
    for second in range(100):
        assert accounts.count_attempt("192.0.2.1", float(second))
        accounts.uncount_attempt("192.0.2.1", float(second))
    assert [accounts.count_attempt("192.0.2.1", 100.0) for _ in range(11)] == [True] * 10 + [False]
    assert accounts.count_attempt("192.0.2.2", 100.0)
    accounts.uncount_attempt("192.0.2.1", 99.0)
    assert not accounts.count_attempt("192.0.2.1", 399.0)
    assert accounts.count_attempt("192.0.2.1", 400.5)


async def test_behind_our_proxy_each_client_has_its_own_attempts(proxied: Visitor) -> None:
    async def guess(*forwarded: str) -> int:
        sent = {"name": "ann", "password": "wrong"}
        headers = CIMultiDict(OUTSIDE)
        for each in forwarded:
            headers.add("X-Forwarded-For", each)
        async with proxied.session.post(proxied.served.url + "/api/login", json=sent, headers=headers) as answer:
            return answer.status

    # What a client claims stands before what our proxy adds.
    statuses = [await guess(f"203.0.113.{number}, 198.51.100.7") for number in range(11)]
    assert statuses == [401] * 10 + [429]
    assert await guess("198.51.100.7") == 429
    assert await guess("203.0.113.1", "198.51.100.7") == 429
    assert await guess("198.51.100.7, 127.0.0.1") == 429
    assert await guess("198.51.100.8") == 401
    # The addresses of one subscriber's network are one.
    statuses = [await guess(f"2001:db8:1:2::{number:x}") for number in range(11)]
    assert statuses == [401] * 10 + [429]
    assert await guess("2001:db8:1:3::1") == 401


async def test_what_others_forward_does_not_count(visitor: Visitor) -> None:
    statuses = []
    for number in range(11):
        sent = {"name": "ann", "password": "wrong"}
        forged = {"X-Forwarded-For": f"203.0.113.{number}"}
        statuses.append((await visitor.ask("/api/login", "POST", sent, **forged))[0])
    assert statuses == [401] * 10 + [429]


async def test_a_malformed_login_is_refused(visitor: Visitor) -> None:
    for data in ([], {}, {"name": 1, "password": "x"}, {"name": "ann"}, {"name": "a" * 2000, "password": ""}, "text"):
        assert (await visitor.ask("/api/login", "POST", data))[0] == 400


@pytest.mark.parametrize("charset", ["punycode", "utf-16", "unheard-of"])
async def test_the_charset_that_a_login_claims_is_not_used(visitor: Visitor, charset: str) -> None:
    """Some of Python's codecs take a second for what fits into a body: calls would stand still meanwhile."""
    body = '{"name": "ann", "password": "wrong"}'
    headers = {"Content-Type": f"application/json; charset={charset}"}
    async with visitor.session.post(visitor.served.url + "/api/login", data=body, headers=headers) as answer:
        assert answer.status == 401


async def test_a_login_that_is_no_utf_8_is_refused(visitor: Visitor) -> None:
    headers = {"Content-Type": "application/json"}
    async with visitor.session.post(
        visitor.served.url + "/api/login", data=b'{"name": "\xff"}', headers=headers
    ) as answer:
        assert answer.status == 400


def test_a_session_ends_after_its_time() -> None:
    accounts = Accounts(ACCOUNTS)
    cookie, identity = accounts.log_in("ann", now=0.0)
    assert accounts.identify_by_cookie(cookie, 60.0) == identity
    assert accounts.identify_by_cookie(cookie, 13 * 3600.0) is None
    assert accounts.identify_by_cookie("other", 0.0) is None


async def test_the_headers_keep_scripts_of_others_out(visitor: Visitor) -> None:
    await visitor.ask("/login")
    policy = visitor.headers["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy
    assert visitor.headers["X-Content-Type-Options"] == "nosniff"
    await visitor.ask("/api/calls")
    assert visitor.headers["Content-Security-Policy"] == policy


# A proxy that has done the login -------------------------------------------------------------------------------------

PROXY = {"login_header": "X-Auth-Request-Email", "proxies": (ip_network("127.0.0.1/32"),)}


@pytest.fixture
async def proxied(tmp_path: Path) -> Any:
    async with (
        serve_dashboard(tmp_path, ACCOUNTS, count=3, ways_in=PROXY) as served,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        yield Visitor(served, session)


async def test_the_proxy_names_an_account(proxied: Visitor) -> None:
    status, me = await proxied.ask("/api/me", **{"X-Auth-Request-Email": "vic"})
    assert (status, me["name"], me["rights"]) == (200, "vic", ["view"])
    assert me["csrf"]
    for name in ("nobody", "", "local", "VIC"):
        assert (await proxied.ask("/api/me", **{"X-Auth-Request-Email": name}))[0] == 401


async def test_a_proxy_is_not_this_machine_and_its_pages_need_their_proof(proxied: Visitor) -> None:
    assert (await proxied.ask("/api/me", Host="localhost"))[0] == 401
    proxied.served.calls["live1"] = live_call()
    sent = {"X-Auth-Request-Email": "ann"}
    assert (await proxied.ask("/api/calls/live1/hangup", "POST", **sent))[0] == 403
    csrf = (await proxied.ask("/api/me", **sent))[1]["csrf"]
    assert (await proxied.ask("/api/calls/live1/hangup", "POST", **sent, **{"X-CSRF-Token": csrf}))[0] == 202
    other = {"X-Auth-Request-Email": "vic", "X-CSRF-Token": csrf}
    assert (await proxied.ask("/api/calls/live1/hangup", "POST", **other))[0] == 403


async def test_a_header_of_anybody_else_is_not_heard(tmp_path: Path) -> None:
    elsewhere = {**PROXY, "proxies": (ip_network("192.0.2.0/24"),)}
    async with (
        serve_dashboard(tmp_path, ACCOUNTS, count=1, ways_in=elsewhere) as served,
        aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as session,
    ):
        visitor = Visitor(served, session)
        assert (await visitor.ask("/api/me", **{"X-Auth-Request-Email": "ann"}))[0] == 401


@pytest.mark.parametrize(
    ("path", "method", "right"),
    [
        ("/api/calls", "POST", "call"), ("/api/phone", "GET", "call"), ("/api/calls/x/takeover", "POST", "control"),
        ("/api/calls/x/hangup", "POST", "control"), ("/api/live/x/audio", "GET", "personal"),
        ("/api/projects/x/real-time-configs/live", "PUT", "configure"),
        ("/api/projects/x/real-time-configs/live", "PATCH", "configure"),
    ],
)  # fmt: skip
async def test_a_token_may_what_its_rights_say(visitor: Visitor, path: str, method: str, right: str) -> None:
    status, text = await visitor.ask(path, method, {}, Authorization=f"Bearer {TOKEN}")
    assert (status, text) == (403, f"the right '{right}' is needed")
