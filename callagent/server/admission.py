"""Whether one more call is taken: how many fit, how many one telephone number may make, and free file descriptors."""

from __future__ import annotations

import asyncio
import os
import resource
from collections import Counter, OrderedDict
from collections.abc import Callable, Container
from typing import Final

from callagent.call_info import CallInfo
from callagent.config import Config
from callagent.log import get_logger
from callagent.phone_numbers import caller_key
from callagent.sip import RateLimit

MAX_CALLERS: Final = 10_000
"""Numbers that are remembered, each for a minute; beyond, the one that has not called for longest is forgotten."""
MINUTE: Final = 60.0
SECONDS_BETWEEN_LINES: Final = 10.0
"""Shortest time between two log lines about the same limit; the metrics count each call that it keeps out."""

log = get_logger(__name__)


class CallerLimits:
    """Calls at once, and per minute, of each caller. Callers without a telephone number are not counted.

    No I/O and no clock: times are arguments, in seconds.
    """

    def __init__(self, at_once: int, per_minute: int, shared: Container[str] = ()) -> None:
        """`shared`: names of trunks on which many callers have the same number."""
        self._at_once = at_once
        self._per_minute = per_minute
        self._shared = shared
        self._live: Counter[str] = Counter()
        self._recent: OrderedDict[str, tuple[float, ...]] = OrderedDict()
        """When each number's newest calls began. The number whose latest call is the oldest comes first."""

    def admit(self, info: CallInfo, now: float) -> str | None:
        """Count an incoming call and return None, or return the name of the setting whose limit it exceeds."""
        if (over := self.over_at_once(info)) is not None:
            return over
        caller = self._number(info)
        if caller is None:
            return None
        self._forget(now - MINUTE)
        times = self._recent.pop(caller, ())
        exceeded = len(times) == self._per_minute and now - times[0] < MINUTE
        # A refused call is not counted: a caller who keeps trying gets through as soon as one who waits.
        self._recent[caller] = times if exceeded else (*times, now)[-self._per_minute :]
        return "caller_calls_per_minute" if exceeded else None

    def _forget(self, before: float) -> None:
        """Forget numbers whose last call began before `before`, and those beyond `MAX_CALLERS`."""
        while self._recent:
            newest = next(iter(self._recent.values()))[-1]
            if newest > before and len(self._recent) < MAX_CALLERS:
                return
            self._recent.popitem(last=False)

    def over_at_once(self, info: CallInfo) -> str | None:
        """Return the limit that one more call of this caller would be over; None if it fits."""
        caller = self._number(info)
        return "caller_calls" if caller is not None and self._live[caller] >= self._at_once else None

    def add_call(self, info: CallInfo) -> None:
        if (caller := self._number(info)) is not None:
            self._live[caller] += 1

    def remove_call(self, info: CallInfo) -> None:
        if (caller := self._number(info)) is not None:
            self._live[caller] -= 1
            if self._live[caller] <= 0:
                del self._live[caller]

    def _number(self, info: CallInfo) -> str | None:
        if info.direction != "inbound" or info.trunk in self._shared:
            return None
        return None if info.caller is None else caller_key(info.caller)


class Admission:
    """Takes or refuses calls for a server. Refusals are counted by `on_reached`, and logged now and then."""

    def __init__(self, config: Config, on_reached: Callable[[str], None]) -> None:
        limits, shared = config.limits, {trunk.name for trunk in config.sip.trunks if trunk.shared_caller}
        self.callers = CallerLimits(limits.caller_calls, limits.caller_calls_per_minute, shared)
        self.draining = False
        """Whether the server stops: running calls may finish, no new ones are taken."""
        self._max_calls = limits.calls
        self._on_reached = on_reached
        self._lines = RateLimit(1 / SECONDS_BETWEEN_LINES, 1)

    def has_room(self, calls: int) -> bool:
        """Return whether one more call fits beside `calls` others."""
        # This runs for each call and each probe of a peer, so it is cheap: nothing is counted, few lines are logged.
        if self.draining:
            return False
        if calls >= self._max_calls:
            if self._may_log("calls"):
                log.warning("limit_reached", limit="calls", calls=calls)
            return False
        if not has_free_descriptors():
            if self._may_log("file_descriptors"):
                log.warning("no_free_file_descriptors", calls=calls)
            return False
        return True

    def accepts(self, info: CallInfo) -> bool:
        """Count an incoming call by its caller's number; return whether that number may make one more."""
        return self.report_limit(self.callers.admit(info, _now()), caller=info.caller)

    def may_begin(self, info: CallInfo) -> bool:
        """Return whether a call that was accepted earlier still fits beside the other calls of its caller."""
        return self.report_limit(self.callers.over_at_once(info), caller=info.caller)

    def report_limit(self, limit: str | None, **who: str | None) -> bool:
        """Count and log the limit that was reached and return False; None: return True."""
        if limit is None:
            return True
        self._on_reached(limit)
        if self._may_log(limit):
            log.warning("limit_reached", limit=limit, **who)
        return False

    def _may_log(self, limit: str) -> bool:
        return self._lines.take(limit, _now())


def _now() -> float:
    return asyncio.get_running_loop().time()


# File descriptors -----------------------------------------------------------------------------------------------------

CALL_DESCRIPTORS: Final = 12
"""File descriptors of a call: RTP and RTCP, a worker's socket, pidfd and output, a recording, a web socket, a bridge,
connections to providers."""
SERVER_DESCRIPTORS: Final = 256
"""File descriptors of the server itself: listeners, the store, zygotes, connections to providers, dashboard pages."""
FREE_DESCRIPTORS: Final = 2 * CALL_DESCRIPTORS
"""File descriptors that have to be free for a call to be taken. More than those of one call: others that have begun
just now have not opened theirs yet."""


def raise_descriptor_limit(calls: int) -> int:
    """Raise the soft limit to what `calls` at a time need; return how many fit under the hard limit, at least one."""
    needed = SERVER_DESCRIPTORS + FREE_DESCRIPTORS + CALL_DESCRIPTORS * calls
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return calls
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return max(1, min(calls, (allowed - SERVER_DESCRIPTORS - FREE_DESCRIPTORS) // CALL_DESCRIPTORS))


def has_free_descriptors() -> bool:
    """Return whether `FREE_DESCRIPTORS` descriptors are free now; it takes some microseconds."""
    # Taking them is the cheapest way to know: the kernel has no count of the free ones, and /proc lists each open one.
    opened: list[int] = []
    try:
        opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(opened) < FREE_DESCRIPTORS:
            opened.append(os.dup(opened[0]))
    except OSError:
        return False
    finally:
        for descriptor in opened:
            os.close(descriptor)
    return True
