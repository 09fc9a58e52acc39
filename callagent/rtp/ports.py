"""The UDP ports that media may use: even, taken at random, resting after use."""

from __future__ import annotations

import errno
import random
import socket
import time
from collections import deque
from collections.abc import Callable

EXPEDITED_FORWARDING = 0xB8
"""The DSCP of voice (RFC 3246) in the traffic class octet."""
_IN_USE = (errno.EADDRINUSE, errno.EACCES)


class PortsExhausted(Exception):
    """No media port is free; the caller is to be told 503."""


class RtpPorts:
    """Even ports from `first` to `last`; RTCP uses the odd one above. For one event loop."""

    def __init__(
        self,
        host: str,
        first: int,
        last: int,
        *,
        rest_seconds: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.host = host
        self._range = range(first, last + 2)
        self._held: set[int] = set()
        self._free = list(range(first + first % 2, last + 1, 2))
        if not self._free or not 0 < first <= last <= 65535:
            raise ValueError(f"'{first}-{last}' holds no even port")
        self._count = len(self._free)
        self._resting: deque[tuple[float, int]] = deque()
        self._rest_seconds = rest_seconds
        self._clock = clock
        self._random = random.SystemRandom()

    @property
    def free_share(self) -> float:
        """From 0.0 to 1.0; new calls are refused below 0.05."""
        self._wake_rested()
        return len(self._free) / self._count

    def covers(self, port: int) -> bool:
        """Whether media or RTCP of ours may be at this port."""
        return port in self._range

    def holds(self, port: int) -> bool:
        """Whether the media or the RTCP of a session of ours is at this port now."""
        return port - port % 2 in self._held

    def bind(self) -> socket.socket:
        """A bound non-blocking socket on a random free port. Raises `PortsExhausted`."""
        self._wake_rested()
        while self._free:
            # An attacker cannot tell the next call's port from the last one's.
            index = self._random.randrange(len(self._free))
            port = self._free[index]
            self._free[index] = self._free[-1]
            self._free.pop()
            try:
                opened = self._open(port)
            except OSError as error:
                self.release(port)
                if error.errno not in _IN_USE:
                    raise
            else:
                self._held.add(port)
                return opened
        raise PortsExhausted(f"none of {self._count} media ports is free")

    def bind_control(self, port: int) -> socket.socket | None:
        """The RTCP socket beside media port `port`; None when somebody else has it."""
        try:
            return self._open(port + 1)
        except OSError:
            return None

    def release(self, port: int) -> None:
        """The port's socket is closed; a late peer's packets must not reach the next call, so it rests."""
        self._held.discard(port)
        self._resting.append((self._clock() + self._rest_seconds, port))

    def _wake_rested(self) -> None:
        now = self._clock()
        while self._resting and self._resting[0][0] <= now:
            self._free.append(self._resting.popleft()[1])

    def _open(self, port: int) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        opened = socket.socket(family, socket.SOCK_DGRAM)
        try:
            opened.setblocking(False)
            if family == socket.AF_INET6:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, EXPEDITED_FORWARDING)
            else:
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, EXPEDITED_FORWARDING)
            opened.bind((self.host, port))
        except OSError:
            opened.close()
            raise
        return opened
