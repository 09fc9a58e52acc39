"""The settings of one Twilio account."""

from __future__ import annotations

from dataclasses import dataclass, field

from callagent.config import Config
from callagent.errors import UserError


@dataclass(frozen=True, slots=True)
class TwilioSettings:
    """The credentials of an account, and the addresses at which Twilio and we reach each other."""

    account_sid: str
    auth_token: str = field(repr=False)
    public_url: str
    """The URL at which Twilio reaches us, such as `https://phone.example.com`."""
    api_base_url: str = "https://api.twilio.com"


def settings_of(config: Config) -> TwilioSettings | None:
    """Return the account of the settings; None without a token. Raises `UserError` naming a missing setting."""
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
