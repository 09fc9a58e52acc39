"""A WebSocket client that speaks Twilio's dialect, rightly or wrongly."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from xml.etree import ElementTree

import aiohttp
import websockets.asyncio.client as client
from twilio.request_validator import RequestValidator
from websockets.exceptions import ConnectionClosed

from tests.carriers.twilio.fake_twilio import ACCOUNT_SID, AUTH_TOKEN, CALL_SID

FORM = {"AccountSid": ACCOUNT_SID, "CallSid": CALL_SID, "From": "+15550100", "To": "+15550199", "CallStatus": "ringing"}


def signature(url: str, form: Mapping[str, str], auth_token: str = AUTH_TOKEN) -> str:
    return RequestValidator(auth_token).compute_signature(url, form)


async def post(url: str, form: Mapping[str, str], signed: str | None = None) -> tuple[int, str]:
    headers = {"X-Twilio-Signature": signature(url, form) if signed is None else signed}
    async with aiohttp.ClientSession() as session, session.post(url, data=form, headers=headers) as response:
        return response.status, await response.text()


def token_in(twiml: str) -> str:
    return next(p.attrib["value"] for p in ElementTree.fromstring(twiml).iter("Parameter") if p.get("name") == "token")


async def token(server_url: str, form: Mapping[str, str] = FORM) -> str:
    status, twiml = await post(server_url + "/twilio/voice", form)
    assert status == 200
    return token_in(twiml)


@asynccontextmanager
async def stream(server_url: str, signed: str | None = None) -> AsyncIterator[Stream]:
    url = server_url.replace("http", "ws") + "/twilio/media"
    headers = {"X-Twilio-Signature": signature(url, {}) if signed is None else signed}
    async with client.connect(url, additional_headers=headers, close_timeout=2) as socket:
        yield Stream(socket)


class Stream:
    def __init__(self, socket: client.ClientConnection) -> None:
        self.socket = socket

    async def send(self, event: str, **contents: Any) -> None:
        await self.socket.send(json.dumps({"event": event, "streamSid": "MZ1", **contents}))

    async def start(self, token: str | None, call_sid: str = CALL_SID, account_sid: str = ACCOUNT_SID) -> None:
        await self.send("connected", protocol="Call", version="1.0.0")
        start = {
            "streamSid": "MZ1",
            "accountSid": account_sid,
            "callSid": call_sid,
            "tracks": ["inbound"],
            "customParameters": {} if token is None else {"token": token},
            "mediaFormat": {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1},
        }
        await self.send("start", start=start)

    async def media(self, payload: bytes) -> None:
        await self.send("media", media={"track": "inbound", "payload": base64.b64encode(payload).decode()})

    async def receive(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.socket.recv())
        return message

    async def refused(self) -> tuple[int | None, list[str | bytes]]:
        """How the server closed, and what it said before."""
        said: list[str | bytes] = []
        try:
            while True:
                said.append(await self.socket.recv())
        except ConnectionClosed:
            return self.socket.close_code, said
