"""Lookup of the servers of a SIP URI by the NAPTR, SRV and address records of DNS (RFC 3263)."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from callagent.sip.message import Hop, Uri, default_port, hop_of, transport_of

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver


TRANSPORTS = ("udp", "tcp", "tls")
MAX_HOPS = 8
"""Addresses that are tried for one URI."""
_MAX_SECONDS = 5.0
"""Time limit for all queries of one URI together."""
_MAX_QUERY_SECONDS = 2.0
"""Time limit for one query."""
_SERVICES = {"SIP+D2U": "udp", "SIP+D2T": "tcp", "SIPS+D2T": "tls"}
_SRV = {"udp": "_sip._udp", "tcp": "_sip._tcp", "tls": "_sips._tcp"}


class LookupFailed(OSError):
    """The host of a SIP URI has no address, or DNS did not answer in time."""


@dataclass(frozen=True, slots=True)
class _Server:
    host: str
    port: int
    transport: str


class Lookup:
    """DNS client for one address family; answers are cached for their TTL, and no lookup blocks the event loop."""

    def __init__(self, family: socket.AddressFamily, nameserver: tuple[str, int] | None = None) -> None:
        """`nameserver`: host and port of a name server to ask in place of the system's; for tests."""
        self._family = family
        self._nameserver = nameserver
        self._resolver: Resolver | None = None

    def prepare(self) -> None:
        """Load the resolver in advance. The first lookup reports an error."""
        import dns.exception

        with contextlib.suppress(dns.exception.DNSException, OSError):
            self._load_resolver()

    async def hops(self, uri: Uri) -> tuple[Hop, ...]:
        """Return the servers in the order to try them.

        Raises `LookupFailed`, and `ValueError` for a transport that is not in `TRANSPORTS`.
        """
        if transport_of(uri) not in TRANSPORTS:
            raise ValueError("Only the transports UDP, TCP and TLS are supported")
        hop = hop_of(uri)
        if hop is not None:
            return (hop,)
        # The queries have one limit together: a caller who is being transferred waits for all of them.
        try:
            async with asyncio.timeout(_MAX_SECONDS):
                hops = [each for server in await self._servers(uri) for each in await self._addresses(server, uri)]
        except TimeoutError:
            hops = []
        if not hops:
            raise LookupFailed(f"{uri.bare_host} has no address, or DNS did not answer in time")
        return tuple(hops[:MAX_HOPS])

    async def _servers(self, uri: Uri) -> list[_Server]:
        host, transport = uri.parameters.get("maddr") or uri.bare_host, transport_of(uri)
        fallback = [_Server(host, uri.port or default_port(transport), transport)]
        # No SRV query for a URI with a port (§4.2), nor for a name without a domain, which is local to this network.
        if uri.port is not None or "." not in host:
            return fallback
        # A URI that names its transport leaves no choice for NAPTR records (§4.1).
        names_transport = uri.scheme == "sips" or "transport" in uri.parameters
        names = [(f"{_SRV[transport]}.{host}", transport)] if names_transport else await self._services(host)
        for name, over in names:
            servers = await self._srv(name, over)
            if servers:
                return servers
        return fallback

    async def _services(self, host: str) -> list[tuple[str, str]]:
        """Return the SRV names in the order that NAPTR records give, or else UDP before TCP (§4.1)."""
        records = sorted(await self._query(host, "NAPTR"), key=lambda record: (record.order, record.preference))
        named = []
        for record in records:
            transport = _SERVICES.get(record.service.decode("ascii", "replace").upper())
            if transport is not None and record.flags.lower() == b"s":
                named.append((record.replacement.to_text(omit_final_dot=True), transport))
        return named or [(f"{_SRV[transport]}.{host}", transport) for transport in ("udp", "tcp")]

    async def _srv(self, name: str, transport: str) -> list[_Server]:
        """Return the servers of SRV records by priority; those of equal priority are shuffled by weight (RFC 2782)."""
        records = await self._query(name, "SRV")
        # Each record draws an exponentially distributed number with its weight as the rate. The probability that its
        # number is the smallest is then its share of all weights.
        ordered = sorted(records, key=lambda one: (one.priority, random.expovariate(max(one.weight, 0.01))))
        servers = [_Server(one.target.to_text(omit_final_dot=True), one.port, transport) for one in ordered]
        # The target "." says that the service is not offered at this domain (RFC 2782).
        return [server for server in servers if server.host and server.host != "."]

    async def _addresses(self, server: _Server, uri: Uri) -> list[Hop]:
        addresses = await self.addresses_of(server.host, server.port)
        if not addresses and self._nameserver is not None:
            kind = "AAAA" if self._family == socket.AF_INET6 else "A"
            addresses = [record.address for record in await self._query(server.host, kind)]
        # TLS checks the certificate for the host of the URI, and not for the server that DNS named: an answer of DNS
        # may be forged (RFC 5922).
        hop = Hop("", server.port, server.transport, name=uri.bare_host)
        return [replace(hop, host=address) for address in dict.fromkeys(addresses)]

    async def addresses_of(self, host: str, port: int) -> list[str]:
        """Return the addresses that the system resolver finds, including the hosts file."""
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, family=self._family, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return [str(entry[4][0]) for entry in found]

    async def _query(self, name: str, kind: str) -> list[Any]:
        import dns.exception
        import dns.resolver

        try:
            resolver = self._load_resolver()
            answer = await resolver.resolve(name, kind, lifetime=_MAX_QUERY_SECONDS)
        except (dns.exception.DNSException, OSError):
            # No such record, or no answer: the caller goes on to the next kind of record.
            return []
        return list(answer)

    def _load_resolver(self) -> Resolver:
        if self._resolver is None:
            import dns.asyncresolver
            import dns.resolver

            self._resolver = dns.asyncresolver.Resolver(configure=self._nameserver is None)
            self._resolver.cache = dns.resolver.LRUCache(1000)
            if self._nameserver is not None:
                self._resolver.nameservers = [self._nameserver[0]]
                self._resolver.port = self._nameserver[1]
        return self._resolver
