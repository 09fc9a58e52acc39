"""Finds the transaction a message belongs to, and keeps all of them (RFC 3261 §17.1.3, §17.2.3)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from callagent.sip.message import CSeq, Headers, Request, Response
from callagent.sip.timers import Timers, TimerSettings
from callagent.sip.transactions import (
    CLIENT,
    INVITE_CLIENT,
    INVITE_SERVER,
    SERVER,
    Effect,
    Input,
    State,
    Transaction,
    input_of,
)
from callagent.sip.via import Via

MAX_TRANSACTIONS = 20_000
MAX_REPEATABLE = 500
"""Transactions that are only kept to repeat an answer which a repeated request would get anyway."""

Key = tuple[str, ...]
OnResponse = Callable[[Response | None, float], None]
"""Called with each response that concerns the user; None when nobody answered in time."""


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

    @property
    def reliable(self) -> bool:
        return self.transport != "udp"


class ClientTransaction(Transaction):
    __slots__ = ("hop", "on_response")

    hop: Hop
    on_response: OnResponse


class ServerTransaction(Transaction):
    __slots__ = ("hop", "on_cancel", "source")

    hop: Hop
    """Where its responses go."""
    source: Hop
    on_cancel: Callable[[Request, float], None] | None
    """There as long as a CANCEL of this INVITE has an effect."""


class TransactionLayer:
    def __init__(self, settings: TimerSettings, timers: Timers, send: Callable[[bytes, Hop], None]) -> None:
        self.settings = settings
        self._timers = timers
        self._send = send
        self._clients: dict[Key, ClientTransaction] = {}
        self._servers: dict[Key, ServerTransaction] = {}
        self._merge: dict[Key, Key] = {}
        self._repeatable: OrderedDict[Key, ServerTransaction] = OrderedDict()
        self.partners: Counter[str] = Counter()
        """Hosts that owe us an answer, and how many."""

    def __len__(self) -> int:
        return len(self._clients) + len(self._servers)

    @property
    def full(self) -> bool:
        return len(self) >= MAX_TRANSACTIONS

    # Sending requests

    def request(self, request: Request, hop: Hop, on_response: OnResponse, now: float) -> ClientTransaction:
        """Send a request whose topmost Via is ours, and repeat it as its machine says."""
        table = INVITE_CLIENT if request.method == "INVITE" else CLIENT
        transaction = ClientTransaction(table, request, self.settings, self._timers)
        transaction.hop, transaction.on_response, transaction.reliable = hop, on_response, hop.reliable
        key = (request.via.branch or "", request.method)
        transaction.on_effect = lambda effect, message, at: self._client_effect(key, effect, message, at)
        transaction.on_terminated = lambda: self._forget_client(key)
        self._clients[key] = transaction
        self.partners[hop.host] += 1
        self._send(bytes(request), hop)
        transaction.start(now)
        return transaction

    def fail(self, hop: Hop, now: float) -> None:
        """The connection to this hop could not be made, or ended: who waits for an answer over it waits in vain."""
        for transaction in list(self._clients.values()):
            own = transaction.hop
            same = own.transport == hop.transport and own.host == hop.host and hop.port in (own.port, own.connection)
            if same:
                transaction.apply(Input.TRANSPORT_ERROR, None, now)

    def receive_response(self, response: Response, now: float) -> bool:
        """Whether it belonged to one of our transactions."""
        key = (response.via.branch or "", response.cseq.method)
        transaction = self._clients.get(key)
        if transaction is None:
            return False
        transaction.apply(input_of(response), response, now)
        return True

    def _client_effect(self, key: Key, effect: Effect, message: Request | Response | None, now: float) -> None:
        transaction = self._clients[key]
        if effect is Effect.SEND:
            self._send(bytes(transaction.request), transaction.hop)
        elif effect is Effect.ACK and isinstance(message, Response):
            self._send(bytes(acknowledge(transaction.request, message)), transaction.hop)
        elif effect is Effect.PASS and isinstance(message, Response):
            transaction.on_response(message, now)
        elif effect is Effect.TIMEOUT:
            transaction.on_response(None, now)

    # Receiving requests

    def receive_request(self, request: Request, source: Hop, now: float) -> ServerTransaction | None:
        """The new transaction of a new request; None when a known one took it. Not for ACK."""
        key = server_key(request)
        known = self._servers.get(key)
        if known is not None:
            known.apply(Input.REQUEST, request, now)
            return None
        table = INVITE_SERVER if request.method == "INVITE" else SERVER
        transaction = ServerTransaction(table, request, self.settings, self._timers)
        transaction.source, transaction.on_cancel = source, None
        transaction.hop = response_hop(request.via, source)
        transaction.reliable = source.reliable
        transaction.on_effect = lambda effect, message, at: self._server_effect(key, effect, message, at)
        merge = merge_key(request)
        transaction.on_terminated = lambda: self._forget_server(key, merge)
        self._servers[key] = transaction
        self._merge.setdefault(merge, key)
        transaction.start(now)
        return transaction

    def knows(self, request: Request) -> bool:
        """Whether it repeats a request, or cancels an INVITE, that has a transaction."""
        return server_key(request) in self._servers or self.invite_of(request) is not None

    def expects(self, request: Request) -> bool:
        """Whether it repeats, cancels or acknowledges what has a transaction."""
        return self.knows(request) or server_key(request, "INVITE") in self._servers

    def receive_ack(self, ack: Request, now: float) -> bool:
        """Whether it ended an INVITE that we refused; the ACK of a 2xx belongs to the dialog."""
        transaction = self._servers.get(server_key(ack, "INVITE"))
        if transaction is None or transaction.state is State.ACCEPTED:
            return False
        transaction.apply(Input.ACK, ack, now)
        return True

    def invite_of(self, cancel: Request) -> ServerTransaction | None:
        """The INVITE that a CANCEL means (§9.2)."""
        return self._servers.get(server_key(cancel, "INVITE"))

    def is_merged(self, request: Request) -> bool:
        """Whether the request came a second time by another way (§8.2.2.2)."""
        known = self._merge.get(merge_key(request))
        return known is not None and known != server_key(request) and known in self._servers

    def _forget_client(self, key: Key) -> None:
        transaction = self._clients.pop(key, None)
        if transaction is None:
            return
        host = transaction.hop.host
        self.partners[host] -= 1
        if not self.partners[host]:
            del self.partners[host]

    def _forget_server(self, key: Key, merge: Key) -> None:
        self._servers.pop(key, None)
        self._repeatable.pop(key, None)
        if self._merge.get(merge) == key:
            del self._merge[merge]

    def _server_effect(self, key: Key, effect: Effect, message: Request | Response | None, now: float) -> None:
        transaction = self._servers[key]
        if effect is Effect.SEND and transaction.sent:
            self._send(transaction.sent, transaction.hop)
        if transaction.answered and transaction.repeatable:
            self._repeatable[key] = transaction
            if len(self._repeatable) > MAX_REPEATABLE:
                self._repeatable.popitem(last=False)[1].forget()


def response_hop(via: Via, source: Hop) -> Hop:
    """Where responses go (§18.2.2): over the connection of the request, or to the address it came from."""
    if source.reliable:
        return Hop(source.host, via.port or default_port(source.transport), source.transport, source.connection)
    return Hop(source.host, via.response_port(source.port))


def default_port(transport: str) -> int:
    return 5061 if transport == "tls" else 5060


def server_key(request: Request, method: str | None = None) -> Key:
    """What makes two requests the same (§17.2.3); an RFC 2543 peer's branch does not say it alone."""
    via = request.via
    method = method or request.method
    if via.has_unique_branch:
        return (via.branch or "", via.sent_by, method)
    sender = request.sender.tag or ""
    return (str(request.uri), sender, request.call_id, str(request.cseq.number), str(via), method)


def merge_key(request: Request) -> Key:
    return (request.sender.tag or "", request.call_id, str(request.cseq))


def acknowledge(invite: Request, response: Response) -> Request:
    """The ACK of a response that is not 2xx: it belongs to the INVITE's transaction (§17.1.1.3)."""
    headers = Headers([("Via", str(invite.via)), ("Max-Forwards", "70")])
    for name in ("From", "Call-ID", "Route"):
        for value in invite.headers.values(name):
            headers.add(name, value)
    headers.add("To", response.headers.get("To") or "")
    headers.add("CSeq", str(CSeq(invite.cseq.number, "ACK")))
    return Request(headers, method="ACK", uri=invite.uri)
