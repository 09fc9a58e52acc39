"""The phone in the browser: the page at `/phone` as a carrier."""

from __future__ import annotations

from callagent.config import Config
from callagent.web import Routes, ServerHooks


def open_carrier(config: Config, hooks: ServerHooks) -> Routes:
    """Return the routes of the page's socket; the page is there in every server."""
    from callagent.carriers.browser.routes import PhoneRoutes

    return PhoneRoutes(hooks)
