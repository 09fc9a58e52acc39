"""The dashboard's pages: files as they are, no build step, and the login."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import monotonic
from typing import Final

from aiohttp import web

from callagent.log import get_logger
from callagent.web.access import LOGIN_PATH, SESSION_COOKIE
from callagent.web.accounts import SESSION_SECONDS, Accounts, password_fits

log = get_logger(__name__)

STATIC: Final = Path(__file__).parent / "static"
PAGES: Final = ("/", "/live", "/live/{id}", "/calls", "/calls/{id}", "/project", "/phone")
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; media-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_HASHES_AT_ONCE = 2
_CREDENTIAL_BOUND = 1000


async def protect(_: web.Request, response: web.StreamResponse) -> None:
    """Every answer carries the headers that keep scripts of others out."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


class Pages:
    def __init__(self, accounts: Accounts, *, secure: bool) -> None:
        """`secure`: the cookie is for HTTPS alone."""
        self._accounts = accounts
        self._secure = secure
        self._hashing = asyncio.Semaphore(_HASHES_AT_ONCE)

    def register(self, app: web.Application) -> None:
        for path in PAGES:
            app.router.add_get(path, self.page)
        app.router.add_get(LOGIN_PATH, self.login_page)
        app.router.add_post("/api/login", self.log_in)
        app.router.add_post("/api/logout", self.log_out)
        app.router.add_static("/static", STATIC, append_version=False)
        app.on_response_prepare.append(protect)

    async def page(self, _: web.Request) -> web.FileResponse:
        return web.FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    async def login_page(self, _: web.Request) -> web.FileResponse:
        return web.FileResponse(STATIC / "login.html", headers={"Cache-Control": "no-cache"})

    async def log_in(self, request: web.Request) -> web.Response:
        name, password = await _credentials(request)
        address = request.remote or ""
        if not self._accounts.may_try(address, monotonic()):
            raise web.HTTPTooManyRequests(text="too many failed logins; wait five minutes")
        async with self._hashing:
            fits = await asyncio.to_thread(password_fits, password, self._accounts.hash_of(name))
        if not fits:
            self._accounts.failed(address, monotonic())
            log.warning("login_failed", peer=address)
            raise web.HTTPUnauthorized(text="name or password is wrong")
        cookie, identity = self._accounts.log_in(name, monotonic())
        log.info("logged_in", account=identity.name)
        response = web.json_response({"name": identity.name})
        response.set_cookie(
            SESSION_COOKIE, cookie, max_age=int(SESSION_SECONDS), httponly=True, samesite="Strict", secure=self._secure
        )
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        self._accounts.log_out(request.cookies.get(SESSION_COOKIE, ""))
        response = web.json_response({})
        response.del_cookie(SESSION_COOKIE)
        return response


async def _credentials(request: web.Request) -> tuple[str, str]:
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="name and password are sent as JSON")
    try:
        sent = json.loads(await request.text())
        name, password = sent["name"], sent["password"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise web.HTTPBadRequest(text="name and password are needed") from None
    if not isinstance(name, str) or not isinstance(password, str) or len(name) + len(password) > _CREDENTIAL_BOUND:
        raise web.HTTPBadRequest(text="name and password are needed")
    return name, password.encode("utf-8", "replace").decode()
