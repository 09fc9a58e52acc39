"""Twilio: signed webhooks, TwiML, media streams, and calls controlled through the REST API."""

from __future__ import annotations

from callagent.carriers.twilio.call_control import settings_of
from callagent.config import Config
from callagent.web import Routes, ServerHooks


def open_carrier(config: Config, hooks: ServerHooks) -> Routes | None:
    """Return the routes of the configured account, or None without a token. Raises `UserError` for bad settings."""
    settings = settings_of(config)
    if settings is None:
        return None
    from callagent.carriers.twilio.webhooks import TwilioRoutes

    return TwilioRoutes(settings, hooks)
