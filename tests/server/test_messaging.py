"""Which provider sends a project's messages."""

from __future__ import annotations

from typing import Any

import pytest

from callagent.agents.flows import SmtpSender, TelnyxSender, TwilioSender
from callagent.config import Config
from callagent.errors import ConfigError
from callagent.server.projects import message_senders


def config(**sections: Any) -> Config:
    return Config.model_validate(sections)


def test_without_settings_messages_stay_in_the_record():
    assert message_senders(config()) == {}


def test_twilio_sends_texts_and_whatsapp_messages():
    senders = message_senders(config(messages={"sms": "twilio"}, twilio={"account_sid": "AC1", "auth_token": "t"}))
    assert senders == {"sms": TwilioSender("AC1", "t"), "whatsapp": TwilioSender("AC1", "t")}


def test_telnyx_sends_texts():
    assert message_senders(config(messages={"sms": "telnyx", "telnyx_api_key": "k"})) == {"sms": TelnyxSender("k")}


def test_an_smtp_server_sends_emails():
    messages = {"smtp_host": "mail.example.org", "smtp_sender": "agent@example.org", "smtp_password": "p"}
    (kind,), (sender,) = zip(*message_senders(config(messages=messages)).items(), strict=True)
    assert kind == "email"
    assert isinstance(sender, SmtpSender)
    assert (sender.settings.host, sender.settings.port, sender.settings.password) == ("mail.example.org", 587, "p")
    assert "'p'" not in repr(sender)


@pytest.mark.parametrize(
    ("messages", "missing"),
    [
        ({"sms": "twilio"}, "TWILIO_ACCOUNT_SID"),
        ({"sms": "telnyx"}, "TELNYX_API_KEY"),
        ({"smtp_host": "mail"}, "messages.smtp_sender"),
    ],
)
def test_what_is_missing_is_named(messages: dict[str, str], missing: str):
    with pytest.raises(ConfigError, match=missing):
        message_senders(config(messages=messages))
