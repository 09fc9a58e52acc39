"""TCP and TLS connections: opened when needed, used again, closed when idle; their streams are cut into messages.

RFC 3261 §18 and RFC 5626; a stream is cut by the Content-Length of its messages, with bounds on what is kept (§18.3).
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

from callagent.log import get_logger
from callagent.sip.message import Hop
from callagent.sip.tls import TlsContexts

MAX_STREAM_MESSAGE = 64 * 1024
"""Octets of one message with its body."""

_LENGTH = re.compile(rb"^(?:content-length|l)[ \t]*:[ \t]*([0-9]{1,10})[ \t]*\r?$", re.IGNORECASE | re.MULTILINE)
_HAS_LENGTH = re.compile(rb"^(?:content-length|l)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_HAS_TYPE = re.compile(rb"^(?:content-type|c)[ \t]*:", re.IGNORECASE | re.MULTILINE)
_CRLF_CRLF = b"\r\n\r\n"


class Framer:
    """A divider of one stream into messages; once `broken` is set, it returns no more."""

    def __init__(self) -> None:
        self.broken: bytes | None = None
        """None while the stream can be read. Then the head of the message whose length is invalid or too large, to be
        answered 400; empty if the head itself is too large."""
        self.pings = 0
        """Keep-alives that were received; the caller answers each with CRLF (RFC 5626 §3.5.1) and resets the number."""
        self._buffer = bytearray()
        self._searched = 0

    @property
    def is_partial(self) -> bool:
        """Whether a message has begun and not ended."""
        return bool(self._buffer)

    def feed(self, data: bytes) -> list[bytes]:
        """Take in octets, and return the messages that are complete."""
        messages: list[bytes] = []
        if self.broken is not None:
            return messages
        self._buffer += data
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> bytes | None:
        self._skip_keep_alives()
        end = self._buffer.find(_CRLF_CRLF, self._searched)
        if end < 0:
            # The next search begins before the end: the blank line may be split over two reads.
            self._searched = max(0, len(self._buffer) - len(_CRLF_CRLF) + 1)
            if len(self._buffer) > MAX_STREAM_MESSAGE:
                self._break(b"")
            return None
        head = bytes(self._buffer[: end + len(_CRLF_CRLF)])
        # Only the length is searched for here; the user agent parses the message when it is whole.
        length = _length_of(head)
        if length is None or len(head) + length > MAX_STREAM_MESSAGE:
            self._break(head)
            return None
        self._searched = end
        if len(self._buffer) < len(head) + length:
            return None
        message = bytes(self._buffer[: len(head) + length])
        del self._buffer[: len(message)]
        self._searched = 0
        return message

    def _skip_keep_alives(self) -> None:
        if self._searched or not self._buffer.startswith((b"\r", b"\n")):
            return
        rest = self._buffer.lstrip(b"\r\n")
        blank = bytes(self._buffer[: len(self._buffer) - len(rest)])
        self.pings += blank.count(_CRLF_CRLF)
        # An incomplete keep-alive (CRLF without the second CRLF) stays for the next read.
        keep = b"" if rest else blank[len(blank) - len(blank) % len(_CRLF_CRLF) :]
        self._buffer = bytearray(keep) + rest

    def _break(self, head: bytes) -> None:
        self.broken = head
        self._buffer.clear()


def _length_of(head: bytes) -> int | None:
    """Return the length of the body in octets.

    0: neither Content-Length nor Content-Type is given. None: Content-Length is invalid, or missing for a Content-Type.
    """
    lengths = _LENGTH.findall(head)
    if len(lengths) == 1 and len(_HAS_LENGTH.findall(head)) == 1:
        return int(lengths[0])
    return None if _HAS_LENGTH.search(head) or _HAS_TYPE.search(head) else 0


log = get_logger(__name__)

_RETRY_SECONDS = 0.1
"""Pause after a failed accept, so that the loop does not spin; the kernel keeps the connections waiting."""


async def accept_connections(
    listener: socket.socket, failure: str
) -> AsyncIterator[tuple[socket.socket, tuple[object, ...]]]:
    """Yield the socket and the peer's address of each connection, until cancelled; also used for HTTP.

    `failure` is the event that is logged while connections cannot be accepted.
    """
    loop = asyncio.get_running_loop()
    failing = False
    while True:
        try:
            accepted = await loop.sock_accept(listener)
        except OSError as error:
            # No descriptor is free, or the peer has gone already. Only the first failure in a row is logged.
            if not failing:
                log.warning(failure, error=str(error))
            failing = True
            await asyncio.sleep(_RETRY_SECONDS)
            continue
        failing = False
        yield accepted


MAX_CONNECTIONS = 2000
"""Connections of all peers, with the handshakes in progress."""
MAX_PER_HOST = 1200
"""Connections of one address: a NAT, or a proxy of a carrier, brings those of many phones."""
MAX_UNSENT = 256 * 1024
"""Octets that wait to be sent to a peer before its connection is aborted."""

Key = tuple[str, str, int]
"""Transport, host and port."""


@dataclass(frozen=True, slots=True)
class StreamLimits:
    """Time limits of connections, in seconds."""

    message: float = 30.0
    """Until the first message of a connection, and from the first to the last octet of each message."""
    idle: float = 900.0
    """How long a connection may carry neither a message nor a keep-alive."""
    connect: float = 5.0
    """For a connection and its TLS handshake, in either direction."""
    trial: float = 1.5
    """For a connection that falls back to UDP: long enough for TCP to repeat its SYN after a second."""


class Connection(asyncio.Protocol):
    """One TCP or TLS connection to a peer."""

    def __init__(self, owner: Connections, transport_name: str, hop: Hop | None = None) -> None:
        """`hop` is where we connect to; None: the peer connects to us."""
        self.is_outgoing = hop is not None
        self.hop = hop or Hop("", 0, transport_name)
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._framer = Framer()
        self._transport: asyncio.Transport | None = None
        self._has_received = False
        self._active_at = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def key(self) -> Key:
        return (self.hop.transport, self.hop.host, self.hop.port)

    def send(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if self._transport.get_write_buffer_size() > MAX_UNSENT:
            log.warning("sip_peer_reads_too_slowly", peer=self.hop.host)
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self.is_outgoing:
            host, port = transport.get_extra_info("peername")[:2]
            self.hop = Hop(host, port, self.hop.transport, connection=port)
        self._owner.add(self)
        self._timer = self._loop.call_later(self._owner.limits.message, self._check_idle)

    def data_received(self, data: bytes) -> None:
        messages = self._framer.feed(data)
        # Octets of an unfinished message are no sign of life: a peer that sends one octet at a time is closed, too.
        if messages or not self._framer.is_partial:
            self._active_at = self._loop.time()
        for message in messages:
            self._has_received = True
            self._owner.on_message(message, self.hop, True)
        if self._framer.pings:
            self.send(b"\r\n" * self._framer.pings)
            self._framer.pings = 0
        # After a message without a valid length nobody knows where the next one begins (§18.3).
        if self._framer.broken is not None:
            if self._framer.broken:
                self._owner.on_message(self._framer.broken, self.hop, False)
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._owner.remove(self)

    def _check_idle(self) -> None:
        # One timer compares the time of the last message, so that no message has to set a timer anew.
        limits, now = self._owner.limits, self._loop.time()
        waiting = self._framer.is_partial or not (self._has_received or self.is_outgoing)
        limit = limits.message if waiting else limits.idle
        if now - self._active_at >= limit:
            log.info("sip_connection_idle", peer=self.hop.host, port=self.hop.port)
            self.close()
            return
        # We opened the connection, so we keep it and the bindings of NATs on its way alive (RFC 5626 §3.5.1).
        if self.is_outgoing:
            self.send(b"\r\n\r\n")
        self._timer = self._loop.call_later(min(limits.message, limit - (now - self._active_at)), self._check_idle)


class Connections:
    """All connections of an endpoint; callbacks get each message, and each connection that ends or cannot be made."""

    def __init__(
        self,
        tls: TlsContexts,
        admit: Callable[[str], bool],
        on_message: Callable[[bytes, Hop, bool], None],
        on_lost: Callable[[Hop], None],
        limits: StreamLimits,
    ) -> None:
        """`admit` tells whether an IP address may connect.

        `on_message` gets a message, its source, and whether it is whole: False for a head without a valid length.
        """
        self.limits = limits
        self.on_message = on_message
        self._tls = tls
        self._admit = admit
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._open: dict[Key, Connection] = {}
        self._per_host: Counter[str] = Counter()
        self._unsent: dict[Key, bytearray] = {}
        self._listeners: list[socket.socket] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._open)

    def prepare(self) -> None:
        """Load the trusted authorities in advance. The first connection that needs them reports errors."""
        with contextlib.suppress(OSError):
            self._tls.client()

    async def listen(self, transport: str, host: str, port: int) -> tuple[str, int]:
        """Accept `tcp` or `tls` connections, and return the address. Raises `OSError`."""
        if transport == "tls":
            self._tls.server()
        family, kind, protocol, _, address = (await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM))[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setblocking(False)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # As for UDP: no IPv4 peer may appear under an IPv6 address, which no allow-list names.
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(512)
        except OSError:
            listener.close()
            raise
        self._listeners.append(listener)
        self._start(self._accept(listener, transport), f"accept sip {transport}")
        name = listener.getsockname()
        return str(name[0]), int(name[1])

    def send(self, data: bytes, hop: Hop) -> None:
        """Send over the connection that the hop names, another one to the same address, or a new one.

        Messages wait for a connection that is being made, up to `MAX_UNSENT` octets.
        """
        preferred = None if hop.connection is None else self._open.get((hop.transport, hop.host, hop.connection))
        key = (hop.transport, hop.host, hop.port)
        connection = preferred or self._open.get(key)
        if connection is not None:
            connection.send(data)
        elif key in self._unsent:
            if len(self._unsent[key]) + len(data) <= MAX_UNSENT:
                self._unsent[key] += data
        else:
            self._unsent[key] = bytearray(data)
            self._start(self._connect(hop, key), f"connect {hop.host}")

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for listener in self._listeners:
            listener.close()
        for connection in list(self._open.values()):
            connection.close()

    def add(self, connection: Connection) -> None:
        self._open[connection.key] = connection
        self._per_host[connection.hop.host] += 1

    def remove(self, connection: Connection) -> None:
        if self._open.get(connection.key) is connection:
            del self._open[connection.key]
        host = connection.hop.host
        self._per_host[host] -= 1
        if self._per_host[host] <= 0:
            del self._per_host[host]
        self._on_lost(connection.hop)

    def _start(self, work: asyncio._CoroutineLike[None], name: str) -> None:
        task = self._loop.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, listener: socket.socket, transport: str) -> None:
        async for accepted, address in accept_connections(listener, "sip_not_accepted"):
            host = str(address[0])
            # Handshakes count as well: each holds a descriptor, and a stranger could begin any number of them.
            full = len(self._open) + len(self._tasks) >= MAX_CONNECTIONS or self._per_host[host] >= MAX_PER_HOST
            if full or not self._admit(host):
                accepted.close()
            else:
                self._start(self._complete_handshake(accepted, transport), f"accept {host}")

    async def _complete_handshake(self, accepted: socket.socket, transport: str) -> None:
        try:
            # A response is sent at once, and does not wait for an acknowledgement of the previous one (Nagle).
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._tls.server() if transport == "tls" else None
            async with asyncio.timeout(self.limits.connect):
                await self._loop.connect_accepted_socket(lambda: Connection(self, transport), accepted, ssl=context)
        except (OSError, TimeoutError) as error:
            log.info("sip_handshake_failed", error=str(error))
            accepted.close()

    async def _connect(self, hop: Hop, key: Key) -> None:
        try:
            secure = hop.transport == "tls"
            context = self._tls.client() if secure else None
            name = (hop.name or hop.host) if secure else None
            async with asyncio.timeout(self.limits.trial if hop.tentative else self.limits.connect):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self, hop.transport, hop), hop.host, hop.port, ssl=context, server_hostname=name
                )
        except (OSError, TimeoutError) as error:
            # An attempt that falls back to UDP is expected to fail at peers without TCP.
            write = log.info if hop.tentative else log.warning
            write("sip_not_connected", peer=hop.host, port=hop.port, transport=hop.transport, error=str(error))
            del self._unsent[key]
            self._on_lost(hop)
            return
        connection.send(bytes(self._unsent.pop(key)))
