"""Commands about Twilio's calls: the account, its REST API, and how a caller is transferred.

A transfer is made by `<Refer>`, by `<Dial>`, or by a conference that the target is called into. The SDK is
imported with the first request only, and nowhere else than here and in `webhooks.py`, which checks signatures with it.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING, Final

from callagent.call_info import CallInfo
from callagent.carriers.protocol import CallEnded, ControlFailed, TargetNotCalled
from callagent.carriers.twilio.twiml import DialTarget, conference, dial, refer
from callagent.config import Config
from callagent.errors import UserError
from callagent.legs import TransferTarget

if TYPE_CHECKING:
    from twilio.http.async_http_client import AsyncTwilioHttpClient  # type: ignore[import-untyped]
    from twilio.rest import Client  # type: ignore[import-untyped]


@dataclass(frozen=True, slots=True)
class TwilioSettings:
    """The credentials of one account, and the addresses at which Twilio and we reach each other."""

    account_sid: str
    auth_token: str = field(repr=False)
    public_url: str
    """The URL at which Twilio reaches us, such as `https://phone.example.com`."""
    api_base_url: str = "https://api.twilio.com"


def settings_of(config: Config) -> TwilioSettings | None:
    """Return the account of the settings; None without a token. Raises `UserError` if a setting is missing."""
    twilio = config.twilio
    token = twilio.auth_token.get_secret_value()
    if not token:
        return None
    if not config.http.public_url:
        raise UserError("setting 'http.public_url' is needed with Twilio: signatures are checked against it")
    if not twilio.account_sid:
        raise UserError("setting 'twilio.account_sid' (or TWILIO_ACCOUNT_SID) is needed beside the token")
    return TwilioSettings(
        account_sid=twilio.account_sid,
        auth_token=token,
        public_url=config.http.public_url,
        api_base_url=twilio.api_base_url,
    )


REQUEST_SECONDS: Final = 4.0
"""Time for a request; a caller is waiting in silence meanwhile."""
_CALL_SID = re.compile(r"CA[0-9a-fA-F]{32}")
_ACCOUNT_SID = re.compile(r"AC[0-9a-fA-F]{32}")
_NOT_FOUND = 404
_NOT_IN_PROGRESS = 21220
"""Twilio's code for "the call is not in progress, it cannot be redirected"."""


class _BasicCredentials:
    """A credential provider for the SDK, whose own one uses a deprecated function of aiohttp."""

    def __init__(self, settings: TwilioSettings) -> None:
        pair = f"{settings.account_sid}:{settings.auth_token}".encode()
        self._header = f"Basic {base64.b64encode(pair).decode('ascii')}"

    def to_auth_strategy(self) -> _BasicCredentials:
        return self

    def get_auth_string(self) -> str:
        return self._header


class TwilioApi:
    """The REST API for the calls of one account. Every request ends within `REQUEST_SECONDS`."""

    def __init__(self, settings: TwilioSettings) -> None:
        self._settings = settings
        self._http: AsyncTwilioHttpClient | None = None
        self._client: Client | None = None

    async def hang_up(self, call_sid: str) -> None:
        """End the call. Raises `CallEnded` or `ControlFailed`."""
        await self._update(call_sid, status="completed")

    async def redirect(self, call_sid: str, twiml: str) -> None:
        """Give the call other TwiML; its media stream ends. Raises `CallEnded` or `ControlFailed`."""
        await self._update(call_sid, twiml=twiml)

    async def invite(self, room: str, caller: str, target: str, seconds: int, report: str) -> None:
        """Call `target` into the conference `room`; Twilio sends reports to `report`. Raises `ControlFailed`."""
        await self._ask(
            lambda client: client.conferences(room).participants.create_async(
                from_=caller,
                to=target,
                timeout=seconds,
                beep="false",
                early_media=False,
                end_conference_on_exit=True,
                status_callback=report,
                status_callback_event=["answered", "completed"],
            )
        )

    async def close(self) -> None:
        """Close the connections to Twilio; a later request would open new ones."""
        if self._http is not None:
            await self._http.close()
        self._http = self._client = None

    async def _update(self, call_sid: str, **changes: str) -> None:
        # The SID becomes part of a URL whose request carries our credentials.
        if not _CALL_SID.fullmatch(call_sid):
            raise ControlFailed("the CallSid is not one of Twilio's")
        await self._ask(lambda client: client.calls(call_sid).update_async(**changes))

    async def _ask(self, request: Callable[[Client], Awaitable[object]]) -> None:
        if not _ACCOUNT_SID.fullmatch(self._settings.account_sid):
            raise ControlFailed("the AccountSid is not one of Twilio's")
        from aiohttp import ClientError
        from twilio.base.exceptions import TwilioException, TwilioRestException  # type: ignore[import-untyped]

        client = self._connect()
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                await request(client)
        except TwilioRestException as error:
            kind = CallEnded if error.status == _NOT_FOUND or error.code == _NOT_IN_PROGRESS else ControlFailed
            raise kind(f"Twilio answered {error.status}, code {error.code}") from None
        except (TwilioException, ClientError, OSError, TimeoutError, ValueError) as error:
            raise ControlFailed(f"the request to Twilio failed: {error or type(error).__name__}") from None

    def _connect(self) -> Client:
        if self._client is None:
            from twilio.http.async_http_client import AsyncTwilioHttpClient
            from twilio.rest import Client

            self._http = AsyncTwilioHttpClient(timeout=REQUEST_SECONDS)
            # Given an empty map or none, the client would take region and edge from the process's environment.
            self._client = Client(
                account_sid=self._settings.account_sid,
                credential_provider=_BasicCredentials(self._settings),
                http_client=self._http,
                environment={"": ""},
            )
            self._client.api.base_url = self._settings.api_base_url.rstrip("/")
        return self._client


@dataclass(frozen=True, slots=True)
class TransferUrls:
    """The URLs at which Twilio reaches us about a transfer."""

    report: str
    """Where Twilio reports how the transfer goes."""
    greeting: str = ""
    """Where Twilio asks what the dialled person hears."""


class TwilioCallControl:
    """Implements `CallControl` for one call."""

    def __init__(
        self,
        api: TwilioApi,
        info: CallInfo,
        urls: TransferUrls,
        write_connect: Callable[[], str],
        *,
        over_sip: bool = False,
    ) -> None:
        """`write_connect` writes TwiML that opens a new stream; `over_sip`: the caller reaches Twilio by SIP."""
        self._api = api
        self._info = info
        self._call_sid = info.peer_call_id or ""
        self._urls = urls
        self._write_connect = write_connect
        self._over_sip = over_sip
        self._waits_in_conference = False

    async def hang_up(self) -> None:
        try:
            await self._api.hang_up(self._call_sid)
        except CallEnded:
            pass

    async def transfer(self, target: TransferTarget) -> None:
        self._waits_in_conference = target.method == "attended"
        twiml = self._transfer_document(target)
        await self._api.redirect(self._call_sid, twiml)
        if self._waits_in_conference:
            await self._invite(target)

    async def take_back(self) -> None:
        # After <Dial> and <Refer> Twilio asks what to do next; a caller leaves a conference only by a redirect.
        if self._waits_in_conference:
            await self._api.redirect(self._call_sid, self._write_connect())

    async def _invite(self, target: TransferTarget) -> None:
        """Call the target into the conference in which the caller waits. Raises `TargetNotCalled`."""
        shown_number = target.caller or self._info.callee or ""
        report = f"{self._urls.report}?call={self._call_sid}"
        try:
            seconds = round(target.ring_seconds)
            await self._api.invite(conference_of(self._info), shown_number, target.uri, seconds, report)
        except ControlFailed as error:
            raise TargetNotCalled(str(error)) from None

    def _transfer_document(self, target: TransferTarget) -> str:
        """Write the TwiML that begins the transfer. Raises `ValueError` for a target that cannot be called."""
        greeting = self._urls.greeting if target.whisper or target.confirm else ""
        dial_target = DialTarget(target.uri, target.headers, target.caller, greeting, confirmed=bool(target.confirm))
        # <Refer> needs a caller and a target on SIP; all others are dialled.
        if target.method == "refer" and self._over_sip and ":" in target.uri:
            return refer(dial_target, self._urls.report)
        if target.method == "attended":
            # This raises for a target that cannot be called, before the caller is put into the conference.
            dial_target.element(self._urls.report)
            return conference(conference_of(self._info), self._urls.report)
        return dial(dial_target, self._urls.report, ceil(target.ring_seconds))


def conference_of(info: CallInfo) -> str:
    """Return the name of the conference in which this call's caller waits for a target."""
    return f"callagent-{info.call_id}"
