"""What the routes ask of the server, and what the server asks of routes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from callagent.agents import AgentProject
from callagent.agents.flows import Outside
from callagent.call_info import CallInfo
from callagent.json_values import MutableJsonObject
from callagent.legs import CallLeg, Dial
from callagent.turns import TurnEvent

if TYPE_CHECKING:
    from aiohttp import web

TurnWatcher = Callable[[TurnEvent], None]
"""Called with each event of the turn manager before the call gets it. Returns at once."""
HoldSession = Callable[[CallLeg, AgentProject, TurnWatcher], asyncio.Task[None]]
"""Hold an admitted call of a session with this agent; the task ends when the call is closed."""


class Routes(Protocol):
    """Routes that a part of the server adds to the HTTP application."""

    open_paths: frozenset[str]
    """Paths that ask for no login: each request to them proves by itself who sent it, by a signature or a token."""

    def register(self, app: web.Application) -> None:
        """Add the routes, and what is to be done when the application starts and ends."""


class Utterances(Protocol):
    """Speech outside of calls, one utterance at a time, as 16-bit PCM at 8 kHz. Both raise `ProviderError`."""

    async def recognise(self, pcm: bytes) -> str: ...

    async def speak(self, project: AgentProject, text: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """The server as its routes see it. All hooks are called on the event loop and return at once."""

    on_carrier_call: Callable[[CallLeg], None]
    """Take the leg of a verified call; from here on the server owns and closes it."""
    admit: Callable[[], bool]
    """Return whether one more call fits."""
    draining: Callable[[], bool]
    """Return whether the server is about to stop and takes no new calls."""
    metrics: Callable[[], str]
    """Return the metrics in Prometheus' text format."""
    accepts: Callable[[CallInfo], bool] = lambda info: True
    """Count an incoming call by its caller's number; return whether that number may make one more."""
    outside: Outside = field(default_factory=Outside)
    """Where other programs reach calls."""
    dial: Dial | None = None
    """Call the target of a transfer; None where SIP is off."""
    captions: Callable[[str], MutableJsonObject | None] = lambda call_id: None
    """What the caller's own page shows of a live call; None: the call is not on."""
    hold_session: HoldSession | None = None
    """None where the server has no speech."""
    utterances: Utterances | None = None
    """None where the server has no speech."""
    still: Callable[[], list[str]] = list
    """Return the names of threads that stand still; with one of them the server is not healthy."""
    store_failing: Callable[[], bool] = lambda: False
    """Return whether records cannot be written. Calls are taken all the same."""
