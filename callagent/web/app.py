"""The HTTP application: health, metrics, the routes that are added, API and dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiohttp import web

from callagent.web.access import METRICS_PATH, Access, guard
from callagent.web.api import Api, Dashboard, unavailable_is_503
from callagent.web.connections import watch_requests
from callagent.web.control import EVENTS_PATH, ControlApi, OutsideRoutes
from callagent.web.hooks import Routes, ServerHooks
from callagent.web.pages import Pages
from callagent.web.projects import ConfigurationApi

HEALTH_PATHS: Final = frozenset({"/health", "/ready"})
MAX_BODY: Final = 65536
"""Bytes of a request's body; routes that take more read it themselves."""


def make_app(
    hooks: ServerHooks, added: Sequence[Routes] = (), dashboard: Dashboard | None = None, access: Access | None = None
) -> web.Application:
    """Make the aiohttp application, with the routes of the carriers and of the Session API in `added`.

    Without `dashboard` it has neither API nor pages; without `access` only paths that are open to all can be reached.
    """
    access = access or Access()
    open_paths = HEALTH_PATHS | {EVENTS_PATH} | frozenset().union(*(one.open_paths for one in added))
    middlewares = [watch_requests, guard(open_paths, access), unavailable_is_503]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY)
    health = _HealthRoutes(hooks)
    app.router.add_get("/health", health.health)
    app.router.add_get("/ready", health.ready)
    app.router.add_get(METRICS_PATH, health.metrics)
    OutsideRoutes(hooks.outside).register(app)
    for routes in added:
        routes.register(app)
    if dashboard:
        Api(dashboard).register(app)
        ControlApi(lambda call_id: dashboard.calls().get(call_id), dashboard.controls).register(app)
        ConfigurationApi(dashboard.projects).register(app)
        Pages(access).register(app)
    return app


class _HealthRoutes:
    """What monitors and load balancers ask."""

    def __init__(self, hooks: ServerHooks) -> None:
        self._hooks = hooks

    async def health(self, _: web.Request) -> web.Response:
        still = self._hooks.still()
        body: dict[str, object] = {"status": "ok"} if not still else {"status": "stands still", "threads": still}
        return web.json_response(body, status=503 if still else 200)

    async def ready(self, _: web.Request) -> web.Response:
        ready = not self._hooks.draining()
        # A failing store is no reason to send callers elsewhere: they are served, and their records wait.
        store = "failing" if self._hooks.store_failing() else "working"
        return web.json_response({"ready": ready, "store": store}, status=200 if ready else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        return web.Response(text=self._hooks.metrics(), content_type="text/plain", charset="utf-8")
