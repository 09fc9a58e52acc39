"""Who is let in: an account's session or token, the server's own user, a proxy that has done the login. Nobody else."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_network
from time import monotonic
from typing import Final
from urllib.parse import SplitResult, urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from callagent.config import plain_address
from callagent.web.accounts import LOCAL, METRICS_READER, Accounts, Identity, LocalLogin, Right
from callagent.web.connections import peer_is_known

Network = IPv4Network | IPv6Network

SESSION_COOKIE: Final = "callagent_session"
CSRF_HEADER: Final = "X-CSRF-Token"
LOGIN_PATH: Final = "/login"
METRICS_PATH: Final = "/metrics"
LOGIN_FILES: Final = frozenset({"icon.svg", "link.js", "login.js", "style.css"})
"""Of the static files, what the login page is made of."""
_OPEN_PATHS: Final = frozenset(
    {LOGIN_PATH, "/api/login", "/api/login/link", *(f"/static/{name}" for name in LOGIN_FILES)}
)
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED_FOR: Final = "X-Forwarded-For"
_FOREIGN: Final = (
    "not from another site; behind a proxy that does not pass the Host header on, "
    "set http.public_url to the address in the browser"
)
_SITE_BITS: Final = 64
"""Of an IPv6 address: what one subscriber has."""


@dataclass(frozen=True, slots=True)
class Access:
    """The ways in."""

    accounts: Accounts = field(default_factory=lambda: Accounts(()))
    local: LocalLogin | None = None
    """For a server without accounts: the way in of the user who started it."""
    metrics_token: str = ""
    """Opens the metrics and nothing else; empty: there is none."""
    login_header: str = ""
    """The header in which a proxy that has done the login names the account; empty: no proxy does."""
    proxies: Sequence[Network] = ()
    """Where such proxies are. They also say whom they forward for."""
    public_url: str = ""
    """What browsers may reach us at, beside the address that they name as Host."""
    secure: bool = False
    """Whether the cookie is for HTTPS alone."""

    def identify(self, request: web.Request) -> Identity | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._bearer(request, token.strip())
        if (cookie := request.cookies.get(SESSION_COOKIE)) and (found := self.accounts.session(cookie, monotonic())):
            return found
        if self.login_header and self.is_proxy(request.remote or ""):
            names = request.headers.getall(self.login_header, [])
            # A name that comes twice is one that somebody added.
            return self.accounts.vouched(names[0]) if len(names) == 1 else None
        return None

    def is_proxy(self, address: str) -> bool:
        try:
            plain = plain_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(plain in network for network in self.proxies)

    def client_address(self, request: web.Request) -> str:
        """Who asks, for what is counted by address: behind our proxies the last one that they did not forward for."""
        address = request.remote or ""
        hops = ",".join(request.headers.getall(_FORWARDED_FOR, [])).split(",")
        while self.is_proxy(address) and hops and (hop := hops.pop().strip()):
            address = hop
        return counted_address(address)

    def _bearer(self, request: web.Request, token: str) -> Identity | None:
        if self.metrics_token and request.path == METRICS_PATH and _same(token, self.metrics_token):
            return METRICS_READER
        if self.local is not None and self.local.knows(token):
            return LOCAL
        return self.accounts.bearer(token)


def counted_address(address: str) -> str:
    """One name for all addresses of a subscriber: an IPv6 network of 64 bits, else the address."""
    try:
        plain = plain_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(plain, IPv6Address):
        return str(ip_network((plain, _SITE_BITS), strict=False))
    return str(plain)


def guard(open_paths: frozenset[str], access: Access) -> Middleware:
    """Refuse everything but `open_paths` and the login page to all who have neither a session nor a token."""

    @web.middleware
    async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in open_paths:
            return await handler(request)
        if request.path in _OPEN_PATHS:
            # Whoever has a session may log in again; the page has no proof of it.
            _refuse_foreign(request, access.public_url)
            return await handler(request)
        identity = access.identify(request)
        if identity is None:
            return _turn_away(request)
        _refuse_foreign(request, access.public_url)
        if request.method not in _SAFE and identity.csrf and request.headers.get(CSRF_HEADER) != identity.csrf:
            raise web.HTTPForbidden(text="the request does not come from the dashboard")
        request[IDENTITY] = identity
        peer_is_known(request)
        return await handler(request)

    return let_in


def _refuse_foreign(request: web.Request, public_url: str) -> None:
    """A page of another site may send a browser's requests here: it is not what asks."""
    if request.method in _SAFE and request.headers.get("Upgrade") is None:
        return
    origin = request.headers.get("Origin")
    # Scripts cannot set it. Browsers leave it out over plain HTTP from elsewhere, and some for WebSockets.
    site = request.headers.get("Sec-Fetch-Site")
    if site is None and origin is not None:
        # A proxy may put its own name for us into Host; what browsers call us is in the settings.
        ours = {request.host.lower(), urlsplit(public_url).netloc.lower()} - {""}
        site = "same-origin" if _split(origin).netloc.lower() in ours else "cross-site"
    if site not in (None, "none", "same-origin"):
        raise web.HTTPForbidden(text=_FOREIGN)


def drops_secure_cookies(request: web.Request) -> bool:
    """Whether the request comes from a page over plain HTTP, where browsers take no cookie that is for HTTPS alone.

    They do from the machine itself, whose traffic nobody reads (Secure Contexts, section 3.1).
    """
    origin = _split(request.headers.get("Origin", ""))
    host = origin.hostname or ""
    if origin.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not plain_address(host).is_loopback
    except ValueError:
        return True


def _split(origin: str) -> SplitResult:
    try:
        return urlsplit(origin)
    except ValueError:
        return urlsplit("")


def _turn_away(request: web.Request) -> web.StreamResponse:
    if "text/html" in request.headers.get("Accept", "") and request.method == "GET":
        raise web.HTTPSeeOther(LOGIN_PATH)
    raise web.HTTPUnauthorized(text="log in, or send a token", headers={"WWW-Authenticate": "Bearer"})


def _same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


IDENTITY: Final = web.RequestKey("identity", Identity)


def identity_of(request: web.Request) -> Identity:
    """Set by the guard for every request that is let in."""
    return request[IDENTITY]


def require(request: web.Request, right: Right) -> Identity:
    """Raises 403 for who may not."""
    identity = identity_of(request)
    if not identity.may(right):
        raise web.HTTPForbidden(text=f"the right '{right.value}' is needed")
    return identity
