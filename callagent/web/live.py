"""Live calls as watchers see them: their state is sent again whenever it has changed (Server-Sent Events)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from time import monotonic
from typing import Final

from aiohttp import web

from callagent.call import Call
from callagent.json_values import JsonObject, MutableJsonObject
from callagent.records import hide_personal_data
from callagent.web.access import identity_of
from callagent.web.accounts import Right

POLL_SECONDS: Final = 0.4
"""Time between two looks at the calls while somebody watches."""
_PING_SECONDS: Final = 15.0
"""Longest time without data on a stream: proxies cut connections on which nothing is sent."""
_MAX_WATCHERS: Final = 50

Calls = Callable[[], Mapping[str, Call]]


class LiveCalls:
    """Polls the calls while somebody watches; the calls themselves do nothing for it."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._watchers = 0
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """End the streams of all watchers when the server stops."""
        self._stopping.set()

    def summaries(self, *, personal: bool) -> list[object]:
        """Return a summary of each call."""
        return [_hide_unless_personal(_summary(call), personal) for call in self._calls().values()]

    def details(self, call_id: str, *, personal: bool) -> object:
        """Return a call with its turns so far; None when it is over."""
        call = self._calls().get(call_id)
        return _hide_unless_personal(_details(call), personal) if call else None

    async def watch_all(self, request: web.Request) -> web.StreamResponse:
        """Send the summaries of all calls as events."""
        personal = identity_of(request).may(Right.PERSONAL)
        return await self._watch(request, lambda: self.summaries(personal=personal))

    async def watch_one(self, request: web.Request) -> web.StreamResponse:
        """Send one call with its turns as events. Raises 404 if it is not live."""
        personal = identity_of(request).may(Right.PERSONAL)
        call_id = request.match_info["id"]
        if self.details(call_id, personal=personal) is None:
            raise web.HTTPNotFound(text="no live call has this id")
        return await self._watch(request, lambda: self.details(call_id, personal=personal))

    async def _watch(self, request: web.Request, get_state: Callable[[], object]) -> web.StreamResponse:
        # Each watcher costs a look at all calls several times a second, on the loop that carries their audio.
        if self._watchers >= _MAX_WATCHERS:
            raise web.HTTPServiceUnavailable(
                text=f"{_MAX_WATCHERS} watchers are connected already; one has to leave first"
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        self._watchers += 1
        try:
            await self._send(response, get_state)
        except ConnectionError:
            # The watcher has closed the page.
            pass
        finally:
            self._watchers -= 1
        return response

    async def _send(self, response: web.StreamResponse, get_state: Callable[[], object]) -> None:
        """Send the state whenever it has changed, until it is None (the call is over) or the server stops."""
        last_text, sent_at = "", monotonic()
        while not self._stopping.is_set():
            state = get_state()
            text = json.dumps(state, ensure_ascii=False, default=str)
            # Watchers get whole states and not changes: one that misses an event is right again with the next.
            if text != last_text:
                await response.write(f"data: {text}\n\n".encode("utf-8", "replace"))
                last_text, sent_at = text, monotonic()
            elif monotonic() - sent_at > _PING_SECONDS:
                await response.write(b": still here\n\n")
                sent_at = monotonic()
            if state is None:
                return
            # Sleep until the next look, or until the server stops.
            try:
                async with asyncio.timeout(POLL_SECONDS):
                    await self._stopping.wait()
            except TimeoutError:
                pass


def _summary(call: Call) -> JsonObject:
    record, turn = call.record, call.record.turns[-1]
    spoken_texts = [spoken.text for spoken in turn.spoken]
    return {
        "id": record.id,
        "project_id": record.project_id,
        "wire": record.wire,
        "direction": record.direction,
        "from_number": record.from_number,
        "to_number": record.to_number,
        "started_at": record.started_at,
        "answered_at": record.answered_at,
        "state": call.state.value,
        "floor": call.floor.value,
        "flow": turn.flow,
        "step": turn.step,
        "turn": turn.number,
        "user_input": turn.user_input,
        "partial": call.partial,
        "text": spoken_texts[-1] if spoken_texts else "",
    }


def _details(call: Call) -> Mapping[str, object]:
    record = call.record
    return {
        **_summary(call),
        "turns": [asdict(turn) for turn in record.turns],
        "digits": record.digits,
        "errors": record.errors,
    }


def _hide_unless_personal(data: Mapping[str, object], personal: bool) -> object:
    return data if personal else hide_personal_data(data)


def captions_of(call: Call) -> MutableJsonObject:
    """Return what callers may see of their own call: words and times, but not the project's inner state."""
    # Two turns: the reply to the last but one may still be spoken when the last begins.
    turns = [
        {
            "number": turn.number,
            "user_input": turn.user_input,
            "user_input_dtmf": turn.user_input_dtmf,
            "spoken": [asdict(spoken) for spoken in turn.spoken],
            "response": turn.latency.get("response"),
        }
        for turn in call.record.turns[-2:]
    ]
    return {"state": call.state.value, "floor": call.floor.value, "partial": call.partial, "turns": turns}
