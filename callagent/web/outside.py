"""Outside programs: events for a call that runs (`POST /external-events`), data of a handoff (`GET /api/handoffs`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from callagent.agents.flows import Outside
from callagent.web.identity import Right, require

EVENTS_PATH: Final = "/external-events"
_ID_KEYS: Final = ("id", "event_id", "ext_event_id")


class OutsideRoutes:
    def __init__(self, outside: Outside) -> None:
        self._outside = outside

    def register(self, app: web.Application) -> None:
        app.router.add_post(EVENTS_PATH, self.event)
        app.router.add_get("/api/handoffs", self.handoff)

    async def event(self, request: web.Request) -> web.Response:
        """The identifier, in the query or in the JSON body, is what lets a sender in: nobody can guess it."""
        # Whatever charset a sender claims: one that there is not is no reason to fail.
        text = (await request.read()).decode("utf-8", "replace")
        data = _parsed(text) if request.content_type == "application/json" else text
        places: tuple[Mapping[str, Any], ...] = (request.query, data if isinstance(data, dict) else {})
        identifier = next((str(place[key]) for place in places for key in _ID_KEYS if key in place), "")
        if not self._outside.deliver(identifier, data, request.content_type):
            raise web.HTTPNotFound(text="no call waits for this event")
        return web.json_response({"status": "received"}, status=202)

    async def handoff(self, request: web.Request) -> web.Response:
        """`?id=` or `?shared_id=`: what the project leaves for who takes the call over."""
        require(request, Right.PERSONAL)
        found = self._outside.handoff(call_id=request.query.get("id", ""), shared_id=request.query.get("shared_id", ""))
        if found is None:
            raise web.HTTPNotFound(text="no handoff of that call, or too long ago")
        return web.json_response(found)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text) if text else None
    except (ValueError, RecursionError):
        raise web.HTTPBadRequest(text="the body is not valid JSON") from None
