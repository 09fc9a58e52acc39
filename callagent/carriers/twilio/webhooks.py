"""Twilio's side of HTTP: signed webhooks, and the upgrade to a media stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from aiohttp import web

from callagent.call_info import CallInfo
from callagent.carriers.calls import CarrierCalls, Draining, Refused
from callagent.carriers.markup import Answer, Verdict
from callagent.carriers.stream import MediaStreams
from callagent.carriers.twilio.dialect import TwilioDialect
from callagent.carriers.twilio.forms import (
    Form,
    is_end_of_dial,
    is_over_sip,
    read_call_info,
    read_call_sid,
    read_dial_outcome,
    read_invited_outcome,
)
from callagent.carriers.twilio.rest import TwilioApi
from callagent.carriers.twilio.settings import TwilioSettings
from callagent.carriers.twilio.signature import SIGNATURE_HEADER, SignatureChecker
from callagent.carriers.twilio.transfer import TransferUrls, TwilioCallControl
from callagent.carriers.twilio.twiml import TwiML
from callagent.legs import TransferOutcome, TransferStatus
from callagent.log import get_logger
from callagent.web import ServerHooks, peer_is_known, read_form

VOICE_PATH: Final = "/twilio/voice"
MEDIA_PATH: Final = "/twilio/media"
SMS_PATH: Final = "/twilio/sms"
TRANSFER_PATH: Final = "/twilio/transfer-status"
GREETING_PATH: Final = "/twilio/greeting"

log = get_logger(__name__)


class TwilioRoutes:
    """The handlers of one Twilio account."""

    open_paths = frozenset({VOICE_PATH, MEDIA_PATH, TRANSFER_PATH, GREETING_PATH, SMS_PATH})

    def __init__(self, settings: TwilioSettings, hooks: ServerHooks) -> None:
        """Raises `ValueError` for settings with which no signature could be checked."""
        self._account_sid = settings.account_sid
        self._hooks = hooks
        self._api = TwilioApi(settings)
        self._signatures = signatures = SignatureChecker(settings.auth_token, settings.public_url)
        greeting_url = signatures.url(GREETING_PATH)
        self._markup = TwiML(signatures.stream_url(MEDIA_PATH), signatures.url(VOICE_PATH), greeting_url)
        self._transfer_urls = TransferUrls(signatures.url(TRANSFER_PATH), greeting_url)
        self._calls: CarrierCalls | None = None
        self._streams: MediaStreams | None = None

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
        """Say what to do with a caller: one who calls now, or one whose stream has ended."""
        form = await self._signed_form(request, VOICE_PATH)
        try:
            info = read_call_info(self._call_sid(form, "CallSid"), form)
            answer = await self.calls.take_call(info, self._control(info, over_sip=is_over_sip(form)))
        except Draining as error:
            raise web.HTTPServiceUnavailable(text=str(error)) from None
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None
        return self._document(answer)

    async def transfer_status(self, request: web.Request) -> web.Response:
        """Hear how a transfer goes, and say what to do with the call that the report is of."""
        form = await self._signed_form(request, TRANSFER_PATH)
        try:
            # The query names a caller who waits in a conference for the call that is reported.
            if caller_sid := request.query.get("call", ""):
                return self._document(self._report_invited(form, caller_sid))
            return self._document(self._report_end(form) if is_end_of_dial(form) else self._report_dialled(form))
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None

    async def greeting(self, request: web.Request) -> web.Response:
        """Say what a person who was dialled hears first."""
        form = await self._signed_form(request, GREETING_PATH)
        try:
            leg = self.calls.leg(self._call_sid(form, "ParentCallSid"))
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None
        return self._document(Verdict.HANG_UP if leg is None else leg.answer_target(form.get("Digits")))

    async def text_message(self, request: web.Request) -> web.Response:
        """Take a text message to one of our numbers: STOP and START are heeded, the rest is not for us."""
        form = await self._signed_form(request, SMS_PATH)
        await asyncio.to_thread(self._hooks.outside.opt_outs.take, form.get("From", ""), form.get("Body", ""))
        return web.Response(text="<Response/>", content_type=self._markup.content_type, charset="utf-8")

    async def media(self, request: web.Request) -> web.StreamResponse:
        """Upgrade to a media stream. Twilio signs either form of our URL."""
        urls = (self._signatures.stream_url(MEDIA_PATH), self._signatures.url(MEDIA_PATH))
        if not any(self._is_signed(request, url, {}) for url in urls):
            raise web.HTTPForbidden(text="the signature is not valid")
        assert self._streams is not None, "made when the application starts"
        return await self._streams.serve(request)

    # Reports of transfers -------------------------------------------------------------------------------------------

    def _report_invited(self, form: Form, caller_sid: str) -> Answer:
        """Of a call into a conference in which the caller waits."""
        self._call_sid(form, "CallSid")
        leg, outcome = self.calls.leg(caller_sid), read_invited_outcome(form)
        if leg and outcome:
            leg.end_transfer(outcome)
        return Verdict.CARRY_ON

    def _report_dialled(self, form: Form) -> Answer:
        """Of the dialled party's own call, which answers before `<Dial>` ends."""
        leg = self.calls.leg(self._call_sid(form, "ParentCallSid"))
        if leg and form.get("CallStatus") == "in-progress":
            leg.end_transfer(TransferOutcome(TransferStatus.SUCCEEDED, "answered"))
        return Verdict.CARRY_ON

    def _report_end(self, form: Form) -> Answer:
        """Of the end of `<Dial>` or `<Refer>`: the caller comes back to us unless they are gone."""
        leg = self.calls.leg(self._call_sid(form, "CallSid"))
        if leg is None:
            return Verdict.HANG_UP
        leg.end_dial(read_dial_outcome(form))
        return Verdict.HANG_UP if leg.closed else self.calls.expect_stream(leg.info, leg.control)

    # Parts ----------------------------------------------------------------------------------------------------------

    def _call_sid(self, form: Form, field: str) -> str:
        return read_call_sid(form, field, self._account_sid)

    def _control(self, info: CallInfo, *, over_sip: bool) -> TwilioCallControl:
        def write_connect() -> str:
            return self._markup.write_document(self.calls.expect_stream(info, control))

        control = TwilioCallControl(self._api, info, self._transfer_urls, write_connect, over_sip=over_sip)
        return control

    def _document(self, answer: Answer) -> web.Response:
        text = self._markup.write_document(answer)
        return web.Response(text=text, content_type=self._markup.content_type, charset="utf-8")

    async def _signed_form(self, request: web.Request, path: str) -> Form:
        form = await read_form(request)
        texts = dict(form)
        # A field given twice has no one value to be signed.
        if len(texts) != len(form):
            raise web.HTTPBadRequest(text="a field comes twice")
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        if not self._is_signed(request, self._signatures.url(path) + query, texts):
            raise web.HTTPForbidden(text="the signature is not valid")
        return texts

    def _is_signed(self, request: web.Request, url: str, form: Mapping[str, str]) -> bool:
        signed = self._signatures.signed(url, form, request.headers.get(SIGNATURE_HEADER, ""))
        if signed:
            peer_is_known(request)
        else:
            log.debug("twilio_signature_not_valid", url=url, peer=request.remote)
        return signed

    async def _start(self, _: web.Application) -> None:
        # The frame clock of the calls needs the running loop.
        self._calls = CarrierCalls(self._account_sid, self._hooks)
        self._streams = MediaStreams(self._calls, TwilioDialect)

    async def _stop(self, _: web.Application) -> None:
        self.calls.stop()
        if self._streams is not None:
            self._streams.close()

    async def _close(self, _: web.Application) -> None:
        await self._api.close()
