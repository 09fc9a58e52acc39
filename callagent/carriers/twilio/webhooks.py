"""Twilio's side of HTTP: signed webhooks and the media stream."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from aiohttp import web

from callagent.carriers.dialect import MAX_MESSAGE_BYTES, DialectError
from callagent.carriers.media_socket import CLOSE_SECONDS, MediaSocket
from callagent.carriers.twilio.calls import (
    GREETING_PATH,
    MEDIA_PATH,
    SMS_PATH,
    TRANSFER_PATH,
    VOICE_PATH,
    CarrierCalls,
    Draining,
    Refused,
)
from callagent.carriers.twilio.settings import TwilioSettings
from callagent.carriers.twilio.signature import SIGNATURE_HEADER, SignatureChecker
from callagent.carriers.twilio.stream import Stream
from callagent.log import get_logger
from callagent.web import ServerHooks, peer_is_known, read_form

START_SECONDS: Final = 10.0
"""From the upgrade to a verified start."""
MAX_STRANGERS: Final = 50
"""Sockets from one address that have not proved yet whose they are."""
NORMAL, GOING_AWAY, PROTOCOL_ERROR, POLICY, SERVER_ERROR = 1000, 1001, 1002, 1008, 1011
SIGNED_PATHS: Final = frozenset({VOICE_PATH, MEDIA_PATH, TRANSFER_PATH, GREETING_PATH, SMS_PATH})

log = get_logger(__name__)


class TwilioRoutes:
    """The handlers of one Twilio account."""

    open_paths = SIGNED_PATHS

    def __init__(self, settings: TwilioSettings, hooks: ServerHooks) -> None:
        self._settings = settings
        self._hooks = hooks
        self._signatures = SignatureChecker(settings.auth_token, settings.public_url)
        self._calls: CarrierCalls | None = None
        self._sockets: set[MediaSocket] = set()
        self._strangers: Counter[str] = Counter()

    def register(self, app: web.Application) -> None:
        app.router.add_post(VOICE_PATH, self.voice)
        app.router.add_get(MEDIA_PATH, self.media, allow_head=False)
        app.router.add_post(TRANSFER_PATH, self.transfer_status)
        app.router.add_post(GREETING_PATH, self.greeting)
        app.router.add_post(SMS_PATH, self.text_message)
        app.on_startup.append(self._start)
        app.on_shutdown.append(self._stop)
        app.on_cleanup.append(self._close)

    @property
    def calls(self) -> CarrierCalls:
        assert self._calls is not None, "made when the application starts"
        return self._calls

    async def voice(self, request: web.Request) -> web.Response:
        form = await self._signed_form(request, VOICE_PATH)
        try:
            return _twiml(await self.calls.incoming(form))
        except Draining as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from None
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None

    async def transfer_status(self, request: web.Request) -> web.Response:
        form = await self._signed_form(request, TRANSFER_PATH)
        try:
            return _twiml(self.calls.transfer_reported(form, request.query.get("call", "")))
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None

    async def greeting(self, request: web.Request) -> web.Response:
        form = await self._signed_form(request, GREETING_PATH)
        try:
            return _twiml(self.calls.greeting(form))
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None

    async def text_message(self, request: web.Request) -> web.Response:
        """A text message to one of our numbers: STOP and START are heeded, the rest is not for us."""
        form = await self._signed_form(request, SMS_PATH)
        await asyncio.to_thread(self._hooks.outside.opt_outs.take, form.get("From", ""), form.get("Body", ""))
        return _twiml("<Response/>")

    async def media(self, request: web.Request) -> web.StreamResponse:
        signatures = self._signatures
        urls = (signatures.stream_url(MEDIA_PATH), signatures.url(MEDIA_PATH))
        if not any(self._signed(request, url, {}) for url in urls):
            raise web.HTTPForbidden(text="the signature is not valid")
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
                    await self._serve(socket, stranger)
            finally:
                self._sockets.discard(socket)
        return ws

    async def _serve(self, socket: MediaSocket, stranger: Stranger) -> None:
        """From the upgrade to the end of the stream; the leg, if there is one, hears of the end."""
        stream = Stream(socket, self.calls)
        try:
            async with asyncio.timeout(START_SECONDS):
                await stream.introduce()
            stranger.is_known()
            await stream.go_on()
        except (TimeoutError, Refused) as error:
            log.warning("media_stream_refused", reason=str(error) or "no start in time")
            socket.close(POLICY)
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
            socket.close(NORMAL)

    async def _signed_form(self, request: web.Request, path: str) -> Mapping[str, str]:
        form = await read_form(request)
        texts = dict(form)
        # A field given twice has no one value to be signed.
        if len(texts) != len(form):
            raise web.HTTPBadRequest(text="a field comes twice")
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        if not self._signed(request, self._signatures.url(path) + query, texts):
            raise web.HTTPForbidden(text="the signature is not valid")
        return texts

    def _signed(self, request: web.Request, url: str, form: Mapping[str, str]) -> bool:
        signed = self._signatures.signed(url, form, request.headers.get(SIGNATURE_HEADER, ""))
        if signed:
            peer_is_known(request)
        else:
            log.debug("twilio_signature_not_valid", url=url, peer=request.remote)
        return signed

    @contextmanager
    def _stranger(self, address: str) -> Iterator[Stranger]:
        if self._strangers[address] >= MAX_STRANGERS:
            raise web.HTTPTooManyRequests(text="too many streams that have not started")
        stranger = Stranger(self._strangers, address)
        try:
            yield stranger
        finally:
            stranger.is_known()

    async def _start(self, _: web.Application) -> None:
        self._calls = CarrierCalls(self._settings, self._hooks, self._signatures)

    async def _stop(self, _: web.Application) -> None:
        self.calls.stop()
        for socket in tuple(self._sockets):
            socket.close(GOING_AWAY)

    async def _close(self, _: web.Application) -> None:
        await self.calls.close()


class Stranger:
    """A place among the sockets of an address that have not started."""

    def __init__(self, strangers: Counter[str], address: str) -> None:
        self._strangers = strangers
        self._address = address
        self._counted = True
        strangers[address] += 1

    def is_known(self) -> None:
        """Free the place. Idempotent."""
        if not self._counted:
            return
        self._counted = False
        self._strangers[self._address] -= 1
        if self._strangers[self._address] <= 0:
            del self._strangers[self._address]


def _twiml(document: str) -> web.Response:
    return web.Response(text=document, content_type="text/xml", charset="utf-8")
