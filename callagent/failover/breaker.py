"""Whether a provider may be asked: its breaker opens after failures and lets single probes through. No clock."""

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
"""Told of each failure with role, provider and reason, in the context of the call that it happened to."""
MAX_FAILURES = 3
WITHIN_SECONDS = 30.0
"""So many failures within so many seconds open the breaker."""
PROBE_SECONDS = 10.0
"""From one probe to the next."""
ALARM_SECONDS = 300.0
"""After a refused key: asking again changes nothing until somebody has changed the key."""
MAX_WAIT_SECONDS = 600.0
"""Whatever Retry-After says."""


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Change(Enum):
    TRIPPED = "tripped"
    PROBED = "probed"
    SUCCEEDED = "succeeded"


_TABLE = {
    (BreakerState.CLOSED, Change.TRIPPED): BreakerState.OPEN,
    (BreakerState.CLOSED, Change.SUCCEEDED): BreakerState.CLOSED,
    # Let in before the breaker opened, and answered after all.
    (BreakerState.OPEN, Change.SUCCEEDED): BreakerState.OPEN,
    (BreakerState.OPEN, Change.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, Change.PROBED): BreakerState.PROBING,
    (BreakerState.PROBING, Change.TRIPPED): BreakerState.OPEN,
    (BreakerState.PROBING, Change.SUCCEEDED): BreakerState.CLOSED,
    # A probe whose caller hung up tells nothing: another one follows.
    (BreakerState.PROBING, Change.PROBED): BreakerState.PROBING,
}


class Breaker:
    """One provider's. Every instant is an argument, in seconds of one clock."""

    def __init__(self) -> None:
        self.state = BreakerState.CLOSED
        self.failures = 0
        """All there were."""
        self.alarm = False
        """The key was refused and nothing has worked since: somebody has to act."""
        self._recent: deque[float] = deque(maxlen=MAX_FAILURES)
        self._next_probe = 0.0

    def admit(self, now: float) -> bool:
        """Whether the provider may be asked now; while the breaker is open, one caller after each wait probes it."""
        if self.state is BreakerState.CLOSED:
            return True
        if now < self._next_probe:
            return False
        self._next_probe = now + PROBE_SECONDS
        self._change(Change.PROBED)
        return True

    def succeed(self) -> None:
        """It did its part."""
        self.alarm = False
        if self.state is BreakerState.PROBING:
            self._recent.clear()
        self._change(Change.SUCCEEDED)

    def fail(self, error: ProviderError, now: float, *, trip: bool = False) -> None:
        """It did not; `trip`: once is enough."""
        self.failures += 1
        self.alarm = self.alarm or is_alarm(error)
        self._recent.append(now)
        wait = _wait_after(error)
        often = len(self._recent) == MAX_FAILURES and now - self._recent[0] <= WITHIN_SECONDS
        if trip or often or wait is not None or self.state is not BreakerState.CLOSED:
            self._next_probe = now + (PROBE_SECONDS if wait is None else wait)
            self._change(Change.TRIPPED)

    def _change(self, change: Change) -> None:
        self.state = _TABLE[self.state, change]


def is_alarm(error: ProviderError) -> bool:
    """Somebody has to act: the key is refused."""
    return isinstance(error, ProviderRefused) and error.status in (401, 403)


def _wait_after(error: ProviderError) -> float | None:
    """Seconds for which one answer is reason enough not to ask again; None: it is not."""
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
    """In this machine: as the last of its line-up it is waited for, since nobody else is left."""
    breaker: Breaker = field(default_factory=Breaker)


class Lineup(Generic[T]):
    """Providers of one role, the preferred one first."""

    def __init__(self, role: str, members: Sequence[Member[T]]) -> None:
        self.role = role
        self.members = tuple(members)
        self.outages = 0
        """How often nobody could do it."""

    def fail(self, member: Member[T], error: ProviderError, now: float, *, trip: bool = False) -> None:
        """The member did not do its part."""
        member.breaker.fail(error, now, trip=trip)
        if (told := ON_PROVIDER_FAILURE.get()) is not None:
            told(self.role, member.name, str(error))

    def may_ask(self, member: Member[T], now: float) -> bool:
        """An embedded provider may always be asked: it starts again by itself."""
        return member.embedded or member.breaker.admit(now)

    def is_patient(self, member: Member[T]) -> bool:
        """Whether `member` gets all the time it needs."""
        return member.embedded and member is self.members[-1]

    def admit(self, now: float, without: Container[int] = (), before: int | None = None) -> int | None:
        """The first member that may be asked now, of those in front of `before` and not in `without`."""
        for place, member in enumerate(self.members[:before]):
            if place not in without and self.may_ask(member, now):
                return place
        return None
