"""What a trunk's media may be: codecs, encryption, and where our packets may be sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

LOWEST_PORT = 1024
_SITE_LOCAL = tuple(
    ip_network(each) for each in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7")
)
_LINK_LOCAL = tuple(ip_network(each) for each in ("169.254.0.0/16", "fe80::/10"))
_THIS_NETWORK = ip_network("0.0.0.0/8")


def _nowhere(host: str, port: int) -> bool:
    return False


class NotAcceptable(ValueError):
    """Nothing of what is offered can be used: 488."""


class Encryption(Enum):
    """Of media, by keys in the SDP."""

    OFF = "off"
    ALLOWED = "allowed"
    """Used where the peer offers it; offered so that a peer without it still answers (RFC 8643)."""
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class MediaPolicy:
    codecs: tuple[str, ...] = ("PCMU", "PCMA")
    """Of PCMU, PCMA, G722 and OPUS, as we offer them; an answer follows the peer's order."""
    encryption: Encryption = Encryption.OFF
    confidential: bool = False
    """Whether the signalling keeps keys secret: TLS, or both ends on this machine. Without it none are accepted."""

    @property
    def takes_keys(self) -> bool:
        return self.confidential and self.encryption is not Encryption.OFF

    @property
    def takes_plain(self) -> bool:
        return self.encryption is not Encryption.REQUIRED


def media_target(
    host: str,
    port: int,
    own: tuple[str, int],
    peer: str | None,
    *,
    loopback: bool,
    refuse: Callable[[str, int], bool] = _nowhere,
) -> tuple[str, int] | None:
    """Where packets for `host` and `port` of an SDP go; None for nowhere (RFC 3264 §8.4).

    A private address of a peer whose signalling comes from a public one is behind a translator: the translator's
    address stands for it. Raises `NotAcceptable` for a name, and for what would make us a weapon against others or
    ourselves: `refuse` knows which addresses and ports are our own.
    """
    try:
        address = _unmapped(ip_address(host))
    except ValueError:
        raise NotAcceptable("Media address is not an IP address") from None
    if address.is_unspecified:
        return None
    if peer is not None and _is_site_local(address):
        behind = _unmapped(ip_address(peer))
        if not (_is_site_local(behind) or behind.is_loopback):
            address = behind
    if not _is_allowed(address, loopback) or port < LOWEST_PORT or (str(address), port) == own:
        raise NotAcceptable("Media target is not allowed")
    if refuse(str(address), port):
        raise NotAcceptable("Media target is an address of this server")
    if address.version != _unmapped(ip_address(own[0])).version:
        raise NotAcceptable("Media address is of the other IP version")
    return (str(address), port)


def _is_allowed(address: IPv4Address | IPv6Address, loopback: bool) -> bool:
    if address.is_loopback:
        return loopback
    if address.is_multicast or any(address in network for network in _LINK_LOCAL):
        return False
    # 240.0.0.0/4 holds the broadcast address; of IPv6 almost everything counts as reserved.
    return not (isinstance(address, IPv4Address) and (address.is_reserved or address in _THIS_NETWORK))


def _is_site_local(address: IPv4Address | IPv6Address) -> bool:
    return any(address in network for network in _SITE_LOCAL)


def _unmapped(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped if mapped is not None else address
