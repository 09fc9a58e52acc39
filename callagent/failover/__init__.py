"""Failover between providers of one kind: circuit breakers, and line-ups in which the next provider takes over.

A provider's breaker opens after failures and then lets single probes through. Nothing here has a clock: every instant
is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

from callagent.errors import ProviderError, ProviderRefused

T = TypeVar("T")

ON_PROVIDER_FAILURE: ContextVar[Callable[[str, str, str], None] | None] = ContextVar("provider_failure", default=None)
"""Called with role, provider and reason of each failure, in the context of the call that it happened to."""
MAX_FAILURES = 3
WITHIN_SECONDS = 30.0
"""`MAX_FAILURES` within this time open the breaker."""
PROBE_SECONDS = 10.0
"""Between two probes."""
ALARM_SECONDS = 300.0
"""Between two probes after a refused key: asking again changes nothing until somebody has changed the key."""
MAX_WAIT_SECONDS = 600.0
"""A provider that asks to be left alone for longer is probed after this time."""


class BreakerState(Enum):
    """Whether the provider may be asked, as in an electric circuit: closed means yes."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    """One call is asking, to find out whether the provider works again."""


class Change(Enum):
    """What has happened to a breaker."""

    TRIPPED = "tripped"
    PROBED = "probed"
    SUCCEEDED = "succeeded"


_TABLE = {
    (BreakerState.CLOSED, Change.TRIPPED): BreakerState.OPEN,
    (BreakerState.CLOSED, Change.SUCCEEDED): BreakerState.CLOSED,
    # A request from before the breaker opened was answered after all: that says nothing of the present.
    (BreakerState.OPEN, Change.SUCCEEDED): BreakerState.OPEN,
    (BreakerState.OPEN, Change.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, Change.PROBED): BreakerState.PROBING,
    (BreakerState.PROBING, Change.TRIPPED): BreakerState.OPEN,
    (BreakerState.PROBING, Change.SUCCEEDED): BreakerState.CLOSED,
    # A probe whose caller hung up tells nothing, so another one follows.
    (BreakerState.PROBING, Change.PROBED): BreakerState.PROBING,
}


class Breaker:
    """The breaker of one provider. `now` is in seconds of one clock."""

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.failures = 0
        """All failures since the start, for the metrics."""
        self.alarm = False
        """Whether the key was refused and nothing has worked since, so that somebody has to act."""
        self._recent: deque[float] = deque(maxlen=MAX_FAILURES)
        self._next_probe = 0.0

    def admit(self, now: float) -> bool:
        """Return whether the provider may be asked now; of an open breaker one call after each wait may, as a probe."""
        if self.state is BreakerState.CLOSED:
            return True
        if now < self._next_probe:
            return False
        self._next_probe = now + PROBE_SECONDS
        self._change(Change.PROBED)
        return True

    def succeed(self) -> None:
        """Note that the provider did its part."""
        # A success that was asked for before the breaker opened does not close it: only a probe's does.
        self.alarm = False
        if self.state is BreakerState.PROBING:
            self._recent.clear()
        self._change(Change.SUCCEEDED)

    def fail(self, error: ProviderError, now: float, *, trip: bool = False) -> None:
        """Note that the provider did not do its part. With `trip` this one failure opens the breaker."""
        self.failures += 1
        self.alarm = self.alarm or is_alarm(error)
        self._recent.append(now)
        # `maxlen` keeps the latest failures: the first of them is `MAX_FAILURES` back.
        wait = _wait_after(error)
        often = len(self._recent) == MAX_FAILURES and now - self._recent[0] <= WITHIN_SECONDS
        # While it is open, every failure puts the next probe off.
        if trip or often or wait is not None or self.state is not BreakerState.CLOSED:
            self._next_probe = now + (PROBE_SECONDS if wait is None else wait)
            self._change(Change.TRIPPED)

    def _change(self, change: Change) -> None:
        self.state = _TABLE[self.state, change]


def is_alarm(error: ProviderError) -> bool:
    """Return whether somebody has to act, because the key was refused."""
    return isinstance(error, ProviderRefused) and error.status in (401, 403)


def _wait_after(error: ProviderError) -> float | None:
    """Return the seconds for which this one answer is reason enough not to ask again; None: it is no such reason."""
    if is_alarm(error):
        return ALARM_SECONDS
    if isinstance(error, ProviderRefused) and error.retry_after is not None:
        return min(max(error.retry_after, 1.0), MAX_WAIT_SECONDS)
    return None


@dataclass(frozen=True, slots=True)
class Member(Generic[T]):
    """One provider of a line-up."""

    name: str
    provider: T
    embedded: bool = False
    """Whether it runs on this machine: as the last of its line-up it is waited for, since no other one is left."""
    breaker: Breaker = field(default_factory=Breaker)


class Lineup(Generic[T]):
    """Providers of one role, the preferred one first."""

    def __init__(self, role: str, members: Sequence[Member[T]]) -> None:
        self.role = role
        self.members = tuple(members)
        self.outages = 0
        """How often every member failed or could not be asked."""

    def fail(self, member: Member[T], error: ProviderError, now: float, *, trip: bool = False) -> None:
        """Note that a member did not do its part, for its breaker and for the call."""
        member.breaker.fail(error, now, trip=trip)
        if (told := ON_PROVIDER_FAILURE.get()) is not None:
            told(self.role, member.name, str(error))

    def may_ask(self, member: Member[T], now: float) -> bool:
        """Return whether a member may be asked now. An embedded one always may: it starts again by itself."""
        return member.embedded or member.breaker.admit(now)

    def is_patient(self, member: Member[T]) -> bool:
        """Return whether `member` gets all the time that it needs."""
        return member.embedded and member is self.members[-1]

    def admit(self, now: float, without: Container[int] = (), before: int | None = None) -> int | None:
        """Return the place of the first member that may be asked now; None: there is none.

        Only those before the place `before` count, and not those in `without`.
        """
        for place, member in enumerate(self.members[:before]):
            if place not in without and self.may_ask(member, now):
                return place
        return None
