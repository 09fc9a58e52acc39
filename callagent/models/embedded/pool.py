"""Processes of the small model, each with one set of tools: on a quiet machine a set takes up to two seconds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from callagent.errors import ProviderError, ProviderTimeout
from callagent.failover import Breaker, BreakerState
from callagent.models.embedded.process import NeedleProcess
from callagent.models.embedded.weights import NeedleFiles
from callagent.models.protocol import Tool

_PROCESSES = 3
PREPARE_SECONDS = 10.0
ANSWER_SECONDS = 2.0
"""An answer takes 0.1 to 0.3 s. The engine's threads wait for one another by spinning: on a busy machine it takes many
times as long, and then the processor belongs to the calls."""


@dataclass(frozen=True, slots=True)
class ToolSet:
    """What a process is prepared for: tools, and the day that relative dates count from."""

    system: str
    tools: str

    @classmethod
    def of(cls, tools: Sequence[Tool], today: date) -> ToolSet:
        plain = [
            {
                "name": tool["function"]["name"],
                "description": tool["function"].get("description") or "",
                "parameters": tool["function"].get("parameters") or {"type": "object", "properties": {}},
            }
            for tool in tools
        ]
        return cls(f"date: {today:%Y-%m-%d %a}", json.dumps(plain))


@dataclass(frozen=True, slots=True)
class Reading:
    """What the small model made of an utterance."""

    name: str
    """The function's; empty: none fits."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    confidence: float = 0.0
    """From 0 to 1, as the model itself estimates."""
    grounded: bool = True
    """Every argument is in the caller's words, as far as the model can tell."""


@dataclass(slots=True, eq=False)
class _Place:
    process: NeedleProcess
    preparing: asyncio.Task[None]
    users: int = 0


class NeedlePool:
    """At most three sets of tools at a time; the least recently used one goes. `close()` ends the processes."""

    def __init__(self, files: NeedleFiles) -> None:
        self._files = files
        self._places: dict[ToolSet, _Place] = {}
        """The most recently used last."""
        # Two engines at work on two processors spin against one another: both take many times as long.
        self._one_at_a_time = asyncio.Lock()
        # Where the machine is too busy for it, starting it again and again would make the machine busier.
        self._breaker = Breaker()

    @property
    def tool_sets(self) -> tuple[ToolSet, ...]:
        return tuple(self._places)

    @property
    def processes(self) -> tuple[int | None, ...]:
        return tuple(place.process.pid for place in self._places.values())

    def prepare(self, tools: ToolSet) -> None:
        """Have a process ready for `tools` soon; nothing happens where all are busy or were too slow lately."""
        if self._breaker.state is BreakerState.CLOSED:
            with suppress(ProviderError):
                self._place(tools)

    async def read(self, tools: ToolSet, text: str) -> Reading:
        """What `text` asks for. Raises `ProviderError`."""
        if not self._breaker.admit(_now()):
            raise ProviderError("the embedded model was too slow lately")
        place = self._place(tools)
        place.users += 1
        try:
            await _prepared(place)
            async with self._one_at_a_time:
                answer = await place.process.ask({"text": text}, ANSWER_SECONDS)
            self._breaker.succeed()
            return _reading(answer)
        except ProviderError as error:
            if place.preparing.done():
                self._note_failure(error)
                await self._drop(tools, place)
            raise
        finally:
            place.users -= 1

    async def close(self) -> None:
        places, self._places = self._places, {}
        for place in places.values():
            # First what may be starting the process, then the process: the other way round it would outlive us.
            place.preparing.cancel()
            await asyncio.gather(place.preparing, return_exceptions=True)
            await place.process.close()

    def _place(self, tools: ToolSet) -> _Place:
        place = self._places.pop(tools, None)
        if place is None:
            process = self._free_process()
            place = _Place(process, asyncio.create_task(self._prepare(process, tools)))
            # A preparation that failed is told to whoever asks with it.
            place.preparing.add_done_callback(_look_at)
        self._places[tools] = place
        return place

    def _free_process(self) -> NeedleProcess:
        if len(self._places) < _PROCESSES:
            return NeedleProcess(self._files)
        oldest = next(
            (each for each, place in self._places.items() if not place.users and place.preparing.done()), None
        )
        if oldest is None:
            raise ProviderError("the embedded model is busy with other functions")
        return self._places.pop(oldest).process

    async def _prepare(self, process: NeedleProcess, tools: ToolSet) -> None:
        async with self._one_at_a_time:
            try:
                await process.ask({"system": tools.system, "tools": tools.tools}, PREPARE_SECONDS)
            except ProviderError as error:
                self._note_failure(error)
                raise

    def _note_failure(self, error: ProviderError) -> None:
        self._breaker.fail(error, _now(), trip=isinstance(error, ProviderTimeout))

    async def _drop(self, tools: ToolSet, place: _Place) -> None:
        """What has failed begins anew with the next request."""
        if self._places.get(tools) is place:
            del self._places[tools]
        await place.process.close()


async def _prepared(place: _Place) -> None:
    """Raises `ProviderTimeout` for a preparation that takes too long for this caller, but goes on for the next."""
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            await asyncio.shield(place.preparing)
    except TimeoutError:
        raise ProviderTimeout("the embedded model is still being prepared for these functions") from None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _look_at(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _reading(answer: Any) -> Reading:
    """Raises `ProviderError` for what is no answer of the small model's."""
    try:
        calls = answer.get("function_calls") or ()
        checks = answer.get("validation") or {}
        if not calls or checks.get("negation"):
            return Reading("")
        # One step at a time: what else was asked for, the caller says again or the next step asks.
        name, arguments = str(calls[0]["name"]), dict(calls[0].get("arguments") or {})
        return Reading(name, arguments, float(answer.get("confidence") or 0.0), not checks.get("ungrounded"))
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ProviderError(f"the embedded model gave no answer of its kind: {error!r}") from error
