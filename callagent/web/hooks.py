"""What the HTTP side asks of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from callagent.agents import AgentProject
from callagent.agents.flows import Outside
from callagent.call_info import CallInfo
from callagent.legs import CallLeg, Dial
from callagent.turns import TurnEvent

if TYPE_CHECKING:
    from aiohttp import web

TurnWatcher = Callable[[TurnEvent], None]
"""Is told what the turn manager tells the call, before the call. Returns at once."""
HoldSession = Callable[[CallLeg, AgentProject, TurnWatcher], asyncio.Task[None]]
"""Hold an admitted call of a session with this agent; the task ends when nothing of the call is left."""


class Routes(Protocol):
    """Routes that a part of the server adds to the HTTP application."""

    open_paths: frozenset[str]
    """Paths that ask for no login: each request to them proves by itself who sent it, by a signature or a token."""

    def register(self, app: web.Application) -> None:
        """Add the routes, and what is to be done when the application starts and ends."""


class Utterances(Protocol):
    """Speech outside of calls, utterance by utterance: 16-bit PCM at the call's rate. Both raise `ProviderError`."""

    async def recognise(self, pcm: bytes) -> str: ...

    async def speak(self, project: AgentProject, text: str) -> bytes: ...


@dataclass(frozen=True, slots=True)
class ServerHooks:
    """All are called on the event loop and return at once."""

    on_carrier_call: Callable[[CallLeg], None]
    """A verified call with its media stream, or one from our page; from here on the server owns and closes the leg."""
    admit: Callable[[], bool]
    """Whether one more call fits."""
    draining: Callable[[], bool]
    metrics: Callable[[], str]
    """Prometheus text."""
    accepts: Callable[[CallInfo], bool] = lambda info: True
    """Counts a call that comes in by its caller's number: whether that number may make one more."""
    outside: Outside = field(default_factory=Outside)
    """Where outside programs reach calls."""
    dial: Dial | None = None
    """Call the target of a transfer; None: SIP is off."""
    captions: Callable[[str], dict[str, Any] | None] = lambda call_id: None
    """What the caller's own page shows of a live call; None: the call is not on."""
    hold_session: HoldSession | None = None
    """None: there is no speech here."""
    utterances: Utterances | None = None
    """The same."""
    still: Callable[[], list[str]] = list
    """The threads that stand still; with one of them the server is not healthy."""
    store_failing: Callable[[], bool] = lambda: False
    """Whether records cannot be written. Calls are taken all the same."""
