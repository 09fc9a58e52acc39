"""WebSockets of media streams: their bounds, who may open one, and which leg it belongs to.

`MediaSocket` bounds what waits to be sent, how fast messages come, and how long closing takes; every carrier and the
Session API use it. `MediaStreams` serves a carrier's sockets: until a stream has proved which call it belongs to, its
audio goes nowhere, and only a few such streams are held for one address.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from socket import SO_SNDBUF, SOL_SOCKET
from typing import Final

from aiohttp import WSMsgType, web

from callagent.carriers import protocol
from callagent.carriers.calls import CarrierCalls, Refused
from callagent.carriers.leg import CarrierLeg
from callagent.log import get_logger

MAX_OUTGOING: Final = 256 * 1024
"""Bytes that may wait for a peer that does not read; with more, the connection is cut."""
KERNEL_BUFFER: Final = 65536
"""Bytes of a socket's send buffer."""
CLOSE_SECONDS: Final = 2.0
"""How long a closing handshake may take."""
MESSAGES_PER_SECOND: Final = 200.0
"""Messages of a peer in the long run; four times as many as audio needs."""
MESSAGE_BURST: Final = 1000.0
"""Messages at once: a carrier sends as many after its network has stalled for some seconds."""

log = get_logger(__name__)


class MessageRate:
    """A token bucket over a socket's incoming messages. `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._left = MESSAGE_BURST
        self._at = now

    def admit_message(self, now: float) -> bool:
        """Count a message; return False when there are too many."""
        self._left = min(MESSAGE_BURST, self._left + (now - self._at) * MESSAGES_PER_SECOND)
        self._at = now
        self._left -= 1
        return self._left >= 0


class MediaSocket:
    """Implements `CarrierLink` over aiohttp's WebSocket. A task runs `write()` while another one reads `messages()`.

    aiohttp sends from coroutines only, so what the clock's ticks send is queued here, and bounded here.
    """

    def __init__(self, ws: web.WebSocketResponse, transport: asyncio.WriteTransport) -> None:
        self._ws = ws
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._queue: deque[protocol.Message | None] = deque()
        """Messages to send; None is a ping."""
        self._queued = 0
        self._wake = asyncio.Event()
        self._close_code: int | None = None
        self._last_words = ""
        self._drains = False
        """Whether queued messages are sent before the close."""
        self._cut_off: asyncio.TimerHandle | None = None
        connection = transport.get_extra_info("socket")
        if connection is not None:
            # Audio in the kernel's buffer can be neither counted nor cleared, so the buffer is kept short.
            connection.setsockopt(SOL_SOCKET, SO_SNDBUF, KERNEL_BUFFER)

    def send(self, message: protocol.Message) -> None:
        """Queue a message. A peer that does not read loses its connection."""
        if self._close_code is not None:
            return
        # The limit counts this message too, and what the kernel has not taken yet.
        self._queued += len(message)
        if self._queued + self._transport.get_write_buffer_size() > MAX_OUTGOING:
            log.warning("media_socket_not_read", queued=self._queued)
            self.abort()
            return
        self._queue.append(message)
        self._wake.set()

    def ping(self) -> None:
        """Queue a ping."""
        if self._close_code is None:
            self._queue.append(None)
            self._wake.set()

    def close(self, code: int, last_words: str = "", *, drain: bool = False) -> None:
        """Close with a code, after the text `last_words`; a peer that does not answer is cut off after 3 s.

        With `drain` the queued messages are sent before, otherwise they are dropped.
        """
        if self._close_code is None:
            self._close_code = code
            self._drains = drain
            self._last_words = last_words
            # aiohttp bounds the handshake; this timer also ends a write that the peer blocks.
            self._cut_off = self._loop.call_later(CLOSE_SECONDS + 1, self._transport.abort)
            self._wake.set()

    def abort(self) -> None:
        """End the connection without a closing handshake."""
        self._queue.clear()
        self.close(protocol.SERVER_ERROR)
        self._transport.abort()

    async def write(self) -> None:
        """Send what is queued until `close` is called, then close the socket; bounded in time from there."""
        try:
            while self._close_code is None:
                self._wake.clear()
                await self._write_queued()
                await self._wake.wait()
        except OSError:
            pass
        self.close(protocol.SERVER_ERROR)
        try:
            await self._write_queued()
            if self._last_words:
                await self._ws.send_str(self._last_words)
            await self._ws.close(code=self._close_code or protocol.SERVER_ERROR)
        except OSError:
            pass
        finally:
            if self._cut_off:
                self._cut_off.cancel()

    async def messages(self) -> AsyncIterator[protocol.Message | None]:
        """Yield the peer's messages, and None for signs of life; ends with the socket. Raises `DialectError`."""
        rate = MessageRate(self._loop.time())
        async for message in self._ws:
            if not rate.admit_message(self._loop.time()):
                raise protocol.DialectError("the peer sends too many messages")
            match message.type:
                case WSMsgType.TEXT | WSMsgType.BINARY:
                    yield message.data
                case WSMsgType.PING:
                    await self._ws.pong(message.data)
                    yield None
                case WSMsgType.PONG:
                    yield None
                case _:
                    return

    async def _write_queued(self) -> None:
        while self._queue and (self._close_code is None or self._drains):
            message = self._queue.popleft()
            if message is None:
                await self._ws.ping()
                continue
            self._queued -= len(message)
            if isinstance(message, str):
                await self._ws.send_str(message)
            else:
                await self._ws.send_bytes(message)


START_SECONDS: Final = 10.0
"""Time from the upgrade to a start with a valid token."""
MAX_STRANGERS: Final = 50
"""Sockets of one address that have not yet proved which call they belong to."""


class MediaStreams:
    """The open media streams of one carrier account."""

    def __init__(self, calls: CarrierCalls, open_dialect: Callable[[], protocol.CarrierDialect]) -> None:
        self._calls = calls
        self._open_dialect = open_dialect
        self._sockets: set[MediaSocket] = set()
        self._strangers: Counter[str] = Counter()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Upgrade the request to a media stream and serve it to its end. The carrier's signature was checked before."""
        with self._stranger(request.remote or "") as stranger:
            ws = web.WebSocketResponse(
                timeout=CLOSE_SECONDS, autoping=False, compress=False, max_msg_size=protocol.MAX_MESSAGE_BYTES
            )
            await ws.prepare(request)
            assert request.transport is not None
            socket = MediaSocket(ws, request.transport)
            self._sockets.add(socket)
            try:
                async with asyncio.TaskGroup() as group:
                    # The task ends by itself once the socket is closed, which `_serve` does in any case.
                    group.create_task(socket.write())
                    await self._serve(MediaStream(socket, self._calls, self._open_dialect()), socket, stranger)
            finally:
                self._sockets.discard(socket)
        return ws

    def close(self) -> None:
        """Close every socket, as the server stops."""
        for socket in tuple(self._sockets):
            socket.close(protocol.GOING_AWAY)

    async def _serve(self, stream: MediaStream, socket: MediaSocket, stranger: Stranger) -> None:
        """Read the stream to its end, and tell its leg, if it got one, of the end."""
        try:
            # An error in the audio of one call must not end other calls.
            with log.contain("media_stream_failed") as boundary:
                await self._feed(stream, socket, stranger)
            if boundary.error is not None:
                socket.close(protocol.SERVER_ERROR)
                stream.fail("the audio of the call raised an error")
        finally:
            # A socket and a leg that were closed above ignore this: the first code and reason count.
            stream.cut()
            socket.close(protocol.NORMAL_CLOSURE)

    async def _feed(self, stream: MediaStream, socket: MediaSocket, stranger: Stranger) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                await stream.await_start()
            stranger.prove()
            await stream.feed_leg()
        except (TimeoutError, Refused) as error:
            log.warning("media_stream_refused", reason=str(error) or "no start in time")
            socket.close(protocol.POLICY_VIOLATION)
        except protocol.DialectError as error:
            log.warning("media_stream_refused", reason=str(error))
            socket.close(protocol.PROTOCOL_ERROR)
            stream.fail(str(error))

    @contextmanager
    def _stranger(self, address: str) -> Iterator[Stranger]:
        if self._strangers[address] >= MAX_STRANGERS:
            raise web.HTTPTooManyRequests(text="too many streams that have not started")
        stranger = Stranger(self._strangers, address)
        try:
            yield stranger
        finally:
            stranger.prove()


class MediaStream:
    """One media stream, whose messages go to a leg once it has proved which call it belongs to."""

    def __init__(self, socket: MediaSocket, calls: CarrierCalls, dialect: protocol.CarrierDialect) -> None:
        self._socket = socket
        self._calls = calls
        self._messages = socket.messages()
        self._dialect = dialect
        self._leg: CarrierLeg | None = None

    async def await_start(self) -> None:
        """Read until the stream has started with a valid token, or has ended. Raises `Refused`, `DialectError`."""
        async for message in self._messages:
            for event in self._dialect.receive_message(message) if message is not None else ():
                if isinstance(event, protocol.StreamStarted):
                    self._leg = self._calls.attach_stream(event, self._socket, self._dialect)
            if self._leg is not None:
                return

    async def feed_leg(self) -> None:
        """Give the leg every event until the socket ends or the leg has another stream. Raises `DialectError`."""
        leg = self._leg
        if leg is None:
            return
        async for message in self._messages:
            leg.note_life()
            if message is not None:
                for event in self._dialect.receive_message(message):
                    leg.receive(event, self._socket)
            if not leg.listens_to(self._socket):
                return

    def cut(self) -> None:
        """Tell the leg that its socket has ended."""
        if self._leg:
            self._leg.cut(self._socket)

    def fail(self, detail: str) -> None:
        """End the leg with an error."""
        if self._leg:
            self._leg.fail(detail)


class Stranger:
    """A socket that has not yet proved which call it belongs to, counted among those of its address."""

    def __init__(self, strangers: Counter[str], address: str) -> None:
        self._strangers = strangers
        self._address = address
        self._counted = True
        strangers[address] += 1

    def prove(self) -> None:
        """Count the socket no longer, because it has proved its call or has ended. Idempotent."""
        if not self._counted:
            return
        self._counted = False
        self._strangers[self._address] -= 1
        if self._strangers[self._address] <= 0:
            del self._strangers[self._address]
