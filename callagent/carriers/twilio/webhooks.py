"""Twilio's requests to us: signed webhooks with their forms, and the upgrade to a media stream.

Nothing in a request is trusted before its signature (X-Twilio-Signature) is checked for our public URL.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from uuid import uuid4

from aiohttp import web

from callagent.call_info import CallInfo
from callagent.carriers.calls import CarrierCalls, Draining, Refused
from callagent.carriers.protocol import Answer, Verdict
from callagent.carriers.stream import MediaStreams
from callagent.carriers.twilio.call_control import TransferUrls, TwilioApi, TwilioCallControl, TwilioSettings
from callagent.carriers.twilio.dialect import TwilioDialect
from callagent.carriers.twilio.twiml import TwiML
from callagent.legs import TransferOutcome, TransferStatus
from callagent.log import get_logger
from callagent.web import ServerHooks, note_known_peer, read_form

if TYPE_CHECKING:
    from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

VOICE_PATH: Final = "/twilio/voice"
MEDIA_PATH: Final = "/twilio/media"
SMS_PATH: Final = "/twilio/sms"
TRANSFER_PATH: Final = "/twilio/transfer-status"
GREETING_PATH: Final = "/twilio/greeting"

log = get_logger(__name__)


class TwilioRoutes:
    """The HTTP handlers of one Twilio account."""

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
        """Answer what to do with a caller: one who calls now, or one whose stream has ended."""
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
        """Handle a report about a transfer, and answer what to do with the call that the report is of."""
        form = await self._signed_form(request, TRANSFER_PATH)
        try:
            # The query names a caller who waits in a conference for the call that is reported.
            if caller_sid := request.query.get("call", ""):
                return self._document(self._report_invited(form, caller_sid))
            return self._document(self._report_end(form) if is_end_of_dial(form) else self._report_dialled(form))
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None

    async def greeting(self, request: web.Request) -> web.Response:
        """Answer what the dialled person hears first, or what follows from the key that they pressed."""
        form = await self._signed_form(request, GREETING_PATH)
        try:
            leg = self.calls.leg(self._call_sid(form, "ParentCallSid"))
        except Refused as error:
            raise web.HTTPForbidden(text=str(error)) from None
        return self._document(Verdict.HANG_UP if leg is None else leg.answer_target(form.get("Digits")))

    async def text_message(self, request: web.Request) -> web.Response:
        """Handle a text message to one of our numbers: STOP and START are obeyed, all others are ignored."""
        form = await self._signed_form(request, SMS_PATH)
        await asyncio.to_thread(
            self._hooks.external.opt_outs.handle_message, form.get("From", ""), form.get("Body", "")
        )
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
        """Handle the report of a call into a conference in which the caller waits."""
        self._call_sid(form, "CallSid")
        leg, outcome = self.calls.leg(caller_sid), read_invited_outcome(form)
        if leg and outcome:
            leg.end_transfer(outcome)
        return Verdict.CARRY_ON

    def _report_dialled(self, form: Form) -> Answer:
        """Handle the report of the dialled party's own call, which answers before `<Dial>` ends."""
        leg = self.calls.leg(self._call_sid(form, "ParentCallSid"))
        if leg and form.get("CallStatus") == "in-progress":
            leg.end_transfer(TransferOutcome(TransferStatus.SUCCEEDED, "answered"))
        return Verdict.CARRY_ON

    def _report_end(self, form: Form) -> Answer:
        """Handle the end of `<Dial>` or `<Refer>`: the caller comes back to us unless they are gone."""
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
        # The signature covers one value of each field, so a field that comes twice could have an unsigned value.
        if len(texts) != len(form):
            raise web.HTTPBadRequest(text="a field comes twice")
        query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
        if not self._is_signed(request, self._signatures.url(path) + query, texts):
            raise web.HTTPForbidden(text="the signature is not valid")
        return texts

    def _is_signed(self, request: web.Request, url: str, form: Mapping[str, str]) -> bool:
        signed = self._signatures.is_valid(url, form, request.headers.get(SIGNATURE_HEADER, ""))
        if signed:
            note_known_peer(request)
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


SIGNATURE_HEADER = "X-Twilio-Signature"


class SignatureChecker:
    """Checks signatures of one account for the configured URL; a sender could choose Host and X-Forwarded headers."""

    def __init__(self, auth_token: str, public_url: str) -> None:
        parts = urlsplit(public_url)
        if not auth_token:
            # An empty key would make every signature forgeable.
            raise ValueError("Twilio's auth token is not set")
        if parts.scheme not in ("https", "http") or not parts.netloc or parts.query or parts.fragment:
            raise ValueError(f"'{public_url}' is not a public URL such as https://phone.example.com")
        self._auth_token = auth_token
        self._public_url = public_url.rstrip("/")
        self._validator: RequestValidator | None = None

    def url(self, path: str) -> str:
        """Return the public URL of one of our paths."""
        return self._public_url + path

    def stream_url(self, path: str) -> str:
        """Return the public URL of one of our WebSockets."""
        return "ws" + self.url(path).removeprefix("http")

    def is_valid(self, url: str, form: Mapping[str, str], signature: str) -> bool:
        """Return whether Twilio signed this URL with this form, which is empty for an upgrade."""
        if not signature:
            return False
        if self._validator is None:
            from twilio.request_validator import RequestValidator

            self._validator = RequestValidator(self._auth_token)
        return bool(self._validator.validate(url, form, signature))


Form = Mapping[str, str]

_CALL_SID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SIP_HEADER: Final = "SipHeader_"
# Twilio writes a withheld number as a word, or as the keys that spell the word on a keypad.
_WITHHELD = frozenset(
    {"", "anonymous", "restricted", "blocked", "unknown", "unavailable"}
    | {"+266696687", "+7378742833", "+2562533", "+8656696", "+86282452253"}
)
_STATUSES: Final[Mapping[str, TransferStatus]] = {
    "completed": TransferStatus.SUCCEEDED,
    "answered": TransferStatus.SUCCEEDED,
    "busy": TransferStatus.REFUSED,
    "no-answer": TransferStatus.NO_ANSWER,
    "failed": TransferStatus.FAILED,
    "canceled": TransferStatus.CALLER_GONE,
}
# The same for a call that we placed into a conference. `completed` is read only if no answer was reported before, so
# nobody has answered; `canceled` is about the target's call, not the caller's.
_INVITED_STATUSES: Final[Mapping[str, TransferStatus]] = {
    **_STATUSES,
    "completed": TransferStatus.FAILED,
    "canceled": TransferStatus.NO_ANSWER,
}


def read_call_sid(form: Form, field: str, account_sid: str) -> str:
    """Return the identifier of the call in a field. Raises `Refused` also for a webhook of another account."""
    call_sid = form.get(field, "")
    if not _CALL_SID.fullmatch(call_sid):
        raise Refused(f"the webhook has no valid {field}")
    if form.get("AccountSid", account_sid) != account_sid:
        raise Refused("the webhook belongs to another account")
    return call_sid


def read_call_info(call_sid: str, form: Form) -> CallInfo:
    """Return who calls whom; a withheld number is None."""
    caller = _party(form.get("From", ""))
    return CallInfo(
        call_id=uuid4().hex,
        direction="inbound",
        caller=None if caller.lower() in _WITHHELD else caller,
        callee=_party(form.get("To", "")) or None,
        wire="twilio",
        started=datetime.now(UTC),
        headers={name.removeprefix(_SIP_HEADER): form[name] for name in form if name.startswith(_SIP_HEADER + "X-")},
        peer_call_id=call_sid,
    )


def is_over_sip(form: Form) -> bool:
    """Return whether Twilio has the caller on SIP, and can ask the caller's own system to call somebody else."""
    return form.get("From", "").lower().startswith(("sip:", "sips:")) or "SipCallId" in form


def is_end_of_dial(form: Form) -> bool:
    """Return whether the report is of the end of `<Dial>` or `<Refer>`, not of the dialled party's own call."""
    dialled = form.get("DialCallStatus") or form.get("ReferCallStatus")
    return dialled is not None or "ReferSipResponseCode" in form


def read_dial_outcome(form: Form) -> TransferOutcome:
    """Return what the end of `<Dial>` or `<Refer>` means for the caller."""
    dialled = form.get("DialCallStatus") or form.get("ReferCallStatus") or ""
    # The caller's own call is over: they have hung up while the target's phone rang, or after the two had spoken.
    gone = form.get("CallStatus") == "completed" and "DialCallStatus" in form
    status = TransferStatus.CALLER_GONE if gone else _STATUSES.get(dialled, TransferStatus.FAILED)
    codes = ("DialSipResponseCode", "ReferSipResponseCode", "NotifySipResponseCode")
    return TransferOutcome(status, " ".join(filter(None, (dialled, *(form.get(field) for field in codes)))))


def read_invited_outcome(form: Form) -> TransferOutcome | None:
    """Return what became of a call into a conference; None while it is still ringing."""
    status = form.get("CallStatus", "")
    if status == "in-progress":
        return TransferOutcome(TransferStatus.SUCCEEDED, "answered")
    found = _INVITED_STATUSES.get(status)
    return None if found is None else TransferOutcome(found, status)


def _party(address: str) -> str:
    """Return the number of an address, or the user part of a SIP URI."""
    scheme, colon, rest = address.strip().partition(":")
    if colon and scheme.lower() in ("sip", "sips"):
        return rest.partition("@")[0].partition(";")[0]
    return address.strip()
