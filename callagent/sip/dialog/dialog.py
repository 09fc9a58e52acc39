"""Dialogs: the state that two user agents share, and the requests that follow from it (RFC 3261 §12)."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, replace

from callagent.sip.message import Address, CSeq, Headers, Hop, Request, Response, Uri, default_port, hop_of


@dataclass(slots=True)
class Dialog:
    """One dialog, from our side."""

    call_id: str
    local: Address
    """Our URI and tag: From of our requests."""
    remote: Address
    """The peer's URI and tag: To of our requests. A peer of RFC 2543 has no tag."""
    remote_target: Uri
    """The peer's Contact: the Request-URI of our requests."""
    peer: Hop
    """The address that the peer's last request, or first response, came from."""
    route_set: tuple[Address, ...] = ()
    local_cseq: int = 0
    remote_cseq: int | None = None
    local_contact: Address = field(default_factory=lambda: Address(Uri("sip")))
    resolved: dict[Uri, Hop] = field(default_factory=dict)
    """URI with a host name -> its server, which the endpoint enters when DNS has answered."""

    @classmethod
    def of_server(cls, request: Request, tag: str, peer: Hop, contact: Address) -> Dialog:
        """Return the dialog that our response to a request establishes (§12.1.1)."""
        return cls(
            call_id=request.call_id,
            local=request.recipient.with_tag(tag),
            remote=request.sender,
            remote_target=_target(request, request.sender.uri),
            peer=peer,
            route_set=tuple(_record_route(request)),
            local_cseq=0,
            remote_cseq=request.cseq.number,
            local_contact=contact,
        )

    @classmethod
    def of_client(cls, request: Request, response: Response, peer: Hop, contact: Address) -> Dialog:
        """Return the dialog that a response with a To tag to our request establishes (§12.1.2)."""
        return cls(
            call_id=request.call_id,
            local=request.sender,
            remote=response.recipient,
            remote_target=_target(response, request.uri),
            peer=peer,
            route_set=tuple(reversed(_record_route(response))),
            local_cseq=request.cseq.number,
            local_contact=contact,
        )

    @property
    def key(self) -> tuple[str, str, str]:
        """The dialog ID: Call-ID, our tag, the peer's tag."""
        return (self.call_id, self.local.tag or "", self.remote.tag or "")

    def request(self, method: str, cseq: int | None = None) -> Request:
        """Return a new request without Via. `cseq` is for an ACK, which has the number of its INVITE (§13.2.2.4)."""
        # Each request has the next number, even if an earlier one was never answered (§12.2.1.1).
        if cseq is None:
            self.local_cseq += 1
        uri, routes = self._route()
        headers = Headers([("Max-Forwards", "70")])
        for route in routes:
            headers.add("Route", str(route))
        headers.add("From", str(self.local))
        headers.add("To", str(self.remote))
        headers.add("Call-ID", self.call_id)
        headers.add("CSeq", str(CSeq(self.local_cseq if cseq is None else cseq, method)))
        if method not in ("ACK", "BYE"):
            headers.add("Contact", str(self.local_contact))
        return Request(headers, method=method, uri=uri)

    def next_hop(self) -> Hop:
        """Return the server that requests go to: that of the first route or else of the peer's Contact.

        If that URI's transport is not the peer's, or DNS has not resolved its host, requests go to the host that the
        peer sent from.
        """
        next_uri = self.next_uri()
        hop = hop_of(next_uri) or self.resolved.get(next_uri)
        if hop is None or hop.transport != self.peer.transport:
            return self.peer if not self.peer.reliable else replace(self.peer, port=_port_of(next_uri, self.peer))
        if hop.host == self.peer.host:
            return replace(hop, connection=self.peer.connection, name=self.peer.name)
        # A peer with a private Contact and packets from a public address is behind a NAT: only the public one works.
        behind_nat = not self.route_set and is_private(hop.host) and not is_private(self.peer.host)
        return self.peer if behind_nat else hop

    def next_uri(self) -> Uri:
        """Return the URI that determines the next hop (RFC 3261 §8.1.2)."""
        uri, routes = self._route()
        strict = bool(self.route_set) and not _is_loose(self.route_set[0])
        return routes[0].uri if routes and not strict else uri

    def unresolved_uri(self) -> Uri | None:
        """Return the URI of the next hop if it names a host that has to be looked up; default None."""
        uri = self.next_uri()
        return uri if hop_of(uri) is None and uri not in self.resolved and uri.host else None

    def is_in_order(self, request: Request) -> bool:
        """Remember the CSeq of a request of the peer; False if it is lower than an earlier one (§12.2.2)."""
        number = request.cseq.number
        if self.remote_cseq is not None and number < self.remote_cseq:
            return False
        self.remote_cseq = number
        return True

    def refresh_target(self, message: Request | Response) -> None:
        """Adopt the Contact of a target refresh request or its 2xx, such as INVITE and UPDATE (§12.2, RFC 3311)."""
        self.remote_target = _target(message, self.remote_target)

    def _route(self) -> tuple[Uri, list[Address]]:
        """Return the Request-URI and the Route. A strict router as first hop becomes the Request-URI (§12.2.1.1)."""
        if not self.route_set:
            return self.remote_target, []
        first, *rest = self.route_set
        if _is_loose(first):
            return self.remote_target, [first, *rest]
        return first.uri.without_headers(), [*rest, Address(self.remote_target)]


def asks_for_sips(request: Request) -> bool:
    """Return whether our Contact in the dialog of this request must be a sips URI (§12.1.1)."""
    routes = _record_route(request)
    nearest = routes[0].uri if routes else _target(request, request.uri)
    return "sips" in (request.uri.scheme, nearest.scheme)


def is_private(host: str) -> bool:
    return ipaddress.ip_address(host).is_private


def _port_of(uri: Uri, peer: Hop) -> int:
    return uri.port or default_port(peer.transport)


def _is_loose(route: Address) -> bool:
    return "lr" in route.uri.parameters


def _record_route(message: Request | Response) -> list[Address]:
    return [route for value in message.headers.values("Record-Route") for route in Address.parse_list(value)]


def _target(message: Request | Response, default: Uri) -> Uri:
    """Return the URI of the first Contact that requests can be sent to, or `default`."""
    contacts = [contact.uri for contact in message.contacts if contact.uri.scheme in ("sip", "sips")]
    return contacts[0].without_headers() if contacts else default
