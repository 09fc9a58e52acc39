"""The Session API of CX apps: `:runSession`, `:streamRunSession`, and the WebSocket of BidiRunSession, as text.

A session is an agent of ours without a telephone. Who may talk to the agents may hold sessions.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from aiohttp import WSMsgType, web

from callagent.agents.action import AgentProject
from callagent.agents.cx import CxProject, CxSession, InputRefused, whole_turns
from callagent.call_info import CallInfo
from callagent.errors import CallagentError
from callagent.log import get_logger
from callagent.web.identity import Right, require

MAX_SESSIONS: Final = 200
IDLE_SECONDS: Final = 1800.0
"""After which a session that nobody uses makes place."""
MAX_BODY: Final = 256 * 1024
TURN_SECONDS: Final = 120.0
_PATH = r"/{version:v1|v1beta}/projects/{project}/locations/{location}/apps/{app}/sessions/{id}"
_BIDI = r"/ws/google.cloud.ces.{version:v1|v1beta}.SessionService/BidiRunSession/locations/{location}"
_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9-_]{4,62}")
_NAME = re.compile(r"(?:.*/)?apps/(?P<app>[^/]+)/sessions/(?P<id>[^/]+)")

log = get_logger(__name__)


@dataclass(slots=True)
class _Held:
    session: CxSession
    used: float
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class SessionRoutes:
    """Sessions by app and identifier, shared by the three ways in."""

    def __init__(self, projects: Callable[[], Sequence[AgentProject]]) -> None:
        self._projects = projects
        self._sessions: dict[tuple[str, str], _Held] = {}
        self._opening = asyncio.Lock()

    def register(self, app: web.Application) -> None:
        app.router.add_post(f"{_PATH}:runSession", self.run)
        app.router.add_post(f"{_PATH}:streamRunSession", self.stream)
        app.router.add_get(_BIDI, self.bidi, allow_head=False)
        app.on_shutdown.append(self._stop)

    async def run(self, request: web.Request) -> web.Response:
        held, inputs = await self._asked(request)
        async with self._turn(held) as session:
            try:
                outputs = [output async for output in session.take(inputs)]
            except InputRefused as error:
                return _refusal(400, str(error))
        return web.json_response({"outputs": whole_turns(outputs)}, dumps=_dumps)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """A JSON array whose members come as they are there, as the API streams over REST."""
        held, inputs = await self._asked(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-store"})
        await response.prepare(request)
        before = b"["
        async with self._turn(held) as session:
            try:
                async with aclosing(session.take(inputs)) as outputs:
                    async for output in outputs:
                        await response.write(before + _dumps({"outputs": [output]}).encode())
                        before = b","
            except InputRefused as error:
                await response.write(before + _dumps(_error(400, str(error))).encode())
                before = b","
        await response.write((b"[" if before == b"[" else b"") + b"]")
        return response

    async def bidi(self, request: web.Request) -> web.WebSocketResponse:
        require(request, Right.CALL)
        ws = web.WebSocketResponse(heartbeat=20, max_msg_size=MAX_BODY)
        await ws.prepare(request)
        try:
            async with asyncio.timeout(10):
                config = _object(await ws.receive()).get("config") or {}
            held = await self._held(config)
            await _Bidi(ws, held).run()
        except (TimeoutError, InputRefused) as error:
            await ws.send_str(_dumps(_error(400, str(error) or "no configuration came")))
        await ws.close()
        return ws

    # Sessions -----------------------------------------------------------------------------------------------------

    async def _asked(self, request: web.Request) -> tuple[_Held, list[Mapping[str, Any]]]:
        require(request, Right.CALL)
        if (request.content_length or 0) > MAX_BODY:
            raise web.HTTPRequestEntityTooLarge(MAX_BODY, request.content_length or 0)
        try:
            body = json.loads(await request.text())
        except ValueError:
            raise web.HTTPBadRequest(text="the body is not JSON") from None
        found = request.match_info
        config = {**(body.get("config") or {}), "session": f"apps/{found['app']}/sessions/{found['id']}"}
        inputs = body.get("inputs") or []
        if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
            raise web.HTTPBadRequest(text="'inputs' should be a list of objects")
        try:
            return await self._held(config), inputs
        except InputRefused as error:
            raise web.HTTPBadRequest(text=str(error)) from None

    async def _held(self, config: Mapping[str, Any]) -> _Held:
        """The session that a configuration names, made where it is new. Raises `InputRefused`."""
        named = _NAME.fullmatch(str(config.get("session") or ""))
        if named is None or not _ID.fullmatch(named["id"]):
            raise InputRefused("'session' should end in apps/APP/sessions/ID, the ID of 5 to 63 letters and digits")
        project = self._project(named["app"])
        key = (project.name, named["id"])
        async with self._opening:
            await self._make_place()
            if key not in self._sessions:
                if len(self._sessions) >= MAX_SESSIONS:
                    raise InputRefused("too many sessions")
                self._sessions[key] = _Held(await _open(project, named["id"], config), time.monotonic())
        held = self._sessions[key]
        held.used = time.monotonic()
        return held

    def _project(self, name: str) -> CxProject:
        apps = [each for each in self._projects() if isinstance(each, CxProject)]
        found = next((each for each in apps if name in (each.name, each.name.replace(" ", "_"))), None)
        # Identifiers of the platform are not ours: with one app it is meant.
        if found is None and len(apps) == 1:
            return apps[0]
        if found is None:
            raise InputRefused(
                f"there is no app '{name}'; there are: {', '.join(each.name for each in apps) or 'none'}"
            )
        return found

    async def _make_place(self) -> None:
        now = time.monotonic()
        for key, held in list(self._sessions.items()):
            if now - held.used > IDLE_SECONDS and not held.one_at_a_time.locked():
                del self._sessions[key]
                await held.session.close()

    @asynccontextmanager
    async def _turn(self, held: _Held) -> AsyncIterator[CxSession]:
        try:
            async with asyncio.timeout(TURN_SECONDS), held.one_at_a_time:
                yield held.session
        except TimeoutError:
            raise web.HTTPGatewayTimeout(text="the turn took too long") from None
        held.used = time.monotonic()

    async def _stop(self, _: web.Application) -> None:
        sessions, self._sessions = list(self._sessions.values()), {}
        for held in sessions:
            await held.session.close()


class _Bidi:
    """One WebSocket: what comes while a turn is on interrupts it."""

    def __init__(self, ws: web.WebSocketResponse, held: _Held) -> None:
        self._ws = ws
        self._held = held
        self._turn: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            async for message in self._ws:
                given = _object(message).get("realtimeInput")
                if not isinstance(given, dict):
                    raise InputRefused("'realtimeInput' is expected")
                if "audio" in given:
                    raise InputRefused("sessions are text here; call by telephone to speak")
                await self._take(given)
                if self._held.session.ended:
                    return
        finally:
            await self._interrupt()

    async def _take(self, given: Mapping[str, Any]) -> None:
        if not ({"variables"} & given.keys()) and await self._interrupt():
            await self._send({"interruptionSignal": {"bargeIn": True}})
        self._turn = asyncio.create_task(self._answer(given))
        if "event" in given or given.get("willContinue"):
            return
        # The socket is read while the turn runs: the next input may interrupt it.
        await asyncio.sleep(0)

    async def _answer(self, given: Mapping[str, Any]) -> None:
        held = self._held
        try:
            async with (
                asyncio.timeout(TURN_SECONDS),
                held.one_at_a_time,
                aclosing(held.session.take([given])) as outputs,
            ):
                async for output in outputs:
                    ending = output.pop("endSession", None)
                    await self._send({"sessionOutput": output})
                    if ending is not None:
                        await self._send({"endSession": ending})
                        await self._ws.close()
        except (InputRefused, TimeoutError) as error:
            await self._send(_error(400, str(error) or "the turn took too long"))
        except ConnectionError:
            log.info("session_client_gone")
        held.used = time.monotonic()

    async def _interrupt(self) -> bool:
        """Whether a turn was on."""
        turn = self._turn
        if turn is None or turn.done():
            return False
        turn.cancel()
        await asyncio.wait({turn})
        return True

    async def _send(self, message: Mapping[str, Any]) -> None:
        if not self._ws.closed:
            await self._ws.send_str(_dumps(message))


async def _open(project: CxProject, identifier: str, config: Mapping[str, Any]) -> CxSession:
    async def write_metric(name: str, value: Any) -> None:
        """A session is no call: nothing of it is kept."""

    info = CallInfo(identifier, "inbound", None, None, "text", datetime.now(UTC))
    fakes = bool(config.get("useToolFakes"))
    try:
        return CxSession(await project.open_with(info, write_metric, fakes=fakes, clients=True))
    except CallagentError as error:
        raise InputRefused(f"the app cannot be opened: {error}") from None


def _object(message: Any) -> dict[str, Any]:
    if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
        raise InputRefused("a message of JSON is expected")
    try:
        data = json.loads(message.data)
    except ValueError:
        raise InputRefused("the message is not JSON") from None
    if not isinstance(data, dict):
        raise InputRefused("the message is no object")
    return data


def _refusal(status: int, text: str) -> web.Response:
    return web.json_response(_error(status, text), status=status)


def _error(status: int, text: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": text}}


def _dumps(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, default=str)
