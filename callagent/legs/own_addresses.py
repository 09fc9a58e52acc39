"""Which media addresses of a session description are this server's own, and never a target of its packets."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_address

from callagent.rtp import RtpPorts
from callagent.sip import route_to


def is_of_this_machine(host: str) -> bool:
    """Whether an IP address is one of this machine's: packets to it would leave from that address itself."""
    return ip_address(host).is_loopback or route_to(host) == host


class OwnAddresses:
    """A peer that names one of them would have us send audio to ourselves, or to other programs of this machine.

    A peer on this machine (a softphone, a PBX) has its media here as well: of our own addresses only the ports that we
    hold are refused to it. `public_address` may be a translator's and others may be behind it too: only our ports there
    are ours. To all other peers every address of this machine is refused.
    """

    def __init__(self, ports: RtpPorts, is_local: Callable[[str], bool] = is_of_this_machine) -> None:
        self.signalling_ports: set[int] = set()
        self.public_address: str | None = None
        self._ports = ports
        self._is_local = is_local

    def refuse(self, host: str, port: int, peer: str | None) -> bool:
        """Whether media may not go there. `peer` is the IP address of the peer's signalling."""
        if self._is_local(host):
            on_this_machine = peer is not None and (peer == self.public_address or self._is_local(peer))
            return not on_this_machine or port in self.signalling_ports or self._ports.holds(port)
        return host == self.public_address and (port in self.signalling_ports or self._ports.covers(port))
