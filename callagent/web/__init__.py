"""HTTP: webhooks and media streams of carriers, health and metrics, API and dashboard."""

from __future__ import annotations

from typing import TYPE_CHECKING

from callagent.web.hooks import ServerHooks

if TYPE_CHECKING:
    from aiohttp import web

    from callagent.carriers import TwilioSettings
    from callagent.web.access import Access
    from callagent.web.api import Dashboard

__all__ = ["ServerHooks", "make_app"]


def make_app(
    twilio: TwilioSettings | None, hooks: ServerHooks, dashboard: Dashboard | None = None, access: Access | None = None
) -> web.Application:
    """The aiohttp application; `twilio` None: no carrier; `dashboard` None: neither API nor pages.

    `access` None: nobody gets in but to what is open to all.

    Raises `ValueError` for bad settings.
    """
    # aiohttp is imported with the first application, not with the command line.
    from callagent.web import app

    return app.make_app(twilio, hooks, dashboard, access)
