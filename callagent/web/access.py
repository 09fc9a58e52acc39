"""Who may see what is not for everybody: this machine, reached directly, and who has an account."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_address
from time import monotonic
from typing import Final
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from callagent.web.accounts import Accounts
from callagent.web.identity import IDENTITY, LOCAL, Identity

Network = IPv4Network | IPv6Network

SESSION_COOKIE: Final = "callagent_session"
CSRF_HEADER: Final = "X-CSRF-Token"
LOGIN_PATH: Final = "/login"
_OPEN_WITH_ACCOUNTS: Final = frozenset({LOGIN_PATH, "/api/login"})
_STATIC: Final = "/static/"
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDING: Final = frozenset(
    {
        "forwarded",
        "via",
        "x-forwarded-for",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-forwarded-proto",
        "x-forwarded-server",
        "x-original-forwarded-for",
        "x-real-ip",
        "cf-connecting-ip",
        "true-client-ip",
    }
)


def direct_and_local(request: web.Request) -> bool:
    """Peer and Host are both loopback and nobody forwarded the request: a tunnel or a web page does not pass."""
    if any(name.lower() in _FORWARDING for name in request.headers):
        return False
    return _is_loopback(request.remote or "") and _is_loopback(_host_name(request.host))


@dataclass(frozen=True, slots=True)
class ProxyLogin:
    """A proxy that has done the login names who it was in a header."""

    header: str
    networks: Sequence[Network]

    def vouches(self, request: web.Request) -> bool:
        """Whether the request comes from such a proxy; it is never this machine's own user."""
        try:
            address = ip_address((request.remote or "").partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in self.networks)


def guard(open_paths: frozenset[str], accounts: Accounts, proxy_login: ProxyLogin | None = None) -> Middleware:
    """Refuse everything but `open_paths` to all who are neither local nor logged in."""

    @web.middleware
    async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in open_paths:
            return await handler(request)
        identity = _identify(request, accounts, proxy_login)
        if identity is None:
            if accounts and (request.path in _OPEN_WITH_ACCOUNTS or request.path.startswith(_STATIC)):
                _refuse_foreign(request)
                return await handler(request)
            return _turn_away(request, accounts)
        _refuse_foreign(request)
        if request.method not in _SAFE and identity.csrf and request.headers.get(CSRF_HEADER) != identity.csrf:
            raise web.HTTPForbidden(text="the request does not come from the dashboard")
        request[IDENTITY] = identity
        return await handler(request)

    return let_in


def _identify(request: web.Request, accounts: Accounts, proxy_login: ProxyLogin | None) -> Identity | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        # A wrong token is no way to become the machine's own user.
        return accounts.bearer(token.strip())
    if (cookie := request.cookies.get(SESSION_COOKIE)) and (found := accounts.session(cookie, monotonic())):
        return found
    if proxy_login is not None and proxy_login.vouches(request):
        names = request.headers.getall(proxy_login.header, [])
        # A name that comes twice is one that somebody added.
        return accounts.vouched(names[0]) if len(names) == 1 else None
    return LOCAL if direct_and_local(request) else None


def _refuse_foreign(request: web.Request) -> None:
    """A page of another site may send a browser's requests here: it is not what asks."""
    foreign = request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")
    if (origin := request.headers.get("Origin")) is not None:
        foreign = foreign or urlsplit(origin).netloc.lower() != request.host.lower()
    asks_for_more = request.method not in _SAFE or request.headers.get("Upgrade") is not None
    if foreign and asks_for_more:
        raise web.HTTPForbidden(text="not from another site")


def _turn_away(request: web.Request, accounts: Accounts) -> web.StreamResponse:
    if not accounts:
        raise web.HTTPForbidden(text="only for this machine")
    if "text/html" in request.headers.get("Accept", "") and request.method == "GET":
        raise web.HTTPSeeOther(LOGIN_PATH)
    raise web.HTTPUnauthorized(text="log in, or send a token", headers={"WWW-Authenticate": "Bearer"})


def _host_name(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _is_loopback(name: str) -> bool:
    if name.lower() == "localhost":
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False
