"""Who sends a request: an account, by session, token or proxy header, or the user who started the server."""

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
from callagent.web.connections import note_known_peer

Network = IPv4Network | IPv6Network

SESSION_COOKIE: Final = "callagent_session"
CSRF_HEADER: Final = "X-CSRF-Token"
LOGIN_PATH: Final = "/login"
METRICS_PATH: Final = "/metrics"
LOGIN_FILES: Final = frozenset({"icon.svg", "link.js", "login.js", "style.css"})
"""The static files of the login page."""
_OPEN_PATHS: Final = frozenset(
    {LOGIN_PATH, "/api/login", "/api/login/link", *(f"/static/{name}" for name in LOGIN_FILES)}
)
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED_FOR: Final = "X-Forwarded-For"
_FOREIGN_PAGE: Final = (
    "a request from a page of another site is refused; behind a proxy that does not pass the Host header on, "
    "set http.public_url to the address in the browser"
)
_SITE_BITS: Final = 64
"""Bits of an IPv6 address that name the network of one subscriber."""


@dataclass(frozen=True, slots=True)
class Access:
    """The ways to log in that the settings allow; it identifies the sender of a request."""

    accounts: Accounts = field(default_factory=lambda: Accounts(()))
    local: LocalLogin | None = None
    """The login of the user who started a server without accounts; None: there are accounts."""
    metrics_token: str = ""
    """The token that opens the metrics and nothing else; empty: there is none."""
    login_header: str = ""
    """The header in which a proxy that has done the login names the account; empty: no such header is trusted."""
    proxies: Sequence[Network] = ()
    """The networks of such proxies. Their X-Forwarded-For is trusted, too."""
    public_url: str = ""
    """The URL by which browsers reach this server through a proxy; the Host of the request is accepted as well."""
    secure: bool = False
    """Whether the session cookie has the attribute Secure, so that browsers send it over HTTPS only."""

    def identify(self, request: web.Request) -> Identity | None:
        """Return who sent the request; None: it has no valid session, token or proxy header."""
        # A token is sent on purpose, while a browser sends its cookie unasked, also for a page of another site. So a
        # request with a token needs no CSRF token.
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._bearer(request, token.strip())
        if (cookie := request.cookies.get(SESSION_COOKIE)) and (
            found := self.accounts.identify_by_cookie(cookie, monotonic())
        ):
            return found
        if self.login_header and self.is_proxy(request.remote or ""):
            names = request.headers.getall(self.login_header, [])
            # A header that comes twice was added by somebody before the proxy.
            return self.accounts.identify_by_proxy(names[0]) if len(names) == 1 else None
        return None

    def is_proxy(self, address: str) -> bool:
        """Return whether the address is one of our proxies'."""
        try:
            plain = plain_address(address.partition("%")[0])
        except ValueError:
            return False
        return any(plain in network for network in self.proxies)

    def client_address(self, request: web.Request) -> str:
        """Return the address for which attempts to log in count: the sender's, or behind a proxy the client's."""
        address = request.remote or ""
        # The list is read from its end, because each proxy appends the address from which it received the request. The
        # first address that is not one of our proxies is the client; what stands before it may be forged.
        hops = ",".join(request.headers.getall(_FORWARDED_FOR, [])).split(",")
        while self.is_proxy(address) and hops and (hop := hops.pop().strip()):
            address = hop
        return counted_address(address)

    def _bearer(self, request: web.Request, token: str) -> Identity | None:
        # The token of a monitoring server is often readable to many: it opens nothing but the metrics.
        if self.metrics_token and request.path == METRICS_PATH and _is_same_secret(token, self.metrics_token):
            return METRICS_READER
        if self.local is not None and self.local.has_token(token):
            return LOCAL
        return self.accounts.identify_by_token(token)


def counted_address(address: str) -> str:
    """Return one name for all addresses of a subscriber: the /64 network of an IPv6 address, or the IPv4 address."""
    try:
        plain = plain_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(plain, IPv6Address):
        return str(ip_network((plain, _SITE_BITS), strict=False))
    return str(plain)


def guard(open_paths: frozenset[str], access: Access) -> Middleware:
    """Return the middleware that lets only identified requests through, except to `open_paths` and the login page."""

    @web.middleware
    async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in open_paths:
            return await handler(request)
        if request.path in _OPEN_PATHS:
            # The login page has no CSRF token, even if a browser with a session logs in again.
            _refuse_foreign(request, access.public_url)
            return await handler(request)
        identity = access.identify(request)
        if identity is None:
            return _refuse_unknown(request)
        _refuse_foreign(request, access.public_url)
        if request.method not in _SAFE_METHODS and identity.csrf and request.headers.get(CSRF_HEADER) != identity.csrf:
            raise web.HTTPForbidden(text=f"the header {CSRF_HEADER} is missing or wrong; reload the page")
        request[IDENTITY] = identity
        # The connection is not anonymous any more, so it does not count towards the limit of its address.
        note_known_peer(request)
        return await handler(request)

    return let_in


def _refuse_foreign(request: web.Request, public_url: str) -> None:
    """Raise 403 for a request that a page of another site made a browser send."""
    if request.method in _SAFE_METHODS and request.headers.get("Upgrade") is None:
        return
    origin = request.headers.get("Origin")
    # Scripts cannot set Sec-Fetch-Site. Browsers leave it out over plain HTTP to other hosts, some also for WebSockets.
    site = request.headers.get("Sec-Fetch-Site")
    if site is None and origin is not None:
        # A proxy may send its own name for us as Host; the name that browsers use is in the settings then.
        ours = {request.host.lower(), urlsplit(public_url).netloc.lower()} - {""}
        site = "same-origin" if _split_origin(origin).netloc.lower() in ours else "cross-site"
    if site not in (None, "none", "same-origin"):
        raise web.HTTPForbidden(text=_FOREIGN_PAGE)


def drops_secure_cookies(request: web.Request) -> bool:
    """Return whether the browser will drop a cookie with the attribute Secure, because its page came over plain HTTP.

    Browsers keep such cookies for pages of the same machine (W3C Secure Contexts, section 3.1).
    """
    origin = _split_origin(request.headers.get("Origin", ""))
    host = origin.hostname or ""
    if origin.scheme != "http" or host == "localhost" or host.endswith(".localhost"):
        return False
    try:
        return not plain_address(host).is_loopback
    except ValueError:
        return True


def _split_origin(origin: str) -> SplitResult:
    # An Origin may be `null` or anything that a program writes there.
    try:
        return urlsplit(origin)
    except ValueError:
        return urlsplit("")


def _refuse_unknown(request: web.Request) -> web.StreamResponse:
    """Redirect a browser that requests a page to the login; raise 401 for a program, which cannot fill in a form."""
    if "text/html" in request.headers.get("Accept", "") and request.method == "GET":
        raise web.HTTPSeeOther(LOGIN_PATH)
    raise web.HTTPUnauthorized(text="log in, or send a token", headers={"WWW-Authenticate": "Bearer"})


def _is_same_secret(given: str, expected: str) -> bool:
    # The comparison takes the same time wherever the two differ, so its duration reveals nothing about the secret.
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode("utf-8", "replace"))


IDENTITY: Final = web.RequestKey("identity", Identity)


def identity_of(request: web.Request) -> Identity:
    """Return who sent a request that the guard has let in."""
    return request[IDENTITY]


def require(request: web.Request, right: Right) -> Identity:
    """Return who sent the request. Raises 403 if they do not have the right."""
    identity = identity_of(request)
    if not identity.may(right):
        raise web.HTTPForbidden(text=f"the right '{right.value}' is needed")
    return identity
