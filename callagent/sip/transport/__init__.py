"""The transport layer: sockets, framing, TLS, name lookup (RFC 3261 §18, RFC 3263)."""

from callagent.sip.transport.connections import Connections, StreamLimits, accept_connections
from callagent.sip.transport.dns_lookup import Lookup, LookupFailed
from callagent.sip.transport.framing import MAX_STREAM_MESSAGE
from callagent.sip.transport.rate_limit import RateLimit
from callagent.sip.transport.tls import TlsContexts, TlsSettings, certificate_end
from callagent.sip.transport.trace import Trace, TracedMessage
from callagent.sip.transport.udp import Datagrams, route_to

__all__ = [
    "MAX_STREAM_MESSAGE",
    "Connections",
    "Datagrams",
    "Lookup",
    "LookupFailed",
    "RateLimit",
    "StreamLimits",
    "TlsContexts",
    "TlsSettings",
    "Trace",
    "TracedMessage",
    "accept_connections",
    "certificate_end",
    "route_to",
]
