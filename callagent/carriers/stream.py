"""The sockets of a carrier's media streams: who may open one, and whose leg it becomes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from callagent.carriers.calls import CarrierCalls, Refused
from callagent.carriers.dialect import MAX_MESSAGE_BYTES, CarrierDialect, DialectError, StreamStarted
from callagent.carriers.leg import CarrierLeg
from callagent.carriers.media_socket import (
    CLOSE_SECONDS,
    GOING_AWAY,
    NORMAL_CLOSURE,
    POLICY_VIOLATION,
    PROTOCOL_ERROR,
    SERVER_ERROR,
    MediaSocket,
)
from callagent.log import get_logger

START_SECONDS: Final = 10.0
"""From the upgrade to a verified start."""
MAX_STRANGERS: Final = 50
"""Sockets from one address that have not proved yet whose they are."""

log = get_logger(__name__)


class MediaStreams:
    """The open media streams of one carrier account."""

    def __init__(self, calls: CarrierCalls, open_dialect: Callable[[], CarrierDialect]) -> None:
        self._calls = calls
        self._open_dialect = open_dialect
        self._sockets: set[MediaSocket] = set()
        self._strangers: Counter[str] = Counter()

    async def serve(self, request: web.Request) -> web.StreamResponse:
        """Upgrade the request to a media stream and serve it to its end. The carrier's signature was checked before."""
        with self._stranger(request.remote or "") as stranger:
            ws = web.WebSocketResponse(
                timeout=CLOSE_SECONDS, autoping=False, compress=False, max_msg_size=MAX_MESSAGE_BYTES
            )
            await ws.prepare(request)
            assert request.transport is not None
            socket = MediaSocket(ws, request.transport)
            self._sockets.add(socket)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(socket.write())
                    await self._serve(MediaStream(socket, self._calls, self._open_dialect()), socket, stranger)
            finally:
                self._sockets.discard(socket)
        return ws

    def close(self) -> None:
        """Say goodbye on every socket."""
        for socket in tuple(self._sockets):
            socket.close(GOING_AWAY)

    async def _serve(self, stream: MediaStream, socket: MediaSocket, stranger: Stranger) -> None:
        """Read the stream to its end; its leg, if it got one, is told of the end."""
        try:
            async with asyncio.timeout(START_SECONDS):
                await stream.await_start()
            stranger.prove()
            await stream.feed_leg()
        except (TimeoutError, Refused) as error:
            log.warning("media_stream_refused", reason=str(error) or "no start in time")
            socket.close(POLICY_VIOLATION)
        except DialectError as error:
            log.warning("media_stream_refused", reason=str(error))
            socket.close(PROTOCOL_ERROR)
            stream.fail(str(error))
        except Exception:
            # The outermost edge of one call's audio: the other calls go on.
            log.exception("media_stream_failed")
            socket.close(SERVER_ERROR)
            stream.fail("the audio of the call raised an error")
        finally:
            stream.cut()
            socket.close(NORMAL_CLOSURE)

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
    """One media stream: its messages go to nobody until it has proved whose it is, then to its leg."""

    def __init__(self, socket: MediaSocket, calls: CarrierCalls, dialect: CarrierDialect) -> None:
        self._socket = socket
        self._calls = calls
        self._messages = socket.messages()
        self._dialect = dialect
        self._leg: CarrierLeg | None = None

    async def await_start(self) -> None:
        """Read until the stream has started with a valid token, or has ended. Raises `Refused`, `DialectError`."""
        async for message in self._messages:
            for event in self._dialect.receive_message(message) if message is not None else ():
                if isinstance(event, StreamStarted):
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
        if self._leg:
            self._leg.fail(detail)


class Stranger:
    """A place among the sockets of an address that have not proved whose they are."""

    def __init__(self, strangers: Counter[str], address: str) -> None:
        self._strangers = strangers
        self._address = address
        self._counted = True
        strangers[address] += 1

    def prove(self) -> None:
        """Free the place. Idempotent."""
        if not self._counted:
            return
        self._counted = False
        self._strangers[self._address] -= 1
        if self._strangers[self._address] <= 0:
            del self._strangers[self._address]
