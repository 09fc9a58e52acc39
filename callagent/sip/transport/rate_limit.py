"""Token buckets for hosts that have to prove themselves: what is too much is dropped before it is read."""

from __future__ import annotations

from collections import OrderedDict

_MAX_HOSTS = 10_000


class RateLimit:
    """`per_second` messages on the long run and `burst` at once, of each host."""

    def __init__(self, per_second: float, burst: float) -> None:
        self._per_second = per_second
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, host: str, now: float) -> bool:
        """Whether one more may pass."""
        tokens, at = self._buckets.pop(host, (self._burst, now))
        tokens = min(self._burst, tokens + (now - at) * self._per_second)
        allowed = tokens >= 1
        self._buckets[host] = (tokens - 1 if allowed else tokens, now)
        if len(self._buckets) > _MAX_HOSTS:
            self._buckets.popitem(last=False)
        return allowed
