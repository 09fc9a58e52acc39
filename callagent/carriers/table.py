"""The carriers that this server knows. A new one is a folder beside this file and a line in `CARRIERS`.

A carrier's package itself imports little: its routes, with HTTP and the audio, are imported when it is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from callagent.carriers import browser, twilio
from callagent.config import Config
from callagent.web import Routes, ServerHooks

OpenCarrier = Callable[[Config, ServerHooks], Routes | None]
"""Return a carrier's routes, or None where the settings do not ask for it. Raises `UserError` for bad settings."""

CARRIERS: Final[Mapping[str, OpenCarrier]] = {
    "browser": browser.open_carrier,
    "twilio": twilio.open_carrier,
}


def open_carriers(config: Config, hooks: ServerHooks) -> list[Routes]:
    """Return the routes of every carrier that is configured. Raises `UserError` for bad settings."""
    opened = (open_carrier(config, hooks) for open_carrier in CARRIERS.values())
    return [routes for routes in opened if routes is not None]
