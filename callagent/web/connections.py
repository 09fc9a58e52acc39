"""HTTP connections and request bodies: sockets and TLS, deadlines, and bounds for each address.

aiohttp reads the requests, but it waits for the rest of a request as long as a peer likes. So the deadlines are here: a
connection whose header or body is incomplete for too long is cut. Each address has a number of places; a connection
takes one until one of its requests was let in, so that strangers cannot use up the server's connections.

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
"""Time from the start of a connection, or from the first octet of a later request, to the end of the header."""
BODY_SECONDS: Final = 60.0
"""Time from the end of the header to the end of the body."""
IDLE_SECONDS: Final = 75.0
"""Time between two requests; longer than proxies keep a connection for the next one. It is also the time for the rest
of a second request whose first part came in one packet with the first request."""
LINGER_SECONDS: Final = 2.0
"""Time to wait for the rest of a body that nobody reads: to close earlier could lose the answer."""


HANDSHAKE_SECONDS: Final = 10.0
"""Time limit of a TLS handshake."""
_BACKLOG: Final = 512
"""Connections that the kernel holds until they are accepted."""


class Places:
    """Counts, by address, the connections on which no request was let in yet."""

    def __init__(self, per_address: int) -> None:
        self._per_address = per_address
        self._taken: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Take a place of the address; return False if none is left."""
        if self._taken[address] >= self._per_address:
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

    def free_place(self) -> None:
        """Free the connection's place, because one of its requests was let in. Idempotent."""
        self._place.leave()

    def begin(self, request: web.Request) -> None:
        """Note that the header of a request is complete."""
        self._request = request
        self._set_deadline(None if request.content.is_eof() else BODY_SECONDS)

    def end(self) -> None:
        """Note that the request was answered. aiohttp itself waits `LINGER_SECONDS` for a body that was not read."""
        self._request = None
        self._set_deadline(None)

    # Methods of asyncio.Protocol: each passes the transport's call on to aiohttp's protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._set_deadline(HEADER_SECONDS)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
        # With the first octets of a later request, the deadline of its header begins.
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
        # A body that is complete by now is no reason to cut the connection.
        complete = self._request is not None and self._request.content.is_eof()
        if self._transport is not None and not complete:
            self._transport.abort()


class Place:
    """A connection's place among those of its address, freed once."""

    def __init__(self, places: Places | None, address: str) -> None:
        """`places`: where the place is counted; None: the peer is not counted."""
        self._places = places
        self._address = address

    def leave(self) -> None:
        """Free the place. Idempotent."""
        if self._places is not None:
            self._places.free(self._address)
            self._places = None


@web.middleware
async def watch_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell the connection when a request begins and ends. This middleware comes before all others."""
    connection = _connection_of(request)
    if connection is None:
        return await handler(request)
    # aiohttp calls its middlewares when a header is complete; it has no other hook for this.
    connection.begin(request)
    try:
        return await handler(request)
    finally:
        connection.end()


def note_known_peer(request: web.Request) -> None:
    """Note that a login, token or signature let the request in: its connection takes no place any more."""
    if (connection := _connection_of(request)) is not None:
        connection.free_place()


def _connection_of(request: web.Request) -> HttpConnection | None:
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, HttpConnection) else None


log = get_logger(__name__)


class HttpListener:
    """Accepts connections and gives each to a protocol of aiohttp."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        counted_address: Callable[[str], str | None],
        per_address: int,
        tls: TlsContexts | None = None,
    ) -> None:
        """`counted_address` returns the address for which a peer's connections count; None: they do not count."""
        self._make_protocol = make_protocol
        self._counted_address = counted_address
        self._places = Places(per_address)
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[str] = set()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on every address of `host` and return the first one. Raises `OSError`, also for a certificate."""
        # A certificate that cannot be read shall raise now, not at the first connection.
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
        # Connections are accepted only now, when all sockets are open.
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
                self._start(self._open_connection(accepted, place), "open http")

    def _place_of(self, host: str) -> Place | None:
        address = self._counted_address(host)
        if address is None:
            return Place(None, host)
        if self._places.take(address):
            self._refused.discard(address)
            return Place(self._places, address)
        if address not in self._refused:
            # This is logged once until the address has a place again: many connections shall not flood the log.
            self._refused.add(address)
            log.warning("http_too_many_connections", peer=address)
        return None

    async def _open_connection(self, accepted: socket.socket, place: Place) -> None:
        """Give a connection to aiohttp after its TLS handshake; if that fails, free its place."""
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
    # An IPv6 socket would also accept IPv4 connections to the port, for which there is another socket.
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
    """Return the body as an instance of `model`. Raises 400 naming the wrong field, and 415 for another type."""
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
        data: JsonValue = json.loads(await read_text(request), parse_constant=_refuse_constant)
        json.dumps(data, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not valid JSON") from None
    return data


def _refuse_constant(name: str) -> None:
    # Python's parser accepts NaN and Infinity, which RFC 8259 does not allow.
    raise ValueError(f"{name} is not valid JSON")
