"""The dashboard's pages, which are static files without a build step, and the login."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import monotonic
from typing import Final

from aiohttp import web

from callagent.log import get_logger
from callagent.web.access import LOGIN_PATH, SESSION_COOKIE, Access, drops_secure_cookies, identity_of
from callagent.web.accounts import LOCAL, SESSION_SECONDS, password_fits
from callagent.web.connections import read_text

log = get_logger(__name__)

STATIC: Final = Path(__file__).parent / "static"
PAGES: Final = ("/", "/live", "/live/{id}", "/calls", "/calls/{id}", "/project", "/phone")
# Only files of this server are loaded: a script injected into a page does not run and cannot send data elsewhere.
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
_MAX_HASHES = 2
"""Passwords that are hashed at the same time: each takes 16 MB and a core, which the calls need."""
_MAX_LOGIN_CHARACTERS = 1000
"""Characters of name and password together, or of a link."""


async def protect(_: web.Request, response: web.StreamResponse) -> None:
    """Add to every response the headers that keep foreign scripts out."""
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)


class Pages:
    """The routes of the pages and of the login."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._accounts = access.accounts
        self._hashing = asyncio.Semaphore(_MAX_HASHES)

    def register(self, app: web.Application) -> None:
        for path in PAGES:
            app.router.add_get(path, self.page)
        app.router.add_get(LOGIN_PATH, self.login_page)
        app.router.add_post("/api/login", self.log_in)
        app.router.add_post("/api/login/link", self.follow_link)
        app.router.add_post("/api/login-links", self.make_link)
        app.router.add_post("/api/logout", self.log_out)
        app.router.add_static("/static", STATIC, append_version=False)
        app.on_response_prepare.append(protect)

    async def page(self, _: web.Request) -> web.FileResponse:
        """Send the HTML that all pages of the dashboard share; its scripts show the page that the address names."""
        return web.FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    async def login_page(self, _: web.Request) -> web.FileResponse:
        """Send the form for name and password, or on a server without accounts the page that follows login links."""
        page = "login.html" if self._access.local is None else "link.html"
        return web.FileResponse(STATIC / page, headers={"Cache-Control": "no-cache"})

    async def log_in(self, request: web.Request) -> web.Response:
        """Log in by name and password. Raises 401, and 429 after too many failures."""
        self._check_cookie_is_kept(request)
        name, password = await _read_texts(request, "name", "password")
        address, began = self._access.client_address(request), monotonic()
        # The attempt counts before its password is checked: otherwise many attempts at once would all be let through.
        if not self._accounts.count_attempt(address, began):
            raise web.HTTPTooManyRequests(text="too many failed logins; wait five minutes")
        # scrypt runs in a thread: it takes 50 ms, during which the event loop could not send the audio of calls.
        async with self._hashing:
            fits = await asyncio.to_thread(password_fits, password, self._accounts.hash_of(name))
        if not fits:
            log.warning("login_failed", peer=address)
            raise web.HTTPUnauthorized(text="name or password is wrong")
        self._accounts.uncount_attempt(address, began)
        cookie, identity = self._accounts.log_in(name, monotonic())
        return self._begin_session(cookie, identity.name)

    async def follow_link(self, request: web.Request) -> web.Response:
        """Log in by a link. Its secret stands behind `#`, so no request line, log or Referer contains it."""
        self._check_cookie_is_kept(request)
        (link,) = await _read_texts(request, "link")
        local = self._access.local
        if local is None or not local.take_link(link, monotonic()):
            log.warning("login_link_refused", peer=self._access.client_address(request))
            raise web.HTTPUnauthorized(text="the link was used or is too old; `callagent login-link` prints another")
        cookie, identity = self._accounts.begin_session(LOCAL.name, LOCAL.rights, monotonic())
        return self._begin_session(cookie, identity.name)

    async def make_link(self, request: web.Request) -> web.Response:
        """Make another login link, on a server without accounts, for the user who started it."""
        local = self._access.local
        if local is None or identity_of(request).name != LOCAL.name:
            raise web.HTTPForbidden(text="login links need a server without [[users]]; log in with name and password")
        return web.json_response({"link": local.make_link(monotonic())})

    def _check_cookie_is_kept(self, request: web.Request) -> None:
        """Raise 403 if the browser would drop the cookie: the login would seem to work and have no effect."""
        if self._access.secure and drops_secure_cookies(request):
            raise web.HTTPForbidden(
                text=f"log in over HTTPS, at {self._access.public_url}, or on the server's own machine"
            )

    def _begin_session(self, cookie: str, name: str) -> web.Response:
        log.info("logged_in", account=name)
        response = web.json_response({"name": name})
        # No script reads the cookie (HttpOnly), and no page of another site has the browser send it (SameSite).
        response.set_cookie(
            *(SESSION_COOKIE, cookie),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="Strict",
            secure=self._access.secure,
        )
        return response

    async def log_out(self, request: web.Request) -> web.Response:
        """End the session."""
        self._accounts.log_out(request.cookies.get(SESSION_COOKIE, ""))
        response = web.json_response({})
        response.del_cookie(SESSION_COOKIE)
        return response


async def _read_texts(request: web.Request, *names: str) -> list[str]:
    """Return the texts under these names in the JSON object of the body. Raises 400 and 415."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="send the login as application/json")
    try:
        sent = json.loads(await read_text(request))
        texts = [sent[name] for name in names]
    except (ValueError, KeyError, TypeError, RecursionError):
        texts = []
    if not texts or not all(isinstance(text, str) for text in texts) or sum(map(len, texts)) > _MAX_LOGIN_CHARACTERS:
        raise web.HTTPBadRequest(
            text=f"give {' and '.join(names)} as text of at most {_MAX_LOGIN_CHARACTERS} characters in all"
        )
    # A lone surrogate, which JSON may hold, cannot be hashed.
    return [text.encode("utf-8", "replace").decode() for text in texts]
