"""The HTTP application, and the interfaces between its routes and the server.

It serves health, metrics, the routes of carriers and the Session API, the API of the dashboard, and its pages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from aiohttp import web

from callagent.agents import AgentProject
from callagent.agents.flows import ExternalExchange
from callagent.call_info import CallInfo
from callagent.json_values import MutableJsonObject
from callagent.legs import CallLeg, Dial
from callagent.turns import TurnEvent
from callagent.web.access import METRICS_PATH, Access, guard
from callagent.web.api import Api, Dashboard, answer_503_without_store
from callagent.web.connections import watch_requests
from callagent.web.control import EVENTS_PATH, ConfigurationApi, ControlApi, ExternalRoutes
from callagent.web.pages import Pages

TurnWatcher = Callable[[TurnEvent], None]
"""Called with each event of the turn manager, before the call gets this event. Returns at once."""
HoldSession = Callable[[CallLeg, AgentProject, TurnWatcher], asyncio.Task[None]]
"""Hold an admitted call of a session with this agent; the task ends when the call is closed."""


class Routes(Protocol):
    """Routes that a part of the server adds to the HTTP application."""

    open_paths: frozenset[str]
    """Paths without login: each request to them carries a signature or token that proves who sent it."""

    def register(self, app: web.Application) -> None:
        """Add the routes, and handlers for the start and end of the application if they are needed."""


class Utterances(Protocol):
    """Speech outside of calls, one utterance at a time, as 16-bit PCM at 8 kHz. Both raise `ProviderError`."""

    async def recognise(self, pcm: bytes) -> str:
        """Return the words of an utterance."""

    async def speak(self, project: AgentProject, text: str) -> bytes:
        """Return `text` in the voice of the project."""


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """Functions and objects of the server that its routes use. All are called on the event loop and return at once."""

    on_carrier_call: Callable[[CallLeg], None]
    """Take the leg of a verified call; from here on the server owns and closes it."""
    admit: Callable[[], bool]
    """Return whether the limits allow one more call."""
    draining: Callable[[], bool]
    """Return whether the server is about to stop and takes no new calls."""
    metrics: Callable[[], str]
    """Return the metrics in Prometheus' text format."""
    accepts: Callable[[CallInfo], bool] = lambda info: True
    """Count an incoming call for its caller's number; return whether the number's limits allow the call."""
    external: ExternalExchange = field(default_factory=ExternalExchange)
    """Where other programs reach calls."""
    dial: Dial | None = None
    """Call the target of a transfer; None where SIP is off."""
    captions: Callable[[str], MutableJsonObject | None] = lambda call_id: None
    """Return what the caller's own page shows of a live call; None: the call has ended."""
    hold_session: HoldSession | None = None
    """None if the server has no speech."""
    utterances: Utterances | None = None
    """None if the server has no speech."""
    stalled_threads: Callable[[], list[str]] = list
    """Return the names of threads that do not go on; with any of them the server is not healthy."""
    store_failing: Callable[[], bool] = lambda: False
    """Return whether records cannot be written. Calls are accepted nevertheless."""


HEALTH_PATHS: Final = frozenset({"/health", "/ready"})
MAX_BODY: Final = 65536
"""Bytes of a request's body; routes that accept more read the body themselves."""


def make_app(
    hooks: ServerHooks, added: Sequence[Routes] = (), dashboard: Dashboard | None = None, access: Access | None = None
) -> web.Application:
    """Make the aiohttp application; `added` are the routes of the carriers and of the Session API.

    Without `dashboard` it has neither API nor pages; without `access` only paths that are open to all can be reached.
    """
    access = access or Access()
    open_paths = HEALTH_PATHS | {EVENTS_PATH} | frozenset().union(*(one.open_paths for one in added))
    # The outermost middleware stands first: a connection's deadlines apply to refused requests, too.
    middlewares = [watch_requests, guard(open_paths, access), answer_503_without_store]
    app = web.Application(middlewares=middlewares, client_max_size=MAX_BODY)
    health = _HealthRoutes(hooks)
    app.router.add_get("/health", health.health)
    app.router.add_get("/ready", health.ready)
    app.router.add_get(METRICS_PATH, health.metrics)
    ExternalRoutes(hooks.external).register(app)
    for routes in added:
        routes.register(app)
    if dashboard:
        Api(dashboard).register(app)
        ControlApi(lambda call_id: dashboard.calls().get(call_id), dashboard.controls).register(app)
        ConfigurationApi(dashboard.projects).register(app)
        Pages(access).register(app)
    return app


class _HealthRoutes:
    """The routes of monitors and load balancers."""

    def __init__(self, hooks: ServerHooks) -> None:
        self._hooks = hooks

    async def health(self, _: web.Request) -> web.Response:
        """Answer 200 while the server works, 503 while one of its threads does not go on."""
        stalled = self._hooks.stalled_threads()
        body: dict[str, object] = {"status": "ok"} if not stalled else {"status": "stands still", "threads": stalled}
        return web.json_response(body, status=503 if stalled else 200)

    async def ready(self, _: web.Request) -> web.Response:
        """Answer 200 while new calls are accepted, 503 while the server is about to stop."""
        ready = not self._hooks.draining()
        # A failing store is no reason to send callers elsewhere: they are served, and their records wait.
        store = "failing" if self._hooks.store_failing() else "working"
        return web.json_response({"ready": ready, "store": store}, status=200 if ready else 503)

    async def metrics(self, _: web.Request) -> web.Response:
        """Answer with the metrics in Prometheus' text format."""
        return web.Response(text=self._hooks.metrics(), content_type="text/plain", charset="utf-8")
