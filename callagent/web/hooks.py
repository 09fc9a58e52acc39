"""What the HTTP side asks of the server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from callagent.agents import AgentProject
from callagent.agents.flows import Outside
from callagent.call_info import CallInfo
from callagent.legs.bridge import Dial
from callagent.legs.leg import CallLeg
from callagent.turns import TurnEvent

TurnWatcher = Callable[[TurnEvent], None]
"""Is told what the turn-taker tells the call, before the call. Returns at once."""
HoldSession = Callable[[CallLeg, AgentProject, TurnWatcher], asyncio.Task[None]]
"""Hold an admitted call of a session with this agent; the task ends when nothing of the call is left."""


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
    hold_session: HoldSession | None = None
    """None: there is no speech here."""
    utterances: Utterances | None = None
    """The same."""
    still: Callable[[], list[str]] = list
    """The threads that stand still; with one of them the server is not healthy."""
    store_failing: Callable[[], bool] = lambda: False
    """Whether records cannot be written. Calls are taken all the same."""
