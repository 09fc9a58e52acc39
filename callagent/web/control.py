"""The API by which operators and other programs control live calls and change the real-time configuration.

Operators place calls, end them, transfer them and listen in. Other programs send events to calls that wait for them.
A project's functions read its real-time configuration while calls run.
"""

from __future__ import annotations

import asyncio
import audioop
import json
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Final

from aiohttp import web
from jsonschema import Draft7Validator, SchemaError
from pydantic import Field
from referencing import Registry
from referencing.exceptions import Unresolvable

from callagent.agents import AgentProject, Handoff
from callagent.agents.flows import ExternalExchange
from callagent.audio import FRAME_SECONDS
from callagent.call import AudioTap, Call
from callagent.call_info import EndReason, RecordingWish
from callagent.errors import CallagentError
from callagent.json_values import JsonObject, JsonValue, parse_json
from callagent.log import get_logger
from callagent.web.access import require
from callagent.web.accounts import Right
from callagent.web.connections import Body, read_body, read_json

log = get_logger(__name__)

MAX_LISTENERS: Final = 20
"""WebSockets on which operators listen in, over all calls."""
_POLL_SECONDS: Final = 2 * FRAME_SECONDS
"""Time between two checks for audio to send to a listener."""
MAX_UNREAD: Final = 64 * 1024
"""Bytes that a listener may leave unread before its connection is closed."""


class DialRefused(CallagentError):
    """The settings do not allow an outbound call."""

    def __init__(self, text: str, limit: str | None = None) -> None:
        """`limit` names the setting whose limit was reached; None: no limit was."""
        super().__init__(text)
        self.limit = limit


HeaderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
HeaderValue = Annotated[str, Field(max_length=512, pattern=r"^[^\x00-\x1f\x7f]*$")]


class DialRequest(Body, title="Dial"):
    """The request to place an outbound call."""

    target: str = Field(default="", max_length=64)
    """The name of a target in the settings."""
    to_number: str = Field(default="", pattern=r"^(\+[1-9][0-9]{6,14})?$")
    """Instead of `target`: a number in E.164 that a target's prefix allows."""
    from_number: str = Field(default="", pattern=r"^(\+?[0-9]{1,15})?$")
    """The number that the called party sees; it also chooses the project."""
    trunk: str = Field(default="", max_length=64)
    """The trunk for a number; empty: the first one that has a server."""
    metadata: dict[HeaderName, HeaderValue] = Field(default_factory=dict, max_length=20)
    """Values that the project reads as SIP headers; they are not sent to anybody."""


class TakeOverRequest(Body, title="TakeOver"):
    """The request to transfer a live call."""

    target: str = Field(default="", max_length=64)
    number: str = Field(default="", pattern=r"^(\+[1-9][0-9]{6,14})?$")
    """Instead of `target`: a number in E.164 that a target's prefix allows."""


class RecordingRequest(Body, title="Recording"):
    """The request to pause, resume or discard a live call's recording; a discarded one cannot be resumed."""

    wish: RecordingWish


@dataclass(frozen=True, slots=True)
class Controls:
    """The server's functions and destinations that the API may use."""

    targets: Sequence[str] = ()
    """Names of the targets to which a call may be sent."""
    numbers: bool = False
    """Whether a target's prefix allows numbers as destinations, too."""
    dial: Callable[[DialRequest], Awaitable[str]] | None = None
    """Place a call and return its id. Raises `CallagentError`, among them `DialRefused`."""
    admit: Callable[[], bool] = field(default=lambda: True)
    """Return whether the limits allow one more call."""


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
        """Place a call, and answer with its id without waiting until somebody picks up."""
        identity = require(request, Right.CALL)
        dial_request = await read_body(request, DialRequest)
        if self._controls.dial is None:
            raise web.HTTPConflict(text="this server places no calls: SIP is off")
        if not self._controls.admit():
            raise web.HTTPServiceUnavailable(text="no more calls are taken now", headers={"Retry-After": "5"})
        try:
            call_id = await self._controls.dial(dial_request)
        except (CallagentError, ValueError, OSError) as error:
            # 409 and not 400: the request is in order, but the settings or a limit do not allow the call.
            raise web.HTTPConflict(text=str(error)) from None
        log.info("call_placed_by_operator", call=call_id, operator=identity.name)
        return web.json_response({"id": call_id, "status": "calling"}, status=202)

    async def hang_up(self, request: web.Request) -> web.Response:
        """End a call."""
        identity = require(request, Right.CONTROL)
        call = self._call(request)
        log.info("call_ended_by_operator", call=call.record.id, operator=identity.name)
        call.end(EndReason.OPERATOR)
        return web.json_response({"ended": call.record.id}, status=202)

    async def take_over(self, request: web.Request) -> web.Response:
        """Transfer a call to a target of the settings or to a number that they allow."""
        identity = require(request, Right.CONTROL)
        body = await read_body(request, TakeOverRequest)
        # The server checks the number against the targets' prefixes, as it does when a project names one.
        if bool(body.target) == bool(body.number):
            raise web.HTTPBadRequest(text="give either target or number as the destination of the call")
        call = self._call(request)
        destination = body.target or body.number
        log.info("call_taken_over", call=call.record.id, operator=identity.name, destination=destination)
        call.take_over(Handoff(destination, "taken over", "refer", body.number or None))
        return web.json_response({"going_to": destination}, status=202)

    async def recording(self, request: web.Request) -> web.Response:
        """Pause, resume or discard the recording of a call."""
        identity = require(request, Right.CONTROL)
        body = await read_body(request, RecordingRequest)
        call = self._call(request)
        log.info("recording_controlled", call=call.record.id, operator=identity.name, wish=body.wish)
        call.control_recording(body.wish)
        return web.json_response({"recording": body.wish}, status=202)

    async def targets(self, request: web.Request) -> web.Response:
        """Answer with the targets to which a call may be sent."""
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
            raise web.HTTPBadRequest(text="the audio needs a WebSocket: connect with an upgrade request")
        if len(self._listeners) >= MAX_LISTENERS:
            raise web.HTTPServiceUnavailable(
                text=f"{MAX_LISTENERS} listeners are connected already; one has to leave first"
            )
        listening = call.listen_in()
        if listening is None:
            raise web.HTTPConflict(text="the call is not answered yet")
        tap, remove_tap = listening
        # However the socket ends, even before it is ready, the tap must be removed from the call.
        try:
            await ws.prepare(request)
            self._listeners.add(ws)
            log.info("listening_in", call=call.record.id, operator=identity.name)
            async with asyncio.TaskGroup() as group:
                # Messages of the listener are ignored; reading them shows when it has left.
                sending = group.create_task(self._send(ws, request, call.record.id, tap))
                async for _ in ws:
                    pass
                sending.cancel()
        finally:
            remove_tap()
            self._listeners.discard(ws)
        return ws

    async def _send(self, ws: web.WebSocketResponse, request: web.Request, call_id: str, tap: AudioTap) -> None:
        """Send the tap's audio until the call ends or the listener reads too slowly."""
        try:
            while self._find(call_id) is not None and not _reads_too_slowly(request):
                while (frame := tap.next_frame()) is not None:
                    await ws.send_bytes(b"".join(audioop.lin2ulaw(side, 2) for side in frame))
                await asyncio.sleep(_POLL_SECONDS)
            await ws.close()
        except ConnectionError:
            # The listener has gone, which `listen` notices as well.
            pass

    def _call(self, request: web.Request) -> Call:
        call = self._find(request.match_info["id"])
        if call is None:
            raise web.HTTPNotFound(text="no live call has this id")
        return call

    async def _stop(self, _: web.Application) -> None:
        for ws in tuple(self._listeners):
            await ws.close(code=1001)


def _reads_too_slowly(request: web.Request) -> bool:
    transport = request.transport
    return transport is None or transport.get_write_buffer_size() > MAX_UNREAD


EVENTS_PATH: Final = "/external-events"
_ID_KEYS: Final = ("id", "event_id", "ext_event_id")


class ExternalRoutes:
    """The routes for other programs: events for a call that waits for them, and the data of a handoff."""

    def __init__(self, external: ExternalExchange) -> None:
        self._external = external

    def register(self, app: web.Application) -> None:
        app.router.add_post(EVENTS_PATH, self.event)
        app.router.add_get("/api/handoffs", self.handoff)

    async def event(self, request: web.Request) -> web.Response:
        """Deliver an event. Its identifier, in the query or the JSON body, replaces a login: nobody can guess it."""
        # The charset that a sender declares is ignored: an unknown one must not make this fail.
        text = (await request.read()).decode("utf-8", "replace")
        data = _parse_event(text) if request.content_type == "application/json" else text
        places: tuple[Mapping[str, JsonValue], ...] = (request.query, data if isinstance(data, Mapping) else {})
        identifier = next((str(place[key]) for place in places for key in _ID_KEYS if key in place), "")
        # Wrong and expired identifiers get the same answer, so that guessing reveals nothing.
        if not self._external.deliver(identifier, data, request.content_type):
            raise web.HTTPNotFound(text="no call waits for this event")
        return web.json_response({"status": "received"}, status=202)

    async def handoff(self, request: web.Request) -> web.Response:
        """Answer with the handoff data that the project left, for `?id=` of the call or `?shared_id=`."""
        require(request, Right.PERSONAL)
        found = self._external.get_handoff(
            call_id=request.query.get("id", ""), shared_id=request.query.get("shared_id", "")
        )
        if found is None:
            raise web.HTTPNotFound(text="no handoff data of that call is stored; it may have expired")
        return web.json_response(found)


def _parse_event(text: str) -> JsonValue:
    try:
        return parse_json(text) if text else None
    except ValueError:
        raise web.HTTPBadRequest(text="the body is not valid JSON") from None


ENVIRONMENTS: Final = ("sandbox", "pre-release", "live")
PATH: Final = "/api/projects/{name}/real-time-configs/{environment}"


class ConfigurationApi:
    """The routes of the real-time configuration, a JSON file of the project for each environment."""

    def __init__(self, projects: Callable[[], Sequence[AgentProject]]) -> None:
        self._projects = projects
        self._write_lock = asyncio.Lock()

    def register(self, app: web.Application) -> None:
        app.router.add_get(PATH, self.read)
        app.router.add_get(PATH + "/schema", self.schema)
        app.router.add_put(PATH, self.replace)
        app.router.add_patch(PATH, self.change)

    async def read(self, request: web.Request) -> web.Response:
        """Answer with the configuration of an environment."""
        require(request, Right.VIEW)
        require(request, Right.PERSONAL)
        return web.json_response(await asyncio.to_thread(_read, self._folder(request) / "data.json"))

    async def schema(self, request: web.Request) -> web.Response:
        """Answer with the JSON Schema of the configuration."""
        require(request, Right.VIEW)
        return web.json_response(await asyncio.to_thread(_read, self._folder(request) / "schema.json"))

    async def replace(self, request: web.Request) -> web.Response:
        """Replace the configuration by the body."""
        return await self._write(request, merge=False)

    async def change(self, request: web.Request) -> web.Response:
        """Replace only the keys that the body has; null removes a key."""
        return await self._write(request, merge=True)

    async def _write(self, request: web.Request, *, merge: bool) -> web.Response:
        identity = require(request, Right.CONFIGURE)
        folder, sent = self._folder(request), await read_json(request)
        if not isinstance(sent, Mapping):
            raise web.HTTPBadRequest(text="the configuration should be a JSON object")
        # Writes take turns, because a merge reads the file before it writes it.
        async with self._write_lock:
            data = await asyncio.to_thread(_store, folder, sent, merge=merge)
        log.info("real_time_configuration_written", project=request.match_info["name"], operator=identity.name)
        return web.json_response(data)

    def _folder(self, request: web.Request) -> Path:
        name, environment = request.match_info["name"], request.match_info["environment"]
        if environment not in ENVIRONMENTS:
            raise web.HTTPNotFound(text=f"no environment '{environment}'; there are {', '.join(ENVIRONMENTS)}")
        for project in self._projects():
            folder = project.real_time_folder(environment) if project.name == name else None
            if folder is not None:
                return folder
        raise web.HTTPNotFound(text="no such project is served here")


def _read(path: Path) -> JsonObject:
    """Return the object of a JSON file; an empty one where there is no file. Raises 409 where it cannot be read."""
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        raise web.HTTPConflict(text=f"{path.name} of this environment cannot be read") from None
    return data if isinstance(data, Mapping) else {}


def _store(folder: Path, sent: JsonObject, *, merge: bool) -> JsonObject:
    """Write the configuration, or merge `sent` into it, and return the result. Raises 400 and 409.

    The file is replaced in one step: a function that reads it gets either the old or the new one, never a part.
    """
    path = folder / "data.json"
    data = {**_read(path), **sent} if merge else sent
    if merge:
        data = {name: value for name, value in data.items() if value is not None}
    _check(data, _read(folder / "schema.json"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Written to the same folder, because `os.replace` is atomic only within one file system; and synced to the disk
        # before it is renamed, because a crash could otherwise leave an empty file under the final name.
        with NamedTemporaryFile("w", dir=folder, prefix=".data-", encoding="utf-8", delete=False) as file:
            json.dump(data, file, ensure_ascii=False, indent=2)
            file.flush()
            os.fsync(file.fileno())
        os.replace(file.name, path)
    except OSError as error:
        raise web.HTTPConflict(text=f"the project's folder cannot be written: {error.strerror}") from None
    return data


def _check(data: JsonObject, schema: JsonObject) -> None:
    """Raise 400 for data that violates the schema. References to other documents are not fetched: they raise 409."""
    try:
        Draft7Validator.check_schema(schema)
        error = next(Draft7Validator(schema, registry=Registry()).iter_errors(data), None)
    except (SchemaError, Unresolvable, RecursionError):
        raise web.HTTPConflict(text="schema.json of this environment is not valid") from None
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "the configuration"
        raise web.HTTPBadRequest(text=f"{place}: {error.message[:300]}")
