"""The phone in the browser: the socket of the page at `/phone`, and what the page shows of its call."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from aiohttp import web

from callagent.call_info import CallInfo, EndReason
from callagent.carriers.browser.leg import BrowserLeg
from callagent.carriers.media import FrameClock
from callagent.carriers.protocol import MAX_MESSAGE_BYTES, NORMAL_CLOSURE, PROTOCOL_ERROR, SERVER_ERROR, DialectError
from callagent.carriers.stream import CLOSE_SECONDS, MediaSocket
from callagent.log import get_logger
from callagent.web import Right, ServerHooks, require

PHONE_PATH: Final = "/api/phone"
CAPTION_SECONDS: Final = 0.1
"""Seconds between two checks whether the captions have changed."""
_MAX_NUMBER_CHARACTERS: Final = 64

log = get_logger(__name__)


class PhoneRoutes:
    """The socket that the page at `/phone` opens for a call."""

    open_paths: frozenset[str] = frozenset()

    def __init__(self, hooks: ServerHooks) -> None:
        self._hooks = hooks
        self._clock: FrameClock | None = None
        self._legs: set[BrowserLeg] = set()

    def register(self, app: web.Application) -> None:
        app.router.add_get(PHONE_PATH, self.phone, allow_head=False)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._stop)

    async def phone(self, request: web.Request) -> web.StreamResponse:
        identity = require(request, Right.CALL)
        number = request.query.get("number", "")
        if len(number) > _MAX_NUMBER_CHARACTERS or not (number.isprintable() or not number):
            raise web.HTTPBadRequest(
                text=f"number should be printable text of at most {_MAX_NUMBER_CHARACTERS} characters"
            )
        ws = web.WebSocketResponse(timeout=CLOSE_SECONDS, compress=False, max_msg_size=MAX_MESSAGE_BYTES)
        if not ws.can_prepare(request):
            raise web.HTTPBadRequest(text="a WebSocket is expected here; open the page /phone to make a call")
        # The call is refused before the upgrade: only then can the answer have a status and a Retry-After.
        if self._hooks.draining() or not self._hooks.admit():
            raise web.HTTPServiceUnavailable(text="no more calls are taken now", headers={"Retry-After": "5"})
        await ws.prepare(request)
        assert request.transport is not None
        assert self._clock is not None, "made when the application starts"
        socket = MediaSocket(ws, request.transport)
        leg = BrowserLeg(_call_info(identity.name, number), socket, self._clock, self._hooks.dial)
        self._legs.add(leg)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(socket.write())
                captions = group.create_task(self._send_captions(leg))
                await self._serve(leg, socket)
                captions.cancel()
        finally:
            self._legs.discard(leg)
        return ws

    async def _serve(self, leg: BrowserLeg, socket: MediaSocket) -> None:
        """Serve the socket from its first message to its end, and tell the leg of the end."""
        try:
            # An unexpected error ends this call only; the other calls go on.
            with log.contain("phone_failed") as boundary:
                await self._feed(leg, socket)
            if boundary.error is not None:
                leg.fail("the audio of the call raised an error")
                socket.close(SERVER_ERROR)
        finally:
            leg.cut()
            socket.close(NORMAL_CLOSURE)

    async def _feed(self, leg: BrowserLeg, socket: MediaSocket) -> None:
        """Give the leg every message until the socket or the call ends."""
        try:
            self._hooks.on_carrier_call(leg)
            async for message in socket.messages():
                leg.note_life()
                if message is not None:
                    leg.receive_message(message)
                if leg.closed:
                    break
        except DialectError as error:
            log.warning("phone_refused", reason=str(error))
            leg.fail(str(error))
            socket.close(PROTOCOL_ERROR)

    async def _send_captions(self, leg: BrowserLeg) -> None:
        """Send captions when they change: the words of the caller and of the agent, and how long answers took."""
        last: Mapping[str, object] = {}
        while not leg.closed:
            captions = self._hooks.captions(leg.info.call_id)
            if captions is not None and captions != last:
                last = captions
                leg.notify_page("captions", **captions)
            await asyncio.sleep(CAPTION_SECONDS)

    async def _start(self, _: web.Application) -> None:
        self._clock = FrameClock()

    async def _stop(self, _: web.Application) -> None:
        for leg in tuple(self._legs):
            leg.fail("the server stops", EndReason.DRAIN)


def _call_info(caller: str, number: str) -> CallInfo:
    return CallInfo(
        call_id=uuid4().hex,
        direction="inbound",
        caller=caller,
        callee=number or None,
        wire="browser",
        started=datetime.now(UTC),
    )
