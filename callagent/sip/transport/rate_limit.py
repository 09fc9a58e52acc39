"""Rate limits by token buckets, one for each key: of messages per host, and of calls per trunk."""

from __future__ import annotations

from collections import OrderedDict

_MAX_BUCKETS = 10_000
"""The bucket that was used least recently is forgotten first."""


class RateLimit:
    """Allows `per_second` on average and `burst` at once for each key."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str, now: float) -> bool:
        """Take one token of the key's bucket; False if it is empty."""
        tokens, at = self._buckets.pop(key, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_second)
        allowed = tokens >= 1
        self._buckets[key] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > _MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return allowed
