"""The Session API of CX apps: `:runSession`, `:streamRunSession`, and the WebSocket of BidiRunSession.

A session is an agent of ours without a telephone. Who may talk to the agents may hold sessions. A socket whose
configuration speaks of audio is a call of the server's; the session is the same before, in and after it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from aiohttp import web

from callagent.agents import AgentProject
from callagent.agents.cx import InputRefused, Speak, whole_turns
from callagent.call_info import EndReason
from callagent.carriers import CLOSE_SECONDS, FrameClock, MediaSocket, MessageRate
from callagent.errors import ProviderError
from callagent.log import get_logger
from callagent.session_api.audio import SessionSpeech
from callagent.session_api.call import SessionCall, has_audio
from callagent.session_api.leg import AudioTooEarly, SessionLeg
from callagent.session_api.messages import (
    camel_keys,
    dumps,
    error_message,
    message_object,
    read_request,
    refusal,
    refused,
    status_of,
)
from callagent.session_api.sessions import Held, SessionTable
from callagent.web import HoldSession, Right, ServerHooks, identity_of, require

MAX_BODY: Final = 256 * 1024
"""Of one message of a socket."""
_PATH = r"/{version:v1|v1beta}/projects/{project}/locations/{location}/apps/{app}/sessions/{id}"
_TOO_LONG = "the turn took too long"
_BIDI = r"/ws/google.cloud.ces.{version:v1|v1beta}.SessionService/BidiRunSession/locations/{location}"

log = get_logger(__name__)


class SessionRoutes:
    """Sessions by app and identifier, shared by the three ways in."""

    open_paths: frozenset[str] = frozenset()

    def __init__(self, projects: Callable[[], Sequence[AgentProject]], hooks: ServerHooks | None = None) -> None:
        """Without `hooks` there is nobody to hold calls: text only."""
        self._table = SessionTable(projects)
        self._hooks = hooks
        self._clock: FrameClock | None = None
        self._legs: set[SessionLeg] = set()

    def register(self, app: web.Application) -> None:
        app.router.add_post(f"{_PATH}:runSession", self.run)
        app.router.add_post(f"{_PATH}:streamRunSession", self.stream)
        app.router.add_get(_BIDI, self.bidi, allow_head=False)
        app.on_shutdown.append(self._stop)

    async def run(self, request: web.Request) -> web.Response:
        held, inputs, config = await self._asked(request)
        try:
            async with held.turn() as session:
                given, speak = await self._with_audio(held, inputs, config)
                outputs = [output async for output in session.take(given, speak)]
        except (InputRefused, ProviderError, TimeoutError) as error:
            return refusal(status_of(error), str(error) or _TOO_LONG)
        return web.json_response({"outputs": whole_turns(outputs)}, dumps=dumps)

    async def stream(self, request: web.Request) -> web.StreamResponse:
        """A JSON array whose members come as they are there, as the API streams over REST."""
        held, inputs, config = await self._asked(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-store"})
        await response.prepare(request)
        before = b"["
        try:
            async with held.turn() as session:
                given, speak = await self._with_audio(held, inputs, config)
                async with aclosing(session.take(given, speak)) as outputs:
                    async for output in outputs:
                        await response.write(before + dumps({"outputs": [output]}).encode())
                        before = b","
        except (InputRefused, ProviderError, TimeoutError) as error:
            told = error_message(status_of(error), str(error) or _TOO_LONG)
            await response.write(before + dumps(told).encode())
            before = b","
        await response.write((b"[" if before == b"[" else b"") + b"]")
        return response

    async def bidi(self, request: web.Request) -> web.WebSocketResponse:
        require(request, Right.CALL)
        ws = web.WebSocketResponse(heartbeat=20, max_msg_size=MAX_BODY, timeout=CLOSE_SECONDS)
        await ws.prepare(request)
        try:
            async with asyncio.timeout(10):
                config = message_object(await ws.receive()).get("config")
            if not isinstance(config, dict):
                raise InputRefused("'config' with a 'session' is expected first")
            held = await self._table.held(config)
            if has_audio(config):
                await self._speak(ws, request, held, config)
            else:
                await _Bidi(ws, held.free()).run()
        except (TimeoutError, InputRefused) as error:
            await ws.send_str(dumps(error_message(status_of(error), str(error) or "no configuration came")))
        await ws.close()
        return ws

    # Calls --------------------------------------------------------------------------------------------------------

    async def _speak(
        self, ws: web.WebSocketResponse, request: web.Request, held: Held, config: Mapping[str, Any]
    ) -> None:
        """A call, from its first input to the end of the socket. Raises `InputRefused` where there is to be none."""
        await held.take_over()
        ended: asyncio.Task[None] | None = None
        try:
            assert request.transport is not None
            if held.session.ended:
                raise InputRefused("the session has ended")
            socket = MediaSocket(ws, request.transport)
            call = SessionCall(socket, held.session, held.project, config)
            hold, clock = self._admitted()
            leg = call.open(identity_of(request).name, str(config["session"]), clock)
            self._legs.add(leg)
            ended = hold(leg, call.project, call.watch)
            async with asyncio.TaskGroup() as group:
                group.create_task(socket.write())
                await _serve(ws, call)
        finally:
            if ended is None:
                held.give_back()
            else:
                self._legs.discard(leg)
                ended.add_done_callback(lambda _: held.give_back())

    def _admitted(self) -> tuple[HoldSession, FrameClock]:
        hooks = self._hooks
        if hooks is None or hooks.hold_session is None:
            raise InputRefused("sessions are text here")
        if hooks.draining() or not hooks.admit():
            raise InputRefused("no more calls are taken now")
        self._clock = self._clock or FrameClock()
        return hooks.hold_session, self._clock

    # Requests -----------------------------------------------------------------------------------------------------

    async def _with_audio(
        self, held: Held, inputs: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
    ) -> tuple[list[Mapping[str, Any]], Speak | None]:
        """The inputs with words in the place of audio, and what says the answer. Raises `InputRefused`."""
        if not has_audio(config) and not any("audio" in each for each in inputs):
            return list(inputs), None
        if self._hooks is None or self._hooks.utterances is None:
            raise InputRefused("sessions are text here")
        speech = SessionSpeech(self._hooks.utterances, held.project, config)
        return await speech.as_words(inputs), speech.speaker()

    async def _asked(self, request: web.Request) -> tuple[Held, list[Mapping[str, Any]], Mapping[str, Any]]:
        require(request, Right.CALL)
        try:
            config, inputs = _parts(await read_request(request))
            found = request.match_info
            config["session"] = f"apps/{found['app']}/sessions/{found['id']}"
            return (await self._table.held(config)).free(), inputs, config
        except InputRefused as error:
            raise refused(status_of(error), str(error)) from None

    async def _stop(self, _: web.Application) -> None:
        for leg in tuple(self._legs):
            leg.fail("the server stops", EndReason.DRAIN)
        await self._table.close()


class _Bidi:
    """One WebSocket: what comes while a turn is on interrupts it."""

    def __init__(self, ws: web.WebSocketResponse, held: Held) -> None:
        self._ws = ws
        self._held = held
        self._turn: asyncio.Task[None] | None = None

    async def run(self) -> None:
        try:
            async for message in self._ws:
                given = message_object(message).get("realtimeInput")
                if not isinstance(given, dict):
                    raise InputRefused("'realtimeInput' is expected")
                if "audio" in given:
                    raise InputRefused("audio is taken where the configuration has 'inputAudioConfig'")
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
        try:
            async with self._held.turn() as session, aclosing(session.take([given])) as outputs:
                async for output in outputs:
                    ending = output.pop("endSession", None)
                    await self._send({"sessionOutput": output})
                    if ending is not None:
                        await self._send({"endSession": ending})
                        await self._ws.close()
        except (InputRefused, TimeoutError) as error:
            await self._send(error_message(status_of(error), str(error) or _TOO_LONG))
        except ConnectionError:
            log.info("session_client_gone")

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
            await self._ws.send_str(dumps(message))


async def _serve(ws: web.WebSocketResponse, call: SessionCall) -> None:
    """Inputs until the socket or the call ends; the leg hears of the end."""
    loop = asyncio.get_running_loop()
    rate = MessageRate(loop.time())
    try:
        async for message in ws:
            if not rate.take(loop.time()):
                raise InputRefused("too many messages")
            given = message_object(message).get("realtimeInput")
            if not isinstance(given, dict):
                raise InputRefused("'realtimeInput' is expected")
            call.take(given)
            if call.leg.closed:
                break
    except (AudioTooEarly, InputRefused) as error:
        call.refuse(error)
    except Exception as error:
        # The outermost edge of one call's socket: the other calls go on.
        log.exception("session_call_failed")
        call.leg.fail(repr(error))
    finally:
        call.leg.cut()


def _parts(body: bytes) -> tuple[dict[str, Any], list[Mapping[str, Any]]]:
    """Configuration and inputs of a request. Raises `InputRefused`."""
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        raise InputRefused("the body is not JSON") from None
    if not isinstance(data, dict) or not isinstance(data.get("config") or {}, dict):
        raise InputRefused("the body and its 'config' should be objects")
    inputs = data.get("inputs") or []
    if not isinstance(inputs, list) or not all(isinstance(each, dict) for each in inputs):
        raise InputRefused("'inputs' should be a list of objects")
    return dict(camel_keys(data.get("config") or {})), [camel_keys(each) for each in inputs]
