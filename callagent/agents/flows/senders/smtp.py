"""E-mails through an SMTP server."""

from __future__ import annotations

import asyncio
import smtplib
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import make_msgid

from callagent.agents.flows.messages import MessageFailed, OutgoingMessage

SMTP_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class SmtpSettings:
    host: str
    sender: str
    """The address e-mails come from."""
    port: int = 587
    user: str = ""
    password: str = field(default="", repr=False)
    encrypted: bool = True
    """Ask for TLS (STARTTLS, RFC 3207) before anything else is said."""


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
            raise MessageFailed(f"the server refused the recipient: {code}", temporary=code < 500) from None
        except smtplib.SMTPResponseException as error:
            raise MessageFailed(f"the server answered {error.smtp_code}", temporary=error.smtp_code < 500) from None
        except (smtplib.SMTPException, OSError) as error:
            raise MessageFailed(f"the server could not be asked: {error}", temporary=True) from None
        return str(email["Message-ID"])


def _email(message: OutgoingMessage, sender: str) -> EmailMessage:
    """Raises ValueError for header values with line breaks."""
    email = EmailMessage()
    email["From"], email["To"], email["Subject"] = sender, message.to, message.subject
    email["Message-ID"] = make_msgid()
    email.set_content(message.text)
    return email
