"""Who sends the text messages and e-mails of projects, by the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent.errors import ConfigError

if TYPE_CHECKING:
    from callagent.agents.flows import MessageRules, MessageSender
    from callagent.config import Config


def message_senders(config: Config) -> dict[str, MessageSender]:
    """Kind of message -> its sender; a kind that is not there is kept in the call's record. Raises `ConfigError`."""
    senders: dict[str, MessageSender] = {}
    match config.messages.sms:
        case "twilio":
            twilio = _twilio(config)
            senders |= {"sms": twilio, "whatsapp": twilio}
        case "telnyx":
            senders["sms"] = _telnyx(config)
    if config.messages.smtp_host:
        senders["email"] = _smtp(config)
    return senders


def message_rules(config: Config) -> MessageRules:
    from callagent.agents.flows import MessageRules

    return MessageRules(config.limits.messages, config.messages.recipients)


def _twilio(config: Config) -> MessageSender:
    from callagent.agents.flows import TwilioSender

    settings = config.twilio
    token = settings.auth_token.get_secret_value()
    if not settings.account_sid or not token:
        raise ConfigError("messages.sms is 'twilio': set TWILIO_ACCOUNT_SID and TWILIO_AUTH_TOKEN")
    return TwilioSender(settings.account_sid, token, settings.api_base_url)


def _telnyx(config: Config) -> MessageSender:
    from callagent.agents.flows import TelnyxSender

    key = config.messages.telnyx_api_key.get_secret_value()
    if not key:
        raise ConfigError("messages.sms is 'telnyx': set TELNYX_API_KEY")
    return TelnyxSender(key, config.messages.telnyx_base_url)


def _smtp(config: Config) -> MessageSender:
    from callagent.agents.flows import SmtpSender, SmtpSettings

    settings = config.messages
    if not settings.smtp_sender:
        raise ConfigError("messages.smtp_host is set: set messages.smtp_sender, the address e-mails come from")
    return SmtpSender(
        SmtpSettings(
            host=settings.smtp_host,
            sender=settings.smtp_sender,
            port=settings.smtp_port,
            user=settings.smtp_user,
            password=settings.smtp_password.get_secret_value(),
            encrypted=settings.smtp_encrypted,
        )
    )
