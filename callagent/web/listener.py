"""The sockets of the HTTP side: who may connect, and TLS with certificates that are read again when they change."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable
from typing import Final

from callagent.log import get_logger
from callagent.sip import TlsContexts, accept_connections
from callagent.web.connection import HttpConnection, Place, Places

log = get_logger(__name__)

HANDSHAKE_SECONDS: Final = 10.0
"""For the TLS handshake."""
_BACKLOG: Final = 512


class HttpListener:
    """Accepts connections and gives each to a protocol of aiohttp's."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        counted: Callable[[str], str | None],
        per_address: int,
        tls: TlsContexts | None = None,
    ) -> None:
        """`counted` names the address that a peer is counted by; None: it is not counted."""
        self._make_protocol = make_protocol
        self._counted = counted
        self._places = Places(per_address)
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._sockets: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused: set[str] = set()

    async def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen on every address of `host`; the first one. Raises `OSError`, also for a certificate."""
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
        for listener in self._sockets:
            self._start(self._accept(listener), "accept http")
        name = self._sockets[0].getsockname()
        return str(name[0]), int(name[1])

    async def close(self) -> None:
        """Accept no more; connections that are open are aiohttp's."""
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
            # Once, until it has a place again: a flood of connections is none of log lines.
            self._refused.add(address)
            log.warning("http_too_many_connections", peer=address)
        return None

    async def _welcome(self, accepted: socket.socket, place: Place) -> None:
        try:
            accepted.setblocking(False)
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
    if listener.family == socket.AF_INET6:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen(_BACKLOG)
