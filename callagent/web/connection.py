"""One connection to the HTTP side: its deadlines, and its place among those of its address.

aiohttp reads the requests. It waits for the end of a request as long as a peer likes, so the deadlines are ours: a
connection that owes us the rest of a header or of a body for too long is cut. A connection takes one of the places of
its address until one of its requests was let in.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final, cast

from aiohttp import web
from aiohttp.typedefs import Handler

HEADER_SECONDS: Final = 15.0
"""From the start of a connection, or from the first octet of a later request, to the end of the request's header."""
BODY_SECONDS: Final = 60.0
"""From there to the end of its body."""
IDLE_SECONDS: Final = 75.0
"""Between two requests; longer than proxies keep a connection for the next one. Half a second request that came in one
packet with the first has as long."""
LINGER_SECONDS: Final = 2.0
"""For the rest of a body that nobody reads, so that the answer is not lost with the connection."""


class Places:
    """The connections of each address that have proved nothing yet."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()

    def take(self, address: str) -> bool:
        """Whether there was one left."""
        if self._taken[address] >= self._most:
            return False
        self._taken[address] += 1
        return True

    def free(self, address: str) -> None:
        self._taken[address] -= 1
        if self._taken[address] <= 0:
            del self._taken[address]

    def __len__(self) -> int:
        return self._taken.total()


class HttpConnection(asyncio.Protocol):
    """Passes on to aiohttp's protocol what the transport says."""

    def __init__(self, inner: asyncio.Protocol, place: Place) -> None:
        self._inner = inner
        self._place = place
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._request: web.Request | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def is_known(self) -> None:
        """A request of this connection was let in: it takes no place any more. Idempotent."""
        self._place.leave()

    def begin(self, request: web.Request) -> None:
        """The header is complete."""
        self._request = request
        self._set_deadline(None if request.content.is_eof() else BODY_SECONDS)

    def end(self) -> None:
        """The request has its answer. Its body, if it was not read, is aiohttp's to wait for a moment."""
        self._request = None
        self._set_deadline(None)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._set_deadline(HEADER_SECONDS)
        self._inner.connection_made(transport)

    def data_received(self, data: bytes) -> None:
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
        complete = self._request is not None and self._request.content.is_eof()
        if self._transport is not None and not complete:
            self._transport.abort()


class Place:
    """A connection's place among those of its address; it is freed once. `places` None: it never counted."""

    def __init__(self, places: Places | None, address: str) -> None:
        self._places = places
        self._address = address

    def leave(self) -> None:
        """Idempotent."""
        if self._places is not None:
            self._places.free(self._address)
            self._places = None


@web.middleware
async def watch_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tell the connection when a request begins and ends; it comes before every other middleware."""
    connection = _connection_of(request)
    if connection is None:
        return await handler(request)
    connection.begin(request)
    try:
        return await handler(request)
    finally:
        connection.end()


def peer_is_known(request: web.Request) -> None:
    """The request was let in, by a login, a token or a signature."""
    if (connection := _connection_of(request)) is not None:
        connection.is_known()


def _connection_of(request: web.Request) -> HttpConnection | None:
    protocol = None if request.transport is None else request.transport.get_protocol()
    return protocol if isinstance(protocol, HttpConnection) else None
