"""Whose packets a media session takes and where it sends its own: the defence against RTP bleed and injection.

The SDP names an address. Packets from another IP are a stranger's, for ever. A NAT may change the port, so another port
of the same IP is latched, once, and only while the first packets arrive; the port that the SDP names wins over it.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import ip_address

LATCHING_PACKETS = 5

Address = tuple[str, int]


class _State(Enum):
    WAITING = "waiting"
    LATCHED = "latched"
    """On a port that the SDP does not name, for the first packets only."""
    LOCKED = "locked"


class Remote:
    """The peer's media address."""

    def __init__(self, address: Address) -> None:
        """Raises `ValueError` when the host is not an IP address: names are not looked up."""
        self.address = (str(ip_address(address[0])), address[1])
        """Where our packets go."""
        self._named = self.address
        self._state = _State.WAITING
        self._packets = 0

    def accept(self, source: Address) -> bool:
        """Whether a packet from `source` is the peer's; may change `address`."""
        if self._state is _State.LOCKED:
            return source == self.address
        if source[0] != self._named[0]:
            return False
        self._packets += 1
        if source == self._named:
            self.address = source
            self._state = _State.LOCKED
        elif self._state is _State.WAITING:
            self.address = source
            self._state = _State.LATCHED
        if self._packets >= LATCHING_PACKETS:
            self._state = _State.LOCKED
        return source == self.address

    def accept_host(self, source: Address) -> bool:
        """Whether `source` is the peer's machine; for RTCP, which comes from a port of its own."""
        return source[0] == self._named[0]
