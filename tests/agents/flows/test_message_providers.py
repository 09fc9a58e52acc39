"""The wire of the messaging providers, against real servers on loopback."""

from __future__ import annotations

import asyncio
from base64 import b64decode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from callagent.agents.flows.message_providers import SmtpSender, SmtpSettings, TelnyxSender, TwilioSender
from callagent.agents.flows.messages import MessageFailed, OutgoingMessage


class Provider:
    """Keeps what it was asked and answers as told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], Any]] = []
        self.status = 201
        self.answer: Any = {"sid": "SM1", "data": {"id": "T1"}}
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        is_form = request.content_type == "application/x-www-form-urlencoded"
        body = dict(await request.post()) if is_form else await request.json()
        self.requests.append((request.path, dict(request.headers), body))
        return web.json_response(self.answer, status=self.status)


@asynccontextmanager
async def provider() -> AsyncIterator[Provider]:
    provider = Provider()
    app = web.Application()
    app.router.add_post("/{rest:.*}", provider.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()


async def test_twilio_is_sent_a_form_with_basic_credentials():
    async with provider() as twilio:
        sender = TwilioSender("AC1", "secret", twilio.url)
        assert await sender.send(OutgoingMessage("sms", "+49", "+1", "Hello")) == "SM1"
        path, headers, form = twilio.requests[0]
    assert path == "/2010-04-01/Accounts/AC1/Messages.json"
    assert b64decode(headers["Authorization"].removeprefix("Basic ")) == b"AC1:secret"
    assert form == {"To": "+49", "From": "+1", "Body": "Hello"}
    assert "secret" not in repr(sender)


async def test_twilio_content_templates_and_whatsapp_have_their_own_fields():
    async with provider() as twilio:
        sender = TwilioSender("AC1", "secret", twilio.url)
        await sender.send(
            OutgoingMessage("whatsapp", "+49", "+1", "", content_id="HX1", content_variables={"1": "nine"})
        )
        await sender.send(OutgoingMessage("sms", "+49", "", "Hello", service="MG1"))
        first, second = (form for _, _, form in twilio.requests)
    assert first == {
        "To": "whatsapp:+49",
        "From": "whatsapp:+1",
        "ContentSid": "HX1",
        "ContentVariables": '{"1": "nine"}',
    }
    assert second == {"To": "+49", "MessagingServiceSid": "MG1", "Body": "Hello"}


async def test_telnyx_is_sent_json_with_a_bearer_token():
    async with provider() as telnyx:
        assert await TelnyxSender("key", telnyx.url).send(OutgoingMessage("sms", "+49", "+1", "Hello")) == "T1"
        path, headers, document = telnyx.requests[0]
    assert (path, headers["Authorization"]) == ("/v2/messages", "Bearer key")
    assert document == {"from": "+1", "to": "+49", "text": "Hello"}


@pytest.mark.parametrize(("status", "temporary"), [(400, False), (401, False), (429, True), (503, True)])
async def test_a_refusal_says_whether_trying_again_may_help(status: int, temporary: bool):
    async with provider() as twilio:
        twilio.status = status
        with pytest.raises(MessageFailed) as failed:
            await TwilioSender("AC1", "s", twilio.url).send(OutgoingMessage("sms", "+49", "+1", "Hello"))
    assert failed.value.temporary is temporary
    assert str(status) in str(failed.value)


async def test_a_provider_that_cannot_be_reached_is_a_temporary_failure():
    with pytest.raises(MessageFailed) as failed:
        await TelnyxSender("k", "http://127.0.0.1:9").send(OutgoingMessage("sms", "+49", "+1", "Hello"))
    assert failed.value.temporary


@pytest.mark.parametrize("sender", [TwilioSender("AC1", "s"), TelnyxSender("k")])
async def test_a_message_without_a_sender_is_not_sent(sender: Any):
    with pytest.raises(MessageFailed, match="no number"):
        await sender.send(OutgoingMessage("sms", "+49", "", "Hello"))


async def smtp_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, mail: list[str], code: int) -> None:
    """As much of RFC 5321 as one message needs; `code` answers RCPT."""
    writer.write(b"220 here\r\n")
    in_data = False
    while line := (await reader.readline()).decode():
        verb = line[:4].upper()
        if in_data:
            in_data = line != ".\r\n"
            mail.append(line.rstrip("\r\n"))
            if not in_data:
                writer.write(b"250 taken\r\n")
        elif verb == "RCPT":
            writer.write(f"{code} answer\r\n".encode())
        elif verb == "DATA":
            in_data = True
            writer.write(b"354 go\r\n")
        elif verb == "QUIT":
            writer.write(b"221 bye\r\n")
            break
        else:
            writer.write(b"250 fine\r\n")
    writer.close()


async def sent_mail(message: OutgoingMessage, code: int = 250) -> list[str]:
    mail: list[str] = []
    server = await asyncio.start_server(lambda r, w: smtp_server(r, w, mail, code), "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        settings = SmtpSettings("127.0.0.1", "agent@example.org", port, encrypted=False)
        await SmtpSender(settings).send(message)
    return mail


async def test_an_email_has_its_headers_and_its_text():
    mail = await sent_mail(OutgoingMessage("email", "you@example.org", "", "Hello\nthere", "Your call"))
    assert "From: agent@example.org" in mail
    assert "To: you@example.org" in mail
    assert "Subject: Your call" in mail
    assert mail[-3:] == ["Hello", "there", "."]


async def test_a_header_with_a_line_break_is_refused():
    with pytest.raises(MessageFailed, match="not valid"):
        await sent_mail(OutgoingMessage("email", "you@example.org", "", "x", "a\nBcc: all@example.org"))


async def test_a_recipient_that_is_refused_for_good_is_not_tried_again():
    with pytest.raises(MessageFailed) as failed:
        await sent_mail(OutgoingMessage("email", "you@example.org", "", "x", "s"), 550)
    assert not failed.value.temporary
