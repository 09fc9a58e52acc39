"""Where messages go: the next hop of a URI, and of a response (RFC 3261 §8.1.2, §18.2.2)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from callagent.sip.message import Uri, Via


@dataclass(frozen=True, slots=True)
class Hop:
    """Where a message goes next, or came from."""

    host: str
    """An IP address, without brackets."""
    port: int
    transport: str = "udp"
    """`udp`, `tcp` or `tls`."""
    connection: int | None = None
    """The peer's port of an open connection; what goes there takes it while it lasts (RFC 5923)."""
    name: str = ""
    """The host name that led to the address; a certificate has to bear it."""
    tentative: bool = False
    """Whether a connection there is only tried: what cannot be sent over it soon goes by UDP."""

    @property
    def reliable(self) -> bool:
        return self.transport != "udp"


def response_hop(via: Via, source: Hop) -> Hop:
    """Where responses go (§18.2.2): over the connection of the request, or to the address it came from."""
    if source.reliable:
        return Hop(source.host, via.port or default_port(source.transport), source.transport, source.connection)
    return Hop(source.host, via.response_port(source.port))


def default_port(transport: str) -> int:
    return 5061 if transport == "tls" else 5060


def hop_of(uri: Uri) -> Hop | None:
    """The address a URI names; None where it names a host that somebody has to look up."""
    parameter = uri.parameters.get("maddr")
    host = parameter.strip("[]") if parameter else uri.bare_host
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return None
    transport = transport_of(uri)
    return Hop(host, uri.port or default_port(transport), transport)


def transport_of(uri: Uri) -> str:
    """What the URI asks for; UDP where it asks for nothing, TLS for sips (RFC 3261 §26.2.2)."""
    if uri.scheme == "sips":
        return "tls"
    return (uri.parameters.get("transport") or "udp").lower()
