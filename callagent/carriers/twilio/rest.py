"""Twilio's REST API: end a call, give it other TwiML, call somebody into a conference.

This is the only module that imports the SDK, and only with the first request.
"""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from callagent.carriers.control import CallEnded, ControlFailed
from callagent.carriers.twilio.settings import TwilioSettings

if TYPE_CHECKING:
    from twilio.http.async_http_client import AsyncTwilioHttpClient  # type: ignore[import-untyped]
    from twilio.rest import Client  # type: ignore[import-untyped]

REQUEST_SECONDS: Final = 4.0
"""How long a request may take: a caller is waiting in silence meanwhile."""
_CALL_SID = re.compile(r"CA[0-9a-fA-F]{32}")
_ACCOUNT_SID = re.compile(r"AC[0-9a-fA-F]{32}")
_NOT_FOUND = 404
_NOT_IN_PROGRESS = 21220
"""Twilio's code for "the call is not in progress, it cannot be redirected"."""


class _BasicCredentials:
    """A credential provider with a ready-made header: the SDK's own one uses a deprecated call of aiohttp."""

    def __init__(self, settings: TwilioSettings) -> None:
        pair = f"{settings.account_sid}:{settings.auth_token}".encode()
        self._header = f"Basic {base64.b64encode(pair).decode('ascii')}"

    def to_auth_strategy(self) -> _BasicCredentials:
        return self

    def get_auth_string(self) -> str:
        return self._header


class TwilioApi:
    """The REST API for the calls of one account. Every request is bounded to `REQUEST_SECONDS`."""

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
        """Call `target` into the conference `room`; the URL `report` is told how it goes. Raises `ControlFailed`."""
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
            raise ControlFailed(f"Twilio could not be asked: {error or type(error).__name__}") from None

    def _connect(self) -> Client:
        if self._client is None:
            from twilio.http.async_http_client import AsyncTwilioHttpClient
            from twilio.rest import Client

            self._http = AsyncTwilioHttpClient(timeout=REQUEST_SECONDS)
            # A mapping of its own: else the client takes region and edge from the process environment.
            self._client = Client(
                account_sid=self._settings.account_sid,
                credential_provider=_BasicCredentials(self._settings),
                http_client=self._http,
                environment={"": ""},
            )
            self._client.api.base_url = self._settings.api_base_url.rstrip("/")
        return self._client
