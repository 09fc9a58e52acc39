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
FAILURE_WINDOW_SECONDS = 30.0
"""`MAX_FAILURES` failures within this time open the breaker."""
PROBE_SECONDS = 10.0
"""Wait before each probe of an open breaker."""
ALARM_SECONDS = 300.0
"""Wait before a probe after the provider refused the key: no request succeeds until somebody has changed the key."""
MAX_WAIT_SECONDS = 600.0
"""The longest wait that a provider may ask for (Retry-After)."""


class BreakerState(Enum):
    """Whether the provider may be asked, as in an electric circuit: closed means yes."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"
    """One call is asking, to find out whether the provider works again."""


class BreakerEvent(Enum):
    """Events that change the state of a breaker."""

    TRIPPED = "tripped"
    PROBED = "probed"
    SUCCEEDED = "succeeded"


_TRANSITIONS = {
    (BreakerState.CLOSED, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.CLOSED, BreakerEvent.SUCCEEDED): BreakerState.CLOSED,
    # The answer to a request from before the breaker opened does not show that the provider works now.
    (BreakerState.OPEN, BreakerEvent.SUCCEEDED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.OPEN, BreakerEvent.PROBED): BreakerState.PROBING,
    (BreakerState.PROBING, BreakerEvent.TRIPPED): BreakerState.OPEN,
    (BreakerState.PROBING, BreakerEvent.SUCCEEDED): BreakerState.CLOSED,
    # A probe whose caller hung up has no result, so another one follows.
    (BreakerState.PROBING, BreakerEvent.PROBED): BreakerState.PROBING,
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
        """Return whether the provider may be asked now. An open breaker admits one call after each wait, as a probe."""
        if self.state is BreakerState.CLOSED:
            return True
        if now < self._next_probe:
            return False
        self._next_probe = now + PROBE_SECONDS
        self._apply(BreakerEvent.PROBED)
        return True

    def succeed(self) -> None:
        """Note that the provider did its part."""
        # The answer to a request from before the breaker opened does not close it: only that of a probe does.
        self.alarm = False
        if self.state is BreakerState.PROBING:
            self._recent.clear()
        self._apply(BreakerEvent.SUCCEEDED)

    def fail(self, error: ProviderError, now: float, *, trip: bool = False) -> None:
        """Note that the provider did not do its part. With `trip` this one failure opens the breaker."""
        self.failures += 1
        self.alarm = self.alarm or is_alarm(error)
        self._recent.append(now)
        wait = _wait_after(error)
        # The deque holds the last `MAX_FAILURES` failures, so its first item is the oldest of them.
        too_often = len(self._recent) == MAX_FAILURES and now - self._recent[0] <= FAILURE_WINDOW_SECONDS
        # While the breaker is open, every failure postpones the next probe.
        if trip or too_often or wait is not None or self.state is not BreakerState.CLOSED:
            self._next_probe = now + (PROBE_SECONDS if wait is None else wait)
            self._apply(BreakerEvent.TRIPPED)

    def _apply(self, event: BreakerEvent) -> None:
        self.state = _TRANSITIONS[self.state, event]


def is_alarm(error: ProviderError) -> bool:
    """Return whether the provider refused the key, so that somebody has to act."""
    return isinstance(error, ProviderRefused) and error.status in (401, 403)


def _wait_after(error: ProviderError) -> float | None:
    """Return the seconds to wait before the next probe if this error alone opens the breaker, else None."""
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
        if (report := ON_PROVIDER_FAILURE.get()) is not None:
            report(self.role, member.name, str(error))

    def may_ask(self, member: Member[T], now: float) -> bool:
        """Return whether a member may be asked now. An embedded one always may: it starts again by itself."""
        return member.embedded or member.breaker.admit(now)

    def is_patient(self, member: Member[T]) -> bool:
        """Return whether `member` may take any time to answer: it is embedded, and no other member follows."""
        return member.embedded and member is self.members[-1]

    def admit(self, now: float, without: Container[int] = (), before: int | None = None) -> int | None:
        """Return the index of the first member that may be asked now; None: there is none.

        Only members before the index `before` are considered, and none whose index is in `without`.
        """
        for place, member in enumerate(self.members[:before]):
            if place not in without and self.may_ask(member, now):
                return place
        return None
