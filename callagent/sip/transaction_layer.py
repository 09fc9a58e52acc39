"""The transaction layer: all transactions, and which of them a message belongs to (RFC 3261 §17.1.3, §17.2.3)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

from callagent.sip import transaction_machines as machines
from callagent.sip.message import CSeq, Headers, Hop, Request, Response, Via, response_hop

MAX_TRANSACTIONS = 20_000
"""Over UDP each transaction is kept for 32 s, so this is the load of some 600 requests a second."""
TCP_MEMORY_SECONDS = 600.0
"""How long we remember whether a peer accepts large requests by TCP."""
TCP_TRIAL_SECONDS = 5.0
"""How long a request that is sent by TCP for its size waits for a response before it is sent by UDP."""
_MAX_TCP_PEERS = 1024
MAX_REPEATABLE = 500
"""Completed transactions that are kept although a repeated request could be served anew, with the same response."""

Key = tuple[str, ...]
OnResponse = Callable[[Response | None, float], None]
"""Called with each response for the user of the transaction, and with None if none arrives in time."""


class ClientTransaction(machines.Transaction):
    """A request that we send, and its responses."""

    __slots__ = ("_fallback", "_fallback_timer", "_layer", "hop", "key", "on_response")

    def __init__(
        self,
        layer: TransactionLayer,
        request: Request,
        hop: Hop,
        on_response: OnResponse,
        fallback: tuple[Hop, Via] | None = None,
    ) -> None:
        """`fallback` is the hop, with its Via, that is used if no connection to `hop` can be made."""
        table = machines.INVITE_CLIENT if request.method == "INVITE" else machines.CLIENT
        super().__init__(table, request, layer.settings, layer.timers)
        self._layer = layer
        self.key: Key = (request.via.branch or "", request.method)
        self.hop = hop
        self._fallback = fallback
        self._fallback_timer: machines.Timer | None = None
        self.on_response = on_response
        self.reliable = hop.reliable

    def start(self, now: float) -> None:
        super().start(now)
        if self._fallback is not None:
            self._fallback_timer = self._layer.timers.at(now + TCP_TRIAL_SECONDS, self._end_fallback_wait)

    def drop_fallback(self) -> None:
        """Stay with the transport of `hop`: it has carried a response, or the transaction has ended."""
        self._fallback = None
        if self._fallback_timer is not None:
            self._fallback_timer.cancel()
            self._fallback_timer = None

    def _end_fallback_wait(self, now: float) -> None:
        self.fall_back(now)

    def fall_back(self, now: float) -> bool:
        """Send the request by UDP because its connection failed (§18.1.1); False if there is no fallback left.

        The branch stays the same, so that a peer that did read the request recognises the retransmission.
        """
        if self._fallback is None or self.state not in (machines.State.CALLING, machines.State.TRYING):
            return False
        self._layer.remember_tcp(self.hop, now, accepted=False)
        self.hop, via = self._fallback
        self.drop_fallback()
        self.request.replace_top_via(via)
        self.reliable = False
        self._layer.send(bytes(self.request), self.hop)
        self.start(now)
        return True

    def carry_out(self, effect: machines.Effect, message: Request | Response | None, now: float) -> None:
        if effect is machines.Effect.SEND:
            self._layer.send(bytes(self.request), self.hop)
        elif effect is machines.Effect.ACK and isinstance(message, Response):
            self._layer.send(bytes(acknowledge(self.request, message)), self.hop)
        elif effect is machines.Effect.PASS and isinstance(message, Response):
            self.on_response(message, now)
        elif effect is machines.Effect.TIMEOUT:
            self.on_response(None, now)

    def release(self) -> None:
        self.drop_fallback()
        self._layer.forget_client(self)


class ServerTransaction(machines.Transaction):
    """A request that a peer sends, and our responses."""

    __slots__ = ("_layer", "hop", "key", "merge", "on_cancel", "source")

    def __init__(self, layer: TransactionLayer, request: Request, source: Hop, key: Key) -> None:
        table = machines.INVITE_SERVER if request.method == "INVITE" else machines.SERVER
        super().__init__(table, request, layer.settings, layer.timers)
        self._layer = layer
        self.key = key
        self.merge = merge_key(request)
        self.source = source
        self.hop = response_hop(request.via, source)
        """Where the responses go."""
        self.on_cancel: Callable[[Request, float], None] | None = None
        """Called with a CANCEL of this INVITE; None once a CANCEL has no effect any more."""
        self.reliable = source.reliable

    def carry_out(self, effect: machines.Effect, message: Request | Response | None, now: float) -> None:
        # The octets of the last response are sent, because a retransmission must be identical (§17.2.1).
        if effect is machines.Effect.SEND and self.sent:
            self._layer.send(self.sent, self.hop)
        if self.answered and self.repeatable:
            self._layer.keep_repeatable(self)

    def release(self) -> None:
        self._layer.forget_server(self)


class TransactionLayer:
    """All transactions of one user agent."""

    def __init__(
        self, settings: machines.TimerSettings, timers: machines.Timers, send: Callable[[bytes, Hop], None]
    ) -> None:
        self.settings = settings
        self.timers = timers
        self.send = send
        self._clients: dict[Key, ClientTransaction] = {}
        self._servers: dict[Key, ServerTransaction] = {}
        self._originals: dict[Key, Key] = {}
        """The transaction of the first request with each `merge_key`."""
        self._repeatable: OrderedDict[Key, ServerTransaction] = OrderedDict()
        self._tcp: OrderedDict[tuple[str, int], tuple[bool, float]] = OrderedDict()
        self.pending_hosts: Counter[str] = Counter()
        """How many of our requests wait for a final response or its retransmissions, per host."""

    def __len__(self) -> int:
        return len(self._clients) + len(self._servers)

    @property
    def is_full(self) -> bool:
        """Whether new requests are to be dropped."""
        return len(self) >= MAX_TRANSACTIONS

    # Sending requests

    def request(
        self,
        request: Request,
        hop: Hop,
        on_response: OnResponse,
        now: float,
        fallback: tuple[Hop, Via] | None = None,
    ) -> ClientTransaction:
        """Send a request whose topmost Via is ours, with retransmissions as its machine requires."""
        transaction = ClientTransaction(self, request, hop, on_response, fallback)
        self._clients[transaction.key] = transaction
        self.pending_hosts[hop.host] += 1
        # Stored before it is sent: if the connection fails at once, `fail_connection` has to find it.
        self.send(bytes(request), hop)
        transaction.start(now)
        return transaction

    def fail_connection(self, hop: Hop, now: float) -> None:
        """End the transactions over a connection that could not be made, or ended; those with a fallback use it."""
        # A copy, because transactions that end are removed from the dictionary.
        for transaction in list(self._clients.values()):
            own = transaction.hop
            same = own.transport == hop.transport and own.host == hop.host and hop.port in (own.port, own.connection)
            if same and not transaction.fall_back(now):
                transaction.apply(machines.Input.TRANSPORT_ERROR, None, now)

    def accepts_tcp(self, hop: Hop, now: float) -> bool | None:
        """Whether the peer accepts TCP connections at its UDP port; None: not known."""
        remembered = self._tcp.get((hop.host, hop.port))
        return None if remembered is None or now >= remembered[1] else remembered[0]

    def remember_tcp(self, hop: Hop, now: float, *, accepted: bool) -> None:
        self._tcp[hop.host, hop.port] = (accepted, now + TCP_MEMORY_SECONDS)
        self._tcp.move_to_end((hop.host, hop.port))
        if len(self._tcp) > _MAX_TCP_PEERS:
            self._tcp.popitem(last=False)

    def receive_response(self, response: Response, now: float) -> bool:
        """Pass a response to its transaction (§17.1.3); False if there is none."""
        key = (response.via.branch or "", response.cseq.method)
        transaction = self._clients.get(key)
        if transaction is None:
            return False
        # The response to a request by TCP has arrived, so the peer does accept large requests by TCP.
        if transaction.hop.tentative:
            self.remember_tcp(transaction.hop, now, accepted=True)
            transaction.drop_fallback()
        transaction.apply(machines.input_of(response), response, now)
        return True

    # Receiving requests

    def receive_request(self, request: Request, source: Hop, now: float) -> ServerTransaction | None:
        """Return the transaction of a new request other than ACK; None for a retransmission, which is handled here."""
        key = server_key(request)
        known = self._servers.get(key)
        if known is not None:
            known.apply(machines.Input.REQUEST, request, now)
            return None
        transaction = ServerTransaction(self, request, source, key)
        self._servers[key] = transaction
        # Later requests with the same key are copies that a fork upstream made of this one.
        self._originals.setdefault(transaction.merge, key)
        transaction.start(now)
        return transaction

    def knows(self, request: Request) -> bool:
        """Whether the request is a retransmission, or the CANCEL of a known INVITE."""
        return server_key(request) in self._servers or self.invite_of(request) is not None

    def expects(self, request: Request) -> bool:
        """Whether the request is a retransmission, or the CANCEL or ACK of a known INVITE."""
        return self.knows(request) or server_key(request, "INVITE") in self._servers

    def receive_ack(self, ack: Request, now: float) -> bool:
        """Pass the ACK of a refusal to its INVITE transaction; False for the ACK of a 2xx, which the call handles."""
        transaction = self._servers.get(server_key(ack, "INVITE"))
        if transaction is None or transaction.state is machines.State.ACCEPTED:
            return False
        transaction.apply(machines.Input.ACK, ack, now)
        return True

    def invite_of(self, cancel: Request) -> ServerTransaction | None:
        """Return the INVITE transaction that a CANCEL is for (§9.2)."""
        return self._servers.get(server_key(cancel, "INVITE"))

    def is_merged(self, request: Request) -> bool:
        """Whether a fork upstream made the request arrive a second time over another path (§8.2.2.2)."""
        known = self._originals.get(merge_key(request))
        return known is not None and known != server_key(request) and known in self._servers

    # From the transactions

    def keep_repeatable(self, transaction: ServerTransaction) -> None:
        """Count a transaction that is kept only for retransmissions; beyond `MAX_REPEATABLE` the oldest ends."""
        self._repeatable[transaction.key] = transaction
        if len(self._repeatable) > MAX_REPEATABLE:
            self._repeatable.popitem(last=False)[1].forget()

    def forget_client(self, transaction: ClientTransaction) -> None:
        if self._clients.pop(transaction.key, None) is None:
            return
        host = transaction.hop.host
        self.pending_hosts[host] -= 1
        if not self.pending_hosts[host]:
            del self.pending_hosts[host]

    def forget_server(self, transaction: ServerTransaction) -> None:
        key, merge = transaction.key, transaction.merge
        self._servers.pop(key, None)
        self._repeatable.pop(key, None)
        if self._originals.get(merge) == key:
            del self._originals[merge]


def server_key(request: Request, method: str | None = None) -> Key:
    """Return the key of the transaction of a request (§17.2.3): the branch, or more fields for an RFC 2543 peer.

    The key includes the CSeq number, though §17.2.3 does not require it: it is the same in a request,
    its CANCEL and its ACK, and tells apart the requests of a peer that uses one branch for all of them.
    """
    via, number = request.via, str(request.cseq.number)
    method = method or request.method
    if via.has_unique_branch:
        return (via.branch or "", via.sent_by, number, method)
    sender = request.sender.tag or ""
    return (str(request.uri), sender, request.call_id, number, str(via), method)


def merge_key(request: Request) -> Key:
    """Return the key that is equal in the copies that a fork made of one request (§8.2.2.2)."""
    return (request.sender.tag or "", request.call_id, str(request.cseq))


def acknowledge(invite: Request, response: Response) -> Request:
    """Return the ACK of a final response other than 2xx, which is part of the INVITE's transaction (§17.1.1.3)."""
    headers = Headers([("Via", str(invite.via)), ("Max-Forwards", "70")])
    for name in ("From", "Call-ID", "Route"):
        for value in invite.headers.values(name):
            headers.add(name, value)
    # The To of the response, with the tag that the peer has added.
    headers.add("To", response.headers.get("To") or "")
    headers.add("CSeq", str(CSeq(invite.cseq.number, "ACK")))
    return Request(headers, method="ACK", uri=invite.uri)
