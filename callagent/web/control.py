"""The API of calls that are on: placing and ending them, listening in, and events of other programs for them."""

from __future__ import annotations

import asyncio
import audioop
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from aiohttp import web
from pydantic import Field

from callagent.agents import Handoff
from callagent.agents.flows import Outside
from callagent.audio import FRAME_SECONDS
from callagent.call import AudioTap, Call
from callagent.call_info import EndReason, RecordingWish
from callagent.errors import CallagentError
from callagent.log import get_logger
from callagent.web.access import require
from callagent.web.accounts import Right
from callagent.web.body import Body, read_body

MAX_LISTENERS: Final = 20
_POLL_SECONDS: Final = 2 * FRAME_SECONDS
"""Between two looks for audio to send to a listener."""
MAX_UNREAD: Final = 64 * 1024
"""Bytes that a listener's connection may leave unread; one with more is ended."""

log = get_logger(__name__)


class DialRefused(CallagentError):
    """The settings do not allow this call."""

    def __init__(self, text: str, limit: str | None = None) -> None:
        """`limit` names the setting where a limit was reached."""
        super().__init__(text)
        self.limit = limit


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
HeaderValue = Annotated[str, Field(max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Dial(Body):
    """The request for a call that we place."""

    target: str = Field(default="", max_length=64)
    """The name of a target in the settings."""
    to_number: str = Field(default="", pattern=r"^(\+[1-9][0-9]{6,14})?$")
    """Instead of `target`: a number in E.164 that a target's prefix allows."""
    from_number: str = Field(default="", pattern=r"^(\+?[0-9]{1,15})?$")
    """Our number that is shown; it also chooses the project that talks."""
    trunk: str = Field(default="", max_length=64)
    """The trunk for a number; empty: the first one that has a server."""
    metadata: dict[HeaderName, HeaderValue] = Field(default_factory=dict, max_length=20)
    """What the project reads as SIP headers; nothing of it is sent."""


class TakeOver(Body):
    """The request to give a live call to somebody else."""

    target: str = Field(default="", max_length=64)
    number: str = Field(default="", pattern=r"^(\+[1-9][0-9]{6,14})?$")
    """Instead of `target`: a number in E.164 that a target's prefix allows."""


class Recording(Body):
    """The request to pause, resume or discard a live call's recording; one that was discarded stays so."""

    wish: RecordingWish


@dataclass(frozen=True, slots=True)
class Controls:
    """What the server lets the API do."""

    targets: Sequence[str] = ()
    """Names of the targets to which a call may be sent."""
    numbers: bool = False
    """Whether some numbers are allowed too, by a target's prefix."""
    dial: Callable[[Dial], Awaitable[str]] | None = None
    """Place a call and return its id. Raises `CallagentError`, among them `DialRefused`."""
    admit: Callable[[], bool] = field(default=lambda: True)


class ControlApi:
    """The routes by which operators control live calls."""

    def __init__(self, find: Callable[[str], Call | None], controls: Controls) -> None:
        self._find = find
        self._controls = controls
        self._listeners: set[web.WebSocketResponse] = set()

    def register(self, app: web.Application) -> None:
        app.router.add_post("/api/calls", self.dial)
        app.router.add_post("/api/calls/{id}/hangup", self.hang_up)
        app.router.add_post("/api/calls/{id}/takeover", self.take_over)
        app.router.add_post("/api/calls/{id}/recording", self.recording)
        app.router.add_get("/api/live/{id}/audio", self.listen, allow_head=False)
        app.router.add_get("/api/targets", self.targets)
        app.on_shutdown.append(self._stop)

    async def dial(self, request: web.Request) -> web.Response:
        identity = require(request, Right.CALL)
        asked = await read_body(request, Dial)
        if self._controls.dial is None:
            raise web.HTTPConflict(text="this server places no calls: SIP is off")
        if not self._controls.admit():
            raise web.HTTPServiceUnavailable(text="no more calls are taken now", headers={"Retry-After": "5"})
        try:
            call_id = await self._controls.dial(asked)
        except (CallagentError, ValueError, OSError) as error:
            raise web.HTTPConflict(text=str(error)) from None
        log.info("call_placed_by_operator", call=call_id, operator=identity.name)
        return web.json_response({"id": call_id, "status": "calling"}, status=202)

    async def hang_up(self, request: web.Request) -> web.Response:
        identity = require(request, Right.CONTROL)
        call = self._call(request)
        log.info("call_ended_by_operator", call=call.record.id, operator=identity.name)
        call.end(EndReason.OPERATOR)
        return web.json_response({"ended": call.record.id}, status=202)

    async def take_over(self, request: web.Request) -> web.Response:
        identity = require(request, Right.CONTROL)
        asked = await read_body(request, TakeOver)
        if bool(asked.target) == bool(asked.number):
            raise web.HTTPBadRequest(text="either target or number says where the call goes")
        call = self._call(request)
        destination = asked.target or asked.number
        log.info("call_taken_over", call=call.record.id, operator=identity.name, destination=destination)
        call.take_over(Handoff(destination, "taken over", "refer", asked.number or None))
        return web.json_response({"going_to": destination}, status=202)

    async def recording(self, request: web.Request) -> web.Response:
        identity = require(request, Right.CONTROL)
        asked = await read_body(request, Recording)
        call = self._call(request)
        log.info("recording_controlled", call=call.record.id, operator=identity.name, wish=asked.wish)
        call.control_recording(asked.wish)
        return web.json_response({"recording": asked.wish}, status=202)

    async def targets(self, request: web.Request) -> web.Response:
        require(request, Right.VIEW)
        return web.json_response({"targets": list(self._controls.targets), "numbers": self._controls.numbers})

    # Listening in ---------------------------------------------------------------------------------------------------

    async def listen(self, request: web.Request) -> web.StreamResponse:
        """Send the audio of a call as binary messages: 20 ms of μ-law, the caller's 160 bytes and then the agent's."""
        require(request, Right.VIEW)
        identity = require(request, Right.PERSONAL)
        call = self._call(request)
        ws = web.WebSocketResponse(timeout=2.0, compress=False, max_msg_size=1024, heartbeat=15.0)
        if not ws.can_prepare(request):
            raise web.HTTPBadRequest(text="audio comes through a WebSocket")
        if len(self._listeners) >= MAX_LISTENERS:
            raise web.HTTPServiceUnavailable(text="too many listeners")
        heard = call.listen_in()
        if heard is None:
            raise web.HTTPConflict(text="the call is not answered yet")
        tap, leave = heard
        try:
            await ws.prepare(request)
            self._listeners.add(ws)
            log.info("listening_in", call=call.record.id, operator=identity.name)
            async with asyncio.TaskGroup() as group:
                sending = group.create_task(self._send(ws, request, call.record.id, tap))
                async for _ in ws:
                    pass
                sending.cancel()
        finally:
            leave()
            self._listeners.discard(ws)
        return ws

    async def _send(self, ws: web.WebSocketResponse, request: web.Request, call_id: str, tap: AudioTap) -> None:
        try:
            while self._find(call_id) is not None and not _reads_too_slowly(request):
                while (frame := tap.frame()) is not None:
                    await ws.send_bytes(b"".join(audioop.lin2ulaw(side, 2) for side in frame))
                await asyncio.sleep(_POLL_SECONDS)
            await ws.close()
        except ConnectionError:
            pass

    def _call(self, request: web.Request) -> Call:
        call = self._find(request.match_info["id"])
        if call is None:
            raise web.HTTPNotFound(text="this call is not on")
        return call

    async def _stop(self, _: web.Application) -> None:
        for ws in tuple(self._listeners):
            await ws.close(code=1001)


def _reads_too_slowly(request: web.Request) -> bool:
    transport = request.transport
    return transport is None or transport.get_write_buffer_size() > MAX_UNREAD


EVENTS_PATH: Final = "/external-events"
_ID_KEYS: Final = ("id", "event_id", "ext_event_id")


class OutsideRoutes:
    """The routes of other programs: events for a call that waits, and the data of a handoff."""

    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def register(self, app: web.Application) -> None:
        app.router.add_post(EVENTS_PATH, self.event)
        app.router.add_get("/api/handoffs", self.handoff)

    async def event(self, request: web.Request) -> web.Response:
        """Deliver an event. Its identifier in the query or the JSON body lets the sender in: nobody can guess it."""
        # The charset that a sender claims is ignored: an unknown one is no reason to fail.
        text = (await request.read()).decode("utf-8", "replace")
        data = _parsed(text) if request.content_type == "application/json" else text
        places: tuple[Mapping[str, Any], ...] = (request.query, data if isinstance(data, dict) else {})
        identifier = next((str(place[key]) for place in places for key in _ID_KEYS if key in place), "")
        if not self._outside.deliver(identifier, data, request.content_type):
            raise web.HTTPNotFound(text="no call waits for this event")
        return web.json_response({"status": "received"}, status=202)

    async def handoff(self, request: web.Request) -> web.Response:
        """Return what the project left for who takes the call over, by `?id=` of the call or by `?shared_id=`."""
        require(request, Right.PERSONAL)
        found = self._outside.handoff(call_id=request.query.get("id", ""), shared_id=request.query.get("shared_id", ""))
        if found is None:
            raise web.HTTPNotFound(text="no handoff of that call, or too long ago")
        return web.json_response(found)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not valid JSON") from None
