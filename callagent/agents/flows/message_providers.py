"""Providers of text messages and e-mail: Twilio, Telnyx, an SMTP server."""

from __future__ import annotations

import asyncio
import json
import smtplib
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import make_msgid

from callagent.agents.flows.messages import MessageFailed, OutgoingMessage
from callagent.json_values import JsonObject, MutableJsonObject

REQUEST_SECONDS = 10.0
"""Deadline of one HTTP request."""
_MAX_DETAIL = 300
"""Characters of a provider's error response that the error quotes."""


async def post(
    url: str,
    *,
    headers: Mapping[str, str],
    form: Mapping[str, str] | None = None,
    document: JsonObject | None = None,
) -> MutableJsonObject:
    """Send a POST request and return the JSON object of its answer.

    Raises `MessageFailed`; 429, 5xx and a lost connection are temporary.
    """
    from aiohttp import ClientError, ClientSession, ClientTimeout

    try:
        async with (
            ClientSession(timeout=ClientTimeout(total=REQUEST_SECONDS)) as session,
            session.post(url, headers=headers, data=form, json=document, allow_redirects=False) as answer,
        ):
            text, status = await answer.text(), answer.status
            # `content_type=None`: a provider may send JSON under another type.
            received = await answer.json(content_type=None) if status < 300 else None
    except (ClientError, OSError, TimeoutError, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise MessageFailed(f"the provider could not be reached: {reason}", temporary=True) from None
    if not isinstance(received, dict):
        temporary = status == 429 or status >= 500
        raise MessageFailed(f"the provider answered {status}: {text[:_MAX_DETAIL]}", temporary=temporary)
    return received


@dataclass(frozen=True, slots=True)
class TelnyxSender:
    api_key: str = field(repr=False)
    api_base_url: str = "https://api.telnyx.com"

    async def send(self, message: OutgoingMessage) -> str:
        if message.kind != "sms" or message.content_id:
            raise MessageFailed("content templates and WhatsApp messages are sent through Twilio only")
        if not message.sender:
            raise MessageFailed("the message has no number to be sent from")
        answer = await post(
            f"{self.api_base_url}/v2/messages",
            headers={"Authorization": f"Bearer {self.api_key}"},
            document={"from": message.sender, "to": message.to, "text": message.text},
        )
        data = answer.get("data")
        return str(data.get("id") or "") if isinstance(data, dict) else ""


@dataclass(frozen=True, slots=True)
class TwilioSender:
    account_sid: str
    auth_token: str = field(repr=False)
    api_base_url: str = "https://api.twilio.com"

    async def send(self, message: OutgoingMessage) -> str:
        if not message.sender and not message.service:
            raise MessageFailed("the message has no number to be sent from")
        url = f"{self.api_base_url}/2010-04-01/Accounts/{self.account_sid}/Messages.json"
        credentials = b64encode(f"{self.account_sid}:{self.auth_token}".encode()).decode("ascii")
        answer = await post(url, headers={"Authorization": f"Basic {credentials}"}, form=_form(message))
        return str(answer.get("sid") or "")


def _form(message: OutgoingMessage) -> dict[str, str]:
    prefix = "whatsapp:" if message.kind == "whatsapp" else ""
    form = {"To": prefix + message.to.removeprefix(prefix)}
    if message.service:
        form["MessagingServiceSid"] = message.service
    else:
        form["From"] = prefix + message.sender.removeprefix(prefix)
    if message.content_id:
        form["ContentSid"] = message.content_id
        if message.content_variables:
            form["ContentVariables"] = json.dumps(dict(message.content_variables))
    else:
        form["Body"] = message.text
    return form


SMTP_SECONDS = 15.0
"""Deadline of one operation on the socket of a mail server."""


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    host: str
    sender: str
    """The address e-mails come from."""
    port: int = 587
    user: str = ""
    password: str = field(default="", repr=False)
    encrypted: bool = True
    """Require TLS (STARTTLS, RFC 3207) before login and message."""


@dataclass(frozen=True, slots=True)
class SmtpSender:
    settings: SmtpSettings

    async def send(self, message: OutgoingMessage) -> str:
        # smtplib blocks; the thread is bounded by the socket's timeout.
        return await asyncio.to_thread(self._send, message)

    def _send(self, message: OutgoingMessage) -> str:
        settings = self.settings
        try:
            email = _email(message, settings.sender)
            with smtplib.SMTP(settings.host, settings.port, timeout=SMTP_SECONDS) as server:
                if settings.encrypted:
                    server.starttls()
                if settings.user:
                    server.login(settings.user, settings.password)
                server.send_message(email)
        except ValueError as error:
            raise MessageFailed(f"the e-mail is not valid: {error}") from None
        except smtplib.SMTPRecipientsRefused as error:
            code = max((code for code, _ in error.recipients.values()), default=0)
            raise MessageFailed(f"the SMTP server refused the recipient: {code}", temporary=code < 500) from None
        except smtplib.SMTPResponseException as error:
            raise MessageFailed(
                f"the SMTP server answered {error.smtp_code}", temporary=error.smtp_code < 500
            ) from None
        except (smtplib.SMTPException, OSError) as error:
            raise MessageFailed(f"the SMTP server could not be reached: {error}", temporary=True) from None
        return str(email["Message-ID"])


def _email(message: OutgoingMessage, sender: str) -> EmailMessage:
    """Build the e-mail of a message. Raises `ValueError` for a subject or address with line breaks."""
    email = EmailMessage()
    email["From"], email["To"], email["Subject"] = sender, message.to, message.subject
    email["Message-ID"] = make_msgid()
    email.set_content(message.text)
    return email
