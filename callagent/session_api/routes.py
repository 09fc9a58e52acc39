"""The Session API of CX apps: `:runSession`, `:streamRunSession`, and the WebSocket of BidiRunSession.

A session is a conversation with an app's agent without a telephone. It needs the right to call agents (`Right.CALL`).
A socket whose configuration has audio is a call of the server; a session may have text turns before and after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aiohttp import WSMessage, web

from callagent.agents import AgentProject
from callagent.agents.cx import InputRefused, SendOutput, Speak, whole_turns
from callagent.call_info import EndReason
from callagent.carriers import CLOSE_SECONDS, FrameClock, MediaSocket, MessageRate
from callagent.errors import ProviderError
from callagent.json_values import JsonObject, MutableJsonObject, list_at, objects_at, parse_json
from callagent.log import get_logger
from callagent.session_api import messages
from callagent.session_api.call import AudioTooEarly, SessionCall, SessionLeg, has_audio
from callagent.session_api.sessions import LiveSession, SessionTable
from callagent.web import HoldSession, Right, ServerHooks, identity_of, require

MAX_SOCKET_MESSAGE: Final = 256 * 1024
"""Bytes of one message of a socket."""
CONFIG_SECONDS: Final = 10.0
"""Seconds that a socket may take to send its configuration."""
_PATH: Final = r"/{version:v1|v1beta}/projects/{project}/locations/{location}/apps/{app}/sessions/{id}"
_TOO_LONG: Final = "the turn took too long"
_BIDI_PATH: Final = r"/ws/google.cloud.ces.{version:v1|v1beta}.SessionService/BidiRunSession/locations/{location}"

log = get_logger(__name__)


class SessionRoutes:
    """The three routes of the Session API: a request, a request with a streamed answer, and a socket."""

    open_paths: frozenset[str] = frozenset()

    def __init__(self, projects: Callable[[], Sequence[AgentProject]], hooks: ServerHooks | None = None) -> None:
        """Without `hooks`, sessions are text only: they have no calls and no speech."""
        self._table = SessionTable(projects)
        self._hooks = hooks
        self._clock: FrameClock | None = None
        self._legs: set[SessionLeg] = set()

    def register(self, app: web.Application) -> None:
        app.router.add_post(f"{_PATH}:runSession", self.run_session)
        app.router.add_post(f"{_PATH}:streamRunSession", self.stream_run_session)
        app.router.add_get(_BIDI_PATH, self.bidi_run_session, allow_head=False)
        app.on_shutdown.append(self._stop)

    async def run_session(self, request: web.Request) -> web.Response:
        """Answer all inputs of a request at once (`:runSession`)."""
        live, inputs, config = await self._read_turn(request)
        outputs: list[JsonObject] = []

        async def collect(output: MutableJsonObject) -> None:
            outputs.append(output)

        try:
            await self._run_turn(live, inputs, config, collect)
        except (InputRefused, ProviderError, TimeoutError) as error:
            return messages.error_response(messages.status_of(error), str(error) or _TOO_LONG)
        return web.json_response({"outputs": whole_turns(outputs)}, dumps=messages.dumps)

    async def stream_run_session(self, request: web.Request) -> web.StreamResponse:
        """Answer with a JSON array whose members are sent one by one (`:streamRunSession` over REST)."""
        live, inputs, config = await self._read_turn(request)
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Cache-Control": "no-store"})
        await response.prepare(request)
        separator = b"["

        async def send(member: JsonObject) -> None:
            nonlocal separator
            await response.write(separator + messages.dumps(member).encode())
            separator = b","

        try:
            await self._run_turn(live, inputs, config, lambda output: send({"outputs": [output]}))
        except (InputRefused, ProviderError, TimeoutError) as error:
            # The status line is sent already, so the error becomes a member of the array.
            await send(messages.error_message(messages.status_of(error), str(error) or _TOO_LONG))
        await response.write((b"[" if separator == b"[" else b"") + b"]")
        return response

    async def bidi_run_session(self, request: web.Request) -> web.WebSocketResponse:
        """Serve the socket of BidiRunSession, as text or as a call."""
        require(request, Right.CALL)
        ws = web.WebSocketResponse(heartbeat=20, max_msg_size=MAX_SOCKET_MESSAGE, timeout=CLOSE_SECONDS)
        await ws.prepare(request)
        try:
            async with asyncio.timeout(CONFIG_SECONDS):
                config = messages.message_object(await ws.receive()).get("config")
            if not isinstance(config, Mapping):
                raise InputRefused("the first message should have a 'config' with a 'session'")
            live = await self._table.open_session(config)
            if has_audio(config):
                await self._serve_call(ws, request, live, config)
            else:
                live.expect_no_call()
                await _TextSocket(ws, live).run()
        except (TimeoutError, InputRefused) as error:
            await ws.send_str(
                messages.dumps(messages.error_message(messages.status_of(error), str(error) or "no configuration came"))
            )
        await ws.close()
        return ws

    # Calls --------------------------------------------------------------------------------------------------------

    async def _serve_call(
        self, ws: web.WebSocketResponse, request: web.Request, live: LiveSession, config: JsonObject
    ) -> None:
        """Run a call on the socket until either ends. Raises `InputRefused` if no call can be taken."""
        await live.reserve_for_call()
        call_task: asyncio.Task[None] | None = None
        try:
            assert request.transport is not None
            if live.session.ended:
                raise InputRefused("the session has ended")
            socket = MediaSocket(ws, request.transport)
            call = SessionCall(socket, live.session, live.project, config)
            hold_session, clock = self._admit_call()
            leg = call.open(identity_of(request).name, str(config["session"]), clock)
            self._legs.add(leg)
            call_task = hold_session(leg, call.project, call.watch)
            async with asyncio.TaskGroup() as group:
                group.create_task(socket.write())
                await _feed_call(ws, call)
        finally:
            if call_task is None:
                live.release()
            else:
                # The call may still speak its last words: the session is released when the call's task has ended.
                self._legs.discard(leg)
                call_task.add_done_callback(lambda _: live.release())

    def _admit_call(self) -> tuple[HoldSession, FrameClock]:
        """Return the function that runs a call, and the audio clock. Raises `InputRefused` if no call can be taken."""
        # The limits of telephone calls apply, because a session with audio costs as much as a call.
        hooks = self._hooks
        if hooks is None or hooks.hold_session is None:
            raise InputRefused("this server takes no audio in sessions; send text")
        if hooks.draining() or not hooks.admit():
            raise InputRefused("the server takes no more calls now; try again later")
        self._clock = self._clock or FrameClock()
        return hooks.hold_session, self._clock

    # Requests -----------------------------------------------------------------------------------------------------

    async def _run_turn(
        self, live: LiveSession, inputs: Sequence[JsonObject], config: JsonObject, send: SendOutput
    ) -> None:
        """Run the turn of a request and send its outputs. Raises `InputRefused`, `ProviderError`, `TimeoutError`."""
        async with live.turn() as session:
            texts, speak = await self._transcribe(live, inputs, config)
            await session.run_inputs(texts, send, speak)

    async def _transcribe(
        self, live: LiveSession, inputs: Sequence[JsonObject], config: JsonObject
    ) -> tuple[list[JsonObject], Speak | None]:
        """Return the inputs with text in the place of audio, and the function that speaks the answer, if any.

        Raises `InputRefused`.
        """
        if not has_audio(config) and not any("audio" in each for each in inputs):
            return list(inputs), None
        if self._hooks is None or self._hooks.utterances is None:
            raise InputRefused("this server takes no audio in sessions; send text")
        speech = messages.RequestSpeech(self._hooks.utterances, live.project, config)
        return await speech.transcribe(inputs), speech.speaker()

    async def _read_turn(self, request: web.Request) -> tuple[LiveSession, list[JsonObject], JsonObject]:
        """Return the session that a request names, its inputs and its configuration. Raises 400, 403 and 404."""
        require(request, Right.CALL)
        try:
            config, inputs = _read_body(await messages.read_request(request))
            path = request.match_info
            config["session"] = f"apps/{path['app']}/sessions/{path['id']}"
            live = await self._table.open_session(config)
            live.expect_no_call()
            return live, inputs, config
        except InputRefused as error:
            raise messages.http_error(messages.status_of(error), str(error)) from None

    async def _stop(self, _: web.Application) -> None:
        for leg in tuple(self._legs):
            leg.fail("the server stops", EndReason.DRAIN)
        await self._table.close()


class _TextSocket:
    """A socket without audio. An input that arrives while a turn runs interrupts it."""

    def __init__(self, ws: web.WebSocketResponse, live: LiveSession) -> None:
        self._ws = ws
        self._live = live
        self._turn: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Read inputs until the socket or the session ends. Raises `InputRefused`."""
        try:
            async for message in self._ws:
                client_input = _read_input(message)
                if "audio" in client_input:
                    raise InputRefused("this session is text: audio needs 'inputAudioConfig' in the configuration")
                await self._begin_turn(client_input)
                if self._live.session.ended:
                    return
        finally:
            await self._interrupt()

    async def _begin_turn(self, client_input: JsonObject) -> None:
        # Variables are not words of the client, so they do not interrupt.
        if "variables" not in client_input and await self._interrupt():
            await self._send({"interruptionSignal": {"bargeIn": True}})
        self._turn = asyncio.create_task(self._run_turn(client_input))
        if "event" in client_input or client_input.get("willContinue"):
            return
        # The turn is a task that the next input can interrupt. It begins here, before that input is read.
        await asyncio.sleep(0)

    async def _run_turn(self, client_input: JsonObject) -> None:
        try:
            async with self._live.turn() as session:
                await session.run_inputs([client_input], self._send_output)
        except (InputRefused, TimeoutError) as error:
            await self._send(messages.error_message(messages.status_of(error), str(error) or _TOO_LONG))
        except ConnectionError:
            log.info("session_client_gone")

    async def _send_output(self, output: MutableJsonObject) -> None:
        """Send an output, and close the socket after the one that ends the session."""
        # On a socket `endSession` is a message of its own; in the answer to a request it is part of the last output.
        ending = output.pop("endSession", None)
        await self._send({"sessionOutput": output})
        if ending is not None:
            await self._send({"endSession": ending})
            await self._ws.close()

    async def _interrupt(self) -> bool:
        """Cancel the running turn; return whether there was one."""
        turn = self._turn
        if turn is None or turn.done():
            return False
        # The interrupted turn must have ended, with its words in the history, before the next one begins.
        turn.cancel()
        await asyncio.wait({turn})
        return True

    async def _send(self, message: JsonObject) -> None:
        if not self._ws.closed:
            await self._ws.send_str(messages.dumps(message))


async def _feed_call(ws: web.WebSocketResponse, call: SessionCall) -> None:
    """Pass every input to the call until the socket or the call ends, then end the leg."""
    try:
        # Any error of this socket ends this call only.
        with log.contain("session_call_failed") as boundary:
            await _read_inputs(ws, call)
        if boundary.error is not None:
            call.leg.fail(repr(boundary.error))
    finally:
        call.leg.cut()


async def _read_inputs(ws: web.WebSocketResponse, call: SessionCall) -> None:
    loop = asyncio.get_running_loop()
    rate = MessageRate(loop.time())
    try:
        async for message in ws:
            if not rate.admit_message(loop.time()):
                raise InputRefused("too many messages")
            call.receive_input(_read_input(message))
            if call.leg.closed:
                break
    except (AudioTooEarly, InputRefused) as error:
        call.refuse(error)


def _read_input(message: WSMessage) -> JsonObject:
    """Return the `realtimeInput` of a socket's message. Raises `InputRefused`."""
    client_input = messages.message_object(message).get("realtimeInput")
    if not isinstance(client_input, Mapping):
        raise InputRefused("the message should have a 'realtimeInput'")
    return client_input


def _read_body(body: bytes) -> tuple[MutableJsonObject, list[JsonObject]]:
    """Return the configuration and the inputs of a request. Raises `InputRefused`."""
    try:
        data = parse_json(body)
    except ValueError:
        raise InputRefused("the body is not JSON") from None
    config = data.get("config") or {} if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(config, Mapping):
        raise InputRefused("the body and its 'config' should be objects")
    inputs = objects_at(data, "inputs")
    if data.get("inputs") and (not inputs or len(inputs) != len(list_at(data, "inputs"))):
        raise InputRefused("'inputs' should be a list of objects")
    return messages.camel_object(config), [messages.camel_object(each) for each in inputs]
