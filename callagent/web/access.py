"""Who may see what is not for everybody: this machine, reached directly."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

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


def local_only(open_paths: frozenset[str]) -> Middleware:
    """Refuse everything but `open_paths` to all who are not local."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path not in open_paths and not direct_and_local(request):
            raise web.HTTPForbidden(text="only for this machine")
        return await handler(request)

    return guard


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
