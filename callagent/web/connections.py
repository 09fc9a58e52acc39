"""HTTP connections and what comes over them: sockets and TLS, deadlines, bounds for each address, bodies of requests.

aiohttp reads the requests, but it waits for the rest of a request as long as a peer likes. So the deadlines are here: a
connection that owes us the rest of a header or of a body for too long is cut. A connection takes one of the places of
its address until one of its requests was let in, so that strangers cannot use up the server's connections.

Bodies are JSON, checked against a model, or forms. All are read as UTF-8; the charset that a request claims is ignored:
some of Python's codecs take time that grows with the square of the body (`punycode`), and the sender may not have been
identified yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeVar, cast
from urllib.parse import parse_qsl

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel, ConfigDict, ValidationError

from callagent.json_values import JsonValue
from callagent.log import get_logger
from callagent.sip import TlsContexts, accept_connections

HEADER_SECONDS: Final = 15.0
"""From the start of a connection, or from the first octet of a later request, to the end of the request's header."""
BODY_SECONDS: Final = 60.0
"""From the end of the header to the end of the body."""
IDLE_SECONDS: Final = 75.0
"""Between two requests; longer than proxies keep a connection for the next one. The first part of a second request that
came in one packet with the first request has as long."""
LINGER_SECONDS: Final = 2.0
"""How long the rest of a body that nobody reads is waited for, so that the answer is not lost with the connection."""


HANDSHAKE_SECONDS: Final = 10.0
"""How long a TLS handshake may take."""
_BACKLOG: Final = 512
"""Connections that the kernel holds until they are accepted."""


class Places:
    """Counts the connections of each address of which no request was let in yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Take a place of the address; return False when none is left."""
        if self._taken[address] >= self._most:
            return False
        self._taken[address] += 1
        return True

    def free(self, address: str) -> None:
        """Give a place of the address back."""
        self._taken[address] -= 1
        if self._taken[address] <= 0:
            del self._taken[address]

    def __len__(self) -> int:
        return self._taken.total()


class HttpConnection(asyncio.Protocol):
    """Stands between the transport and aiohttp's protocol, and cuts a connection whose deadline passes."""

    def __init__(self, inner: asyncio.Protocol, place: Place) -> None:
        self._inner = inner
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._request: web.Request | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def is_known(self) -> None:
        """Give the connection's place free: one of its requests was let in. Idempotent."""
        self._place.leave()

    def begin(self, request: web.Request) -> None:
        """Note that the header of a request is complete."""
        self._request = request
        self._set_deadline(None if request.content.is_eof() else BODY_SECONDS)

    def end(self) -> None:
        """Note that the request was answered. aiohttp waits `LINGER_SECONDS` for a body that was not read."""
        self._request = None
        self._set_deadline(None)

    # Methods of asyncio.Protocol: each passes on to aiohttp's protocol what the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._set_deadline(HEADER_SECONDS)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        # The first octets of a later request: the deadline of its header begins here.
        if self._request is None and self._deadline is None:
            self._set_deadline(HEADER_SECONDS)
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._set_deadline(None)
        self._place.leave()
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def _set_deadline(self, seconds: float | None) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None if seconds is None else self._loop.call_later(seconds, self._cut)

    def _cut(self) -> None:
        self._deadline = None
        # A body that has come whole in the meantime is no longer owed to us.
        complete = self._request is not None and self._request.content.is_eof()
        if self._transport is not None and not complete:
            self._transport.abort()


class Place:
    """A connection's place among those of its address, freed once. `places` is None for a peer that is not counted."""

    def __init__(self, places: Places | None, address: str) -> None:
        self._places = places
        self._address = address

    def leave(self) -> None:
        """Free the place. Idempotent."""
        if self._places is not None:
            self._places.free(self._address)
            self._places = None


@web.middleware
async def watch_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell the connection when a request begins and ends; it comes before every other middleware."""
    connection = _connection_of(request)
    if connection is None:
        return await handler(request)
    # aiohttp calls its middlewares once a header is complete; nothing else tells the connection.
    connection.begin(request)
    try:
        return await handler(request)
    finally:
        connection.end()


def peer_is_known(request: web.Request) -> None:
    """Note that the request was let in by a login, a token or a signature: its connection takes no place any more."""
    if (connection := _connection_of(request)) is not None:
        connection.is_known()


def _connection_of(request: web.Request) -> HttpConnection | None:
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, HttpConnection) else None


log = get_logger(__name__)


class HttpListener:
    """Accepts connections and gives each to a protocol of aiohttp."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        counted: Callable[[str], str | None],
        per_address: int,
        tls: TlsContexts | None = None,
    ) -> None:
        """`counted` returns the address by which a peer is counted, or None for one that is not."""
        self._make_protocol = make_protocol
        self._counted = counted
        self._places = Places(per_address)
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[str] = set()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on every address of `host` and return the first one. Raises `OSError`, also for a certificate."""
        # A certificate that cannot be read is an error of the start, not of the first connection.
        if self._tls is not None:
            self._tls.server()
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                self._sockets.append(listener := socket.socket(family, kind, protocol))
                _bind(listener, address)
        except OSError:
            await self.close()
            raise
        # Only now, so that no connection is accepted where one of the sockets could not be opened.
        for listener in self._sockets:
            self._start(self._accept(listener), "accept http")
        name = self._sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def close(self) -> None:
        """Accept no more connections; aiohttp closes those that are open."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._sockets:
            listener.close()
        self._sockets.clear()

    async def _accept(self, listener: socket.socket) -> None:
        async for accepted, address in accept_connections(listener, "http_not_accepted"):
            if (place := self._place_of(str(address[0]))) is None:
                accepted.close()
            else:
                self._start(self._welcome(accepted, place), "welcome http")

    def _place_of(self, host: str) -> Place | None:
        address = self._counted(host)
        if address is None:
            return Place(None, host)
        if self._places.take(address):
            self._refused.discard(address)
            return Place(self._places, address)
        if address not in self._refused:
            # Logged once until the address has a place again: a flood of connections shall not flood the log.
            self._refused.add(address)
            log.warning("http_too_many_connections", peer=address)
        return None

    async def _welcome(self, accepted: socket.socket, place: Place) -> None:
        """Give a connection to aiohttp, after its TLS handshake. A place is taken from the first octet on."""
        try:
            accepted.setblocking(False)
            # Frames of a media stream are small and must not wait for one another (Nagle's algorithm).
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = None if self._tls is None else self._tls.server()
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                await self._loop.connect_accepted_socket(
                    lambda: HttpConnection(self._make_protocol(), place), accepted, ssl=context
                )
        except (OSError, TimeoutError) as error:
            log.debug("http_handshake_failed", error=str(error))
            place.leave()
            accepted.close()
        except asyncio.CancelledError:
            place.leave()
            raise

    def _start(self, work: asyncio._CoroutineLike[None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _bind(listener: socket.socket, address: object) -> None:
    listener.setblocking(False)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    # An IPv6 socket would take the IPv4 addresses of the port, too, for which there is a socket of its own.
    if listener.family == socket.AF_INET6:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen(_BACKLOG)


M = TypeVar("M", bound=BaseModel)


class Body(BaseModel):
    """A request's JSON object; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


async def read_body(request: web.Request, model: type[M]) -> M:
    """Return the body as a model. Raises 400 naming the wrong field, and 415 for another content type."""
    try:
        return model.model_validate(await read_json(request))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "the body"
        raise web.HTTPBadRequest(text=f"{place}: {first['msg']}") from None


async def read_text(request: web.Request) -> str:
    """Return the body as text. Raises `ValueError` for invalid UTF-8."""
    return (await request.read()).decode()


async def read_form(request: web.Request) -> list[tuple[str, str]]:
    """Return the fields of a form, in their order. Raises 400, and 415 for another content type."""
    if request.content_type != "application/x-www-form-urlencoded":
        raise web.HTTPUnsupportedMediaType(text="the body should be application/x-www-form-urlencoded")
    try:
        return parse_qsl((await read_text(request)).rstrip(), keep_blank_values=True)
    except ValueError:
        raise web.HTTPBadRequest(text="the form is not valid UTF-8") from None


async def read_json(request: web.Request) -> JsonValue:
    """Return the body's JSON. Raises 400, and 415 for another content type."""
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="the body should be application/json")
    try:
        # A lone surrogate is valid in JSON, but no file or database can store it as text: encoding finds it.
        data: JsonValue = json.loads(await read_text(request), parse_constant=_no_constant)
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not valid JSON") from None
    return data


def _no_constant(name: str) -> None:
    # Python reads NaN and Infinity, which RFC 8259 does not have.
    raise ValueError(f"{name} is not valid JSON")
