"""How many calls one telephone number may make. No I/O; instants are arguments, in seconds of one clock."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Container

from callagent.call_info import CallInfo
from callagent.phone_numbers import caller_key

MAX_CALLERS = 10_000
"""Numbers that are remembered, each for a minute; beyond, the one that has not called for longest is forgotten."""
MINUTE = 60.0


class CallerLimits:
    """Calls at once, and per minute, of each caller. Callers without a telephone number are not counted."""

    def __init__(self, at_once: int, per_minute: int, shared: Container[str] = ()) -> None:
        """`shared`: trunks of which many callers have one number."""
        self._at_once = at_once
        self._per_minute = per_minute
        self._shared = shared
        self._live: Counter[str] = Counter()
        self._recent: OrderedDict[str, tuple[float, ...]] = OrderedDict()
        """When each number's newest calls began, that of the longest silence first."""

    def admit(self, info: CallInfo, now: float) -> str | None:
        """Count a call that comes in; or the limit that it is over, as the settings name it."""
        if (over := self.over_at_once(info)) is not None:
            return over
        caller = self._number(info)
        if caller is None:
            return None
        self._forget(now - MINUTE)
        times = self._recent.pop(caller, ())
        exceeded = len(times) == self._per_minute and now - times[0] < MINUTE
        self._recent[caller] = times if exceeded else (*times, now)[-self._per_minute :]
        return "caller_calls_per_minute" if exceeded else None

    def _forget(self, before: float) -> None:
        """Numbers that have not called since, and those beyond the bound."""
        while self._recent:
            newest = next(iter(self._recent.values()))[-1]
            if newest > before and len(self._recent) < MAX_CALLERS:
                return
            self._recent.popitem(last=False)

    def over_at_once(self, info: CallInfo) -> str | None:
        """The limit that one more call of this caller would be over; None: it fits."""
        caller = self._number(info)
        return "caller_calls" if caller is not None and self._live[caller] >= self._at_once else None

    def began(self, info: CallInfo) -> None:
        if (caller := self._number(info)) is not None:
            self._live[caller] += 1

    def ended(self, info: CallInfo) -> None:
        if (caller := self._number(info)) is not None:
            self._live[caller] -= 1
            if self._live[caller] <= 0:
                del self._live[caller]

    def _number(self, info: CallInfo) -> str | None:
        if info.direction != "inbound" or info.trunk in self._shared:
            return None
        return None if info.caller is None else caller_key(info.caller)
