"""The UDP socket of an endpoint, and the local address that reaches a peer."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import cast

from callagent.log import get_logger

log = get_logger(__name__)

_RECEIVE_BUFFER = 4 * 1024 * 1024
"""Octets, if the system allows so many: with its default, messages are lost while the event loop is busy."""
_DISCARD = 9
"""The port of a probe. Any port will do, because nothing is sent to it."""
_reserved: list[int] = []
"""One open descriptor, to be closed when no other is free; used on the event loop only."""


class Datagrams(asyncio.DatagramProtocol):
    """The UDP socket of an endpoint, made by `open`."""

    def __init__(self, on_datagram: Callable[[bytes, tuple[str, int]], None]) -> None:
        self._on_datagram = on_datagram
        self._transport: asyncio.DatagramTransport | None = None
        self.local_address = ("", 0)

    @classmethod
    async def open(cls, host: str, port: int, on_datagram: Callable[[bytes, tuple[str, int]], None]) -> Datagrams:
        """Bind the socket; port 0 takes any free port. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        _reserve_descriptor()
        opened = cls(on_datagram)
        await loop.create_datagram_endpoint(lambda: opened, sock=await _bind(loop, host, port))
        return opened

    def send(self, data: bytes, address: tuple[str, int]) -> None:
        if self._transport is None:
            return
        if (":" in address[0]) != (":" in self.local_address[0]):
            # This socket has one address family, but a peer may name an address of the other.
            log.info("sip_unreachable", error=f"{address[0]} is of another family than our socket")
            return
        # An error is only logged: the transaction sends the message again, as if it had been lost.
        try:
            self._transport.sendto(data, address)
        except (OSError, ValueError) as error:
            log.info("sip_unreachable", error=str(error))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    # asyncio.DatagramProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)
        name = transport.get_extra_info("sockname")
        self.local_address = (name[0], name[1])

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._on_datagram(data, (addr[0], addr[1]))

    def error_received(self, exc: Exception) -> None:
        # ICMP told that the port is unreachable. The transaction times out by itself.
        log.debug("sip_unreachable", error=str(exc))


async def _bind(loop: asyncio.AbstractEventLoop, host: str, port: int) -> socket.socket:
    """Bind to one address family only: no allow-list names an IPv4 peer by its IPv4-mapped IPv6 address."""
    family, kind, protocol, _, address = (await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM))[0]
    opened = socket.socket(family, kind, protocol)
    try:
        opened.setblocking(False)
        if family == socket.AF_INET6:
            opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        opened.bind(address)
    except OSError:
        opened.close()
        raise
    return opened


def route_to(peer: str) -> str:
    """Return the local address that packets to `peer` leave from. Raises `OSError` if no socket can be opened."""
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    with _probe(family) as probe:
        # Connecting a UDP socket sends nothing: it only asks the kernel for the route.
        try:
            probe.connect((peer, _DISCARD))
        except OSError:
            return "::1" if family == socket.AF_INET6 else "127.0.0.1"
        return str(probe.getsockname()[0])


@contextlib.contextmanager
def _probe(family: int) -> Iterator[socket.socket]:
    """Open a socket for a moment, in place of the reserved descriptor if no other is free.

    Even the response that refuses a call for lack of descriptors needs our address.
    """
    try:
        probe = socket.socket(family, socket.SOCK_DGRAM)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _reserved:
            raise
        os.close(_reserved.pop())
        probe = socket.socket(family, socket.SOCK_DGRAM)
    try:
        yield probe
    finally:
        probe.close()
        _reserve_descriptor()


def _reserve_descriptor() -> None:
    if not _reserved:
        with contextlib.suppress(OSError):
            _reserved.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
