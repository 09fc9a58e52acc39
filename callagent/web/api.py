"""The API that shows past calls, live calls, figures and projects; and its OpenAPI description."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler
from pydantic import BaseModel

from callagent import __version__
from callagent.agents import AgentProject
from callagent.call import Call
from callagent.json_values import JsonObject, MutableJsonObject
from callagent.log import get_logger
from callagent.records import MAX_PAGE_CALLS, CallFilter, Reader, StoreUnavailable
from callagent.web.access import identity_of, require
from callagent.web.accounts import Right
from callagent.web.control import ENVIRONMENTS, Controls, DialRequest, RecordingRequest, TakeOverRequest
from callagent.web.live import LiveCalls

log = get_logger(__name__)

MAX_DAYS: Final = 366
"""Days of which one request may get figures."""
MAX_POINTS: Final = 2000
"""Points of a waveform."""
_MAX_TEXT = 200
"""Characters of a parameter; further ones are cut off."""
_CONTENT_TYPES: Final = {".wav": "audio/wav", ".opus": "audio/ogg", ".mp3": "audio/mpeg"}


@dataclass(frozen=True, slots=True)
class Dashboard:
    """What the API shows and controls."""

    reader: Reader
    calls: Callable[[], Mapping[str, Call]]
    """Return the live calls by id."""
    projects: Callable[[], Sequence[AgentProject]] = tuple
    recordings: Path | None = None
    """The only folder from which recordings are served."""
    forget: Callable[[str], Awaitable[int]] | None = None
    """Delete what is stored of a caller's number; return how many calls that were."""
    controls: Controls = field(default_factory=Controls)


@web.middleware
async def answer_503_without_store(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 503 if the store of the records cannot be read."""
    try:
        return await handler(request)
    except StoreUnavailable as error:
        log.warning("store_unavailable", error=str(error))
        raise web.HTTPServiceUnavailable(text="the store does not answer", headers={"Retry-After": "5"}) from None


class Api:
    """The routes that show calls, figures and projects.

    An account without the right `personal` gets the same answers with the words and numbers of people hidden in them;
    recordings are refused to it.
    """

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self._reader = dashboard.reader
        self._live: LiveCalls | None = None

    def register(self, app: web.Application) -> None:
        add = app.router.add_get
        add("/api/openapi.json", self.openapi)
        add("/api/me", self.me)
        add("/api/calls", self.calls)
        add("/api/calls/{id}", self.call)
        add("/api/calls/{id}/recording", self.recording)
        add("/api/calls/{id}/waveform", self.waveform)
        add("/api/live", self.live_calls)
        # HEAD is not allowed: it would run the event stream, which does not end, to leave its body out.
        add("/api/live/events", self.watch_all, allow_head=False)
        add("/api/live/{id}", self.live_call)
        add("/api/live/{id}/events", self.watch_one, allow_head=False)
        add("/api/overview", self.overview)
        add("/api/projects", self.projects)
        add("/api/projects/{name}/graph", self.graph)
        app.router.add_delete("/api/callers/{number}", self.forget)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._stop)

    @property
    def live(self) -> LiveCalls:
        """The live calls as watchers see them."""
        assert self._live is not None, "made when the application starts"
        return self._live

    # Calls ----------------------------------------------------------------------------------------------------------

    async def calls(self, request: web.Request) -> web.Response:
        """Answer with a page of calls that meet the conditions of the query."""
        identity = require(request, Right.VIEW)
        query = request.query
        conditions = CallFilter(
            search=_read_text(query, "search"),
            start_time=_read_text(query, "start_time"),
            end_time=_read_text(query, "end_time"),
            project_id=_read_text(query, "project_id"),
            environment=_read_text(query, "client_env"),
            wire=_read_text(query, "wire"),
            channel=_read_text(query, "channel"),
            variant_name=_read_text(query, "variant_name"),
            from_number=_read_text(query, "from_number"),
            end_reason=_read_text(query, "end_reason"),
            handoff=_read_flag(query, "handoff"),
            in_progress=_read_flag(query, "in_progress"),
        )
        # Searching for guesses would reveal the words and numbers that the answers hide.
        if (conditions.search or conditions.from_number) and not identity.may(Right.PERSONAL):
            raise web.HTTPForbidden(text="the right 'personal' is needed to search")
        limit = _read_number(query, "limit", 50, 1, MAX_PAGE_CALLS)
        cursor, personal = _read_text(query, "cursor"), identity.may(Right.PERSONAL)
        try:
            page = await self._reader.calls(conditions, limit=limit, cursor=cursor, personal=personal)
        except ValueError as error:
            raise web.HTTPBadRequest(text=str(error)) from None
        return web.json_response(asdict(page))

    async def call(self, request: web.Request) -> web.Response:
        """Answer with the record of a call."""
        personal = require(request, Right.VIEW).may(Right.PERSONAL)
        text = await self._reader.call(_read_id(request), personal=personal)
        if text is None:
            raise web.HTTPNotFound(text="no stored call has this id")
        return web.Response(text=text, content_type="application/json")

    async def recording(self, request: web.Request) -> web.FileResponse:
        """Send the recording of a call."""
        path = await self._recording_path(request)
        headers = {
            "Content-Type": _CONTENT_TYPES[path.suffix],
            "Content-Disposition": f'inline; filename="{path.name}"',
            "Cache-Control": "private, no-store",
        }
        return web.FileResponse(path, headers=headers)

    async def waveform(self, request: web.Request) -> web.Response:
        """Answer with the loudness of a recording at points over its length, which the page draws."""
        points = _read_number(request.query, "points", 600, 10, MAX_POINTS)
        try:
            return web.json_response(await self._reader.waveform(await self._recording_path(request), points))
        except OSError:
            raise web.HTTPNotFound(text="the recording cannot be read") from None

    async def forget(self, request: web.Request) -> web.Response:
        """Delete what is stored of a caller."""
        # Both rights are needed: the number is personal, and the deletion cannot be undone.
        require(request, Right.PERSONAL)
        identity = require(request, Right.CONTROL)
        if self._dashboard.forget is None:
            raise web.HTTPNotFound(text="this server stores nothing of callers")
        deleted = await self._dashboard.forget(request.match_info["number"][:_MAX_TEXT])
        log.info("caller_deleted", calls=deleted, operator=identity.name)
        return web.json_response({"deleted": deleted})

    # Live -----------------------------------------------------------------------------------------------------------

    async def live_calls(self, request: web.Request) -> web.Response:
        """Answer with a summary of each live call."""
        personal = require(request, Right.VIEW).may(Right.PERSONAL)
        return web.json_response({"calls": self.live.summaries(personal=personal)})

    async def live_call(self, request: web.Request) -> web.Response:
        """Answer with a live call and its turns so far."""
        personal = require(request, Right.VIEW).may(Right.PERSONAL)
        found = self.live.details(request.match_info["id"], personal=personal)
        if found is None:
            raise web.HTTPNotFound(text="no live call has this id")
        return web.json_response(found, dumps=_dumps)

    async def watch_all(self, request: web.Request) -> web.StreamResponse:
        """Send the live calls as events, again whenever they change."""
        require(request, Right.VIEW)
        return await self.live.watch_all(request)

    async def watch_one(self, request: web.Request) -> web.StreamResponse:
        """Send a live call as events, again whenever it changes."""
        require(request, Right.VIEW)
        return await self.live.watch_one(request)

    # Figures, projects ------------------------------------------------------------------------------------------------

    async def overview(self, request: web.Request) -> web.Response:
        """Answer with volume, containment, latency and metrics of the last days."""
        require(request, Right.VIEW)
        days = _read_number(request.query, "days", 30, 1, MAX_DAYS)
        return web.json_response(await self._reader.overview(days, _read_text(request.query, "project_id")))

    async def projects(self, request: web.Request) -> web.Response:
        """Answer with the projects that are served, and those of which there are records."""
        require(request, Right.VIEW)
        served = [project.name for project in self._dashboard.projects()]
        return web.json_response({"served": served, "recorded": await self._reader.projects()})

    async def graph(self, request: web.Request) -> web.Response:
        """Answer with the graph of a project, and how often calls followed its edges."""
        require(request, Right.VIEW)
        days = _read_number(request.query, "days", 30, 1, MAX_DAYS)
        for project in self._dashboard.projects():
            if project.name == request.match_info["name"]:
                traffic = await self._reader.traffic(project.name, days)
                graph = project.graph().as_json()
                return web.json_response({"name": project.name, **graph, "traffic": traffic})
        raise web.HTTPNotFound(text="no such project is served here")

    async def me(self, request: web.Request) -> web.Response:
        """Answer with the account that sent the request, its rights and its CSRF token."""
        identity = identity_of(request)
        rights = sorted(right.value for right in identity.rights)
        return web.json_response(
            {"name": identity.name, "rights": rights, "csrf": identity.csrf, "version": __version__}
        )

    async def openapi(self, _: web.Request) -> web.Response:
        """Answer with the description of this API."""
        return web.json_response(make_description())

    # Parts ------------------------------------------------------------------------------------------------------------

    async def _recording_path(self, request: web.Request) -> Path:
        """Return the file of the call's recording. Raises 404 for one that is not below the folder of recordings.

        The path comes from the record, and a record may have been written with other settings or changed by hand.
        """
        require(request, Right.VIEW)
        require(request, Right.PERSONAL)
        path, folder = await self._reader.recording(_read_id(request)), self._dashboard.recordings
        if path is None or folder is None:
            raise web.HTTPNotFound(text="this call was not recorded")
        # The check runs in a thread, because the folder may lie on a disk that stalls.
        resolved = await asyncio.to_thread(_file_below, path, folder)
        if resolved is None:
            raise web.HTTPNotFound(text="the recording is no longer in the folder of recordings")
        return resolved

    async def _start(self, _: web.Application) -> None:
        self._live = LiveCalls(self._dashboard.calls)

    async def _stop(self, _: web.Application) -> None:
        self.live.stop()


def _file_below(path: Path, folder: Path) -> Path | None:
    resolved = path.resolve()
    # Links were followed by `resolve`: a link in the folder must not lead out of it.
    return resolved if resolved.is_relative_to(folder.resolve()) and resolved.is_file() else None


def _read_id(request: web.Request) -> str:
    return _clean(request.match_info["id"])


def _read_text(query: Mapping[str, str], name: str) -> str:
    return _clean(query.get(name, ""))


def _clean(text: str) -> str:
    """Return text that a database can store: without NUL and without halves of surrogate pairs."""
    return text.replace("\0", "").encode("utf-8", "ignore").decode()[:_MAX_TEXT]


def _read_flag(query: Mapping[str, str], name: str) -> bool | None:
    values = {"": None, "true": True, "false": False}
    if (value := query.get(name, "")) not in values:
        raise web.HTTPBadRequest(text=f"{name} should be true or false")
    return values[value]


def _read_number(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, "")
    if not text:
        return default
    # `isdigit` alone is true for digits of all scripts; the length is checked before `int` reads the text.
    if not (text.isascii() and text.isdigit() and len(text) < 9 and least <= int(text) <= most):
        raise web.HTTPBadRequest(text=f"{name} should be a number from {least} to {most}")
    return int(text)


def _dumps(data: object) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)


_TEXT_PARAMETERS = ("search", "start_time", "end_time", "project_id", "client_env", "wire", "channel", "variant_name")
_REFUSALS = {
    "400": {"description": "A parameter is not valid."},
    "401": {"description": "Log in, or send a token."},
    "403": {"description": "A right is missing."},
    "404": {"description": "What the path names does not exist."},
    "409": {"description": "The settings or the state of the call do not allow it."},
    "415": {"description": "The body has the wrong content type."},
    "503": {"description": "The server has no room, or its store does not answer."},
}


def make_description() -> JsonObject:
    """Return the OpenAPI description of the API; it names every path."""
    return {
        "openapi": "3.0.3",
        "info": {"title": "callagent", "version": __version__},
        "paths": {**_call_paths(), **_live_paths(), **_project_paths(), **_other_paths()},
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
        "security": [{"token": []}],
    }


def _call_paths() -> JsonObject:
    call_id = _parameter("id", "path")
    listing = [
        *(_parameter(name) for name in (*_TEXT_PARAMETERS, "from_number", "end_reason", "cursor")),
        *({**_parameter(name), "schema": {"type": "boolean"}} for name in ("handoff", "in_progress")),
        _number_parameter("limit", 1, 500),
    ]
    return {
        "/api/calls": {
            **_get("A page of calls, newest first.", listing),
            "post": _operation("Place a call.", status="202", body=DialRequest),
        },
        "/api/calls/{id}": _get("The record of a call.", [call_id]),
        "/api/calls/{id}/recording": {
            **_get("The stereo recording.", [call_id], media="audio/wav"),
            "post": _operation(
                "Pause, resume or discard the recording of a live call.", [call_id], status="202", body=RecordingRequest
            ),
        },
        "/api/calls/{id}/waveform": _get("The recording's loudness.", [call_id, _number_parameter("points", 10, 2000)]),
        "/api/calls/{id}/hangup": {"post": _operation("End a live call.", [call_id], status="202")},
        "/api/calls/{id}/takeover": {
            "post": _operation("Transfer a live call.", [call_id], status="202", body=TakeOverRequest)
        },
    }


def _live_paths() -> JsonObject:
    call_id = _parameter("id", "path")
    return {
        "/api/live": _get("Live calls."),
        "/api/live/events": _get("Live calls as events, sent again at each change.", media="text/event-stream"),
        "/api/live/{id}": _get("A live call with its turns.", [call_id]),
        "/api/live/{id}/events": _get(
            "A live call as events, sent again at each change.", [call_id], media="text/event-stream"
        ),
        "/api/live/{id}/audio": _get("Listen in, through a WebSocket.", [call_id], status="101"),
    }


def _project_paths() -> JsonObject:
    name, days = _parameter("name", "path"), _number_parameter("days", 1, 366)
    environment = {**_parameter("environment", "path"), "schema": {"type": "string", "enum": list(ENVIRONMENTS)}}
    return {
        "/api/overview": _get("Volume, containment, latency, metrics.", [days, _parameter("project_id")]),
        "/api/projects": _get("Projects that are served, and those of which there are records."),
        "/api/projects/{name}/graph": _get(
            "The project's flows and steps, and how often calls took them.", [name, days]
        ),
        "/api/projects/{name}/real-time-configs/{environment}": {
            **_get("The real-time configuration that the project's functions read.", [name, environment]),
            "put": _operation("Replace the configuration.", [name, environment], body=dict),
            "patch": _operation("Replace some of its keys; null removes one.", [name, environment], body=dict),
        },
        "/api/projects/{name}/real-time-configs/{environment}/schema": _get(
            "The JSON Schema of the configuration.", [name, environment]
        ),
    }


def _other_paths() -> JsonObject:
    return {
        "/api/me": _get("Your account and its rights."),
        "/api/targets": _get("Names of the targets to which a call may be sent."),
        "/api/callers/{number}": {
            "delete": _operation("Delete what is stored of a caller.", [_parameter("number", "path")])
        },
        "/api/handoffs": _get(
            "The data that a project leaves for the person who takes a call over.",
            [_parameter("id"), _parameter("shared_id")],
        ),
        "/external-events": {
            "post": _operation("Deliver an event to the call that waits for it.", [_parameter("id")], status="202")
        },
        "/api/openapi.json": _get("This description."),
    }


def _get(
    summary: str,
    parameters: list[JsonObject] | None = None,
    *,
    media: str = "application/json",
    status: str = "200",
) -> JsonObject:
    return {"get": _operation(summary, parameters, media=media, status=status)}


def _operation(
    summary: str,
    parameters: list[JsonObject] | None = None,
    *,
    media: str = "application/json",
    status: str = "200",
    body: type | None = None,
) -> JsonObject:
    content: JsonObject = {media: {"schema": {"type": "object" if media == "application/json" else "string"}}}
    answers: JsonObject = {status: {"description": "Done.", "content": content}, **_REFUSALS}
    operation: MutableJsonObject = {"summary": summary, "parameters": parameters or [], "responses": answers}
    if body:
        operation["requestBody"] = {"required": True, "content": _content(body)}
    return operation


def _content(body: type) -> JsonObject:
    schema: JsonObject = {"type": "object"}
    if issubclass(body, BaseModel):
        schema = body.model_json_schema()
    return {"application/json": {"schema": schema}}


def _parameter(name: str, place: str = "query") -> JsonObject:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}


def _number_parameter(name: str, least: int, most: int) -> JsonObject:
    return {**_parameter(name), "schema": {"type": "integer", "minimum": least, "maximum": most}}
