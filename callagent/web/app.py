"""The HTTP application: health, metrics, the carriers' routes, and the dashboard."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from callagent.carriers import TwilioSettings
from callagent.web.access import METRICS_PATH, Access, guard
from callagent.web.api import Api, Dashboard, unavailable_is_503
from callagent.web.configuration import ConfigurationApi
from callagent.web.connection import watch_requests
from callagent.web.control import ControlApi
from callagent.web.hooks import ServerHooks
from callagent.web.outside import EVENTS_PATH, OutsideRoutes
from callagent.web.pages import Pages
from callagent.web.phone import PhoneRoutes
from callagent.web.sessions import SessionRoutes
from callagent.web.twilio import SIGNED_PATHS, TwilioRoutes

HEALTH_PATHS: Final = frozenset({"/health", "/ready"})
MAX_BODY: Final = 65536


def make_app(
    twilio: TwilioSettings | None, hooks: ServerHooks, dashboard: Dashboard | None = None, access: Access | None = None
) -> web.Application:
    """The application, without Twilio's routes where there are no settings. Raises `ValueError` for bad settings.

    Without `access` nobody gets in but to what is open to all.
    """
    access = access or Access()
    open_paths = HEALTH_PATHS | {EVENTS_PATH} | (SIGNED_PATHS if twilio else frozenset())
    middlewares = [watch_requests, guard(open_paths, access), unavailable_is_503]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY)
    routes = _Routes(hooks)
    app.router.add_get("/health", routes.health)
    app.router.add_get("/ready", routes.ready)
    app.router.add_get(METRICS_PATH, routes.metrics)
    OutsideRoutes(hooks.outside).register(app)
    if twilio:
        TwilioRoutes(twilio, hooks).register(app)
    if dashboard:
        Api(dashboard).register(app)
        SessionRoutes(dashboard.projects, hooks).register(app)
        ControlApi(lambda call_id: dashboard.calls().get(call_id), dashboard.controls).register(app)
        ConfigurationApi(dashboard.projects).register(app)
        PhoneRoutes(hooks, dashboard.calls).register(app)
        Pages(access).register(app)
    return app


class _Routes:
    def __init__(self, hooks: ServerHooks) -> None:
        self._hooks = hooks

    async def health(self, _: web.Request) -> web.Response:
        still = self._hooks.still()
        body: dict[str, object] = {"status": "ok"} if not still else {"status": "stands still", "threads": still}
        return web.json_response(body, status=503 if still else 200)

    async def ready(self, _: web.Request) -> web.Response:
        ready = not self._hooks.draining()
        # A store that fails is no reason to send callers elsewhere: they are served, and their records wait.
        store = "failing" if self._hooks.store_failing() else "working"
        return web.json_response({"ready": ready, "store": store}, status=200 if ready else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._hooks.metrics(), content_type="text/plain", charset="utf-8")
