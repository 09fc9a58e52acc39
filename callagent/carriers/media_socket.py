"""The WebSocket of a media stream: bounded in what waits to be sent, in how fast messages come, and in closing."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import WSMsgType, web

from callagent.carriers.dialect import DialectError, Message
from callagent.log import get_logger

MAX_OUTGOING: Final = 256 * 1024
"""Bytes waiting for a reader that does not read; more, and the socket is closed."""
KERNEL_BUFFER: Final = 65536
CLOSE_SECONDS: Final = 2.0
"""How long a closing handshake may take."""
MESSAGES_PER_SECOND: Final = 200.0
MESSAGE_BURST: Final = 1000.0
"""What a carrier sends at once after its network stalled for some seconds."""

# Close codes of RFC 6455 §7.4.1.
NORMAL_CLOSURE: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
POLICY_VIOLATION: Final = 1008
SERVER_ERROR: Final = 1011

log = get_logger(__name__)


class MessageRate:
    """A token bucket over a socket's incoming messages. `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        self._left = MESSAGE_BURST
        self._at = now

    def take(self, now: float) -> bool:
        """Count a message; return False when there are too many."""
        self._left = min(MESSAGE_BURST, self._left + (now - self._at) * MESSAGES_PER_SECOND)
        self._at = now
        self._left -= 1
        return self._left >= 0


class MediaSocket:
    """Implements `CarrierLink` over aiohttp's WebSocket. A task runs `write()` while another one reads `messages()`.

    aiohttp sends from coroutines only, so what the 20 ms tick sends is queued here, and this is where it is bounded.
    """

    def __init__(self, ws: web.WebSocketResponse, transport: asyncio.WriteTransport) -> None:
        self._ws = ws
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._queue: deque[Message | None] = deque()
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
            # Audio in the kernel's buffer can be neither counted nor cleared: keep it short.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, KERNEL_BUFFER)

    def send(self, message: Message) -> None:
        """Queue a message. A peer that does not read loses its connection."""
        if self._close_code is not None:
            return
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
            self._cut_off = self._loop.call_later(CLOSE_SECONDS + 1, self._transport.abort)
            self._wake.set()

    def abort(self) -> None:
        """End the connection without a closing handshake."""
        self._queue.clear()
        self.close(SERVER_ERROR)
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
        self.close(SERVER_ERROR)
        try:
            await self._write_queued()
            if self._last_words:
                await self._ws.send_str(self._last_words)
            await self._ws.close(code=self._close_code or SERVER_ERROR)
        except OSError:
            pass
        finally:
            if self._cut_off:
                self._cut_off.cancel()

    async def messages(self) -> AsyncIterator[Message | None]:
        """Yield the peer's messages, and None for signs of life; ends with the socket. Raises `DialectError`."""
        rate = MessageRate(self._loop.time())
        async for message in self._ws:
            if not rate.take(self._loop.time()):
                raise DialectError("the peer sends too many messages")
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
