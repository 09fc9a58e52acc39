"""Finds the transaction a message belongs to, and keeps all of them (RFC 3261 §17.1.3, §17.2.3)."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable

from callagent.sip.message import CSeq, Headers, Request, Response, Via
from callagent.sip.transaction.machines import (
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
from callagent.sip.transaction.timers import Timer, Timers, TimerSettings
from callagent.sip.transport import Hop, response_hop

MAX_TRANSACTIONS = 20_000
TCP_MEMORY_SECONDS = 600.0
"""How long it is remembered whether a peer takes large requests by TCP."""
TCP_TRIAL_SECONDS = 5.0
"""How long a request that was sent by TCP for its size may be left without any response until it goes by UDP."""
_MAX_TCP_PEERS = 1024
MAX_REPEATABLE = 500
"""Transactions that are only kept to repeat an answer which a repeated request would get anyway."""

Key = tuple[str, ...]
OnResponse = Callable[[Response | None, float], None]
"""Called with each response that concerns the user; None when nobody answered in time."""


class ClientTransaction(Transaction):
    __slots__ = ("_fallback", "_layer", "_trial", "hop", "key", "on_response")

    def __init__(
        self,
        layer: TransactionLayer,
        request: Request,
        hop: Hop,
        on_response: OnResponse,
        fallback: tuple[Hop, Via] | None = None,
    ) -> None:
        """`fallback` is taken where there is no connection to `hop`."""
        table = INVITE_CLIENT if request.method == "INVITE" else CLIENT
        super().__init__(table, request, layer.settings, layer.timers)
        self._layer = layer
        self.key: Key = (request.via.branch or "", request.method)
        self.hop = hop
        self._fallback = fallback
        self._trial: Timer | None = None
        self.on_response = on_response
        self.reliable = hop.reliable

    def start(self, now: float) -> None:
        super().start(now)
        if self._fallback is not None:
            self._trial = self._layer.timers.at(now + TCP_TRIAL_SECONDS, self._give_up_trial)

    def end_trial(self) -> None:
        """The transport of `hop` has carried a response, or nothing is waited for any more."""
        self._fallback = None
        if self._trial is not None:
            self._trial.cancel()
            self._trial = None

    def _give_up_trial(self, now: float) -> None:
        self.fall_back(now)

    def fall_back(self, now: float) -> bool:
        """Send by UDP what no connection took; whether there was anything to be done (§18.1.1).

        The branch stays: a peer that did read it before its connection ended recognises the repetition.
        """
        if self._fallback is None or self.state not in (State.CALLING, State.TRYING):
            return False
        self._layer.note_tcp(self.hop, now, has_it=False)
        self.hop, via = self._fallback
        self.end_trial()
        self.request.replace_top_via(via)
        self.reliable = False
        self._layer.send(bytes(self.request), self.hop)
        self.start(now)
        return True

    def take_effect(self, effect: Effect, message: Request | Response | None, now: float) -> None:
        if effect is Effect.SEND:
            self._layer.send(bytes(self.request), self.hop)
        elif effect is Effect.ACK and isinstance(message, Response):
            self._layer.send(bytes(acknowledge(self.request, message)), self.hop)
        elif effect is Effect.PASS and isinstance(message, Response):
            self.on_response(message, now)
        elif effect is Effect.TIMEOUT:
            self.on_response(None, now)

    def leave(self) -> None:
        self.end_trial()
        self._layer.forget_client(self)


class ServerTransaction(Transaction):
    __slots__ = ("_layer", "hop", "key", "merge", "on_cancel", "source")

    def __init__(self, layer: TransactionLayer, request: Request, source: Hop, key: Key) -> None:
        table = INVITE_SERVER if request.method == "INVITE" else SERVER
        super().__init__(table, request, layer.settings, layer.timers)
        self._layer = layer
        self.key = key
        self.merge = merge_key(request)
        self.source = source
        self.hop = response_hop(request.via, source)
        """Where its responses go."""
        self.on_cancel: Callable[[Request, float], None] | None = None
        """There as long as a CANCEL of this INVITE has an effect."""
        self.reliable = source.reliable

    def take_effect(self, effect: Effect, message: Request | Response | None, now: float) -> None:
        if effect is Effect.SEND and self.sent:
            self._layer.send(self.sent, self.hop)
        if self.answered and self.repeatable:
            self._layer.keep_repeatable(self)

    def leave(self) -> None:
        self._layer.forget_server(self)


class TransactionLayer:
    def __init__(self, settings: TimerSettings, timers: Timers, send: Callable[[bytes, Hop], None]) -> None:
        self.settings = settings
        self.timers = timers
        self.send = send
        self._clients: dict[Key, ClientTransaction] = {}
        self._servers: dict[Key, ServerTransaction] = {}
        self._merge: dict[Key, Key] = {}
        self._repeatable: OrderedDict[Key, ServerTransaction] = OrderedDict()
        self._tcp: OrderedDict[tuple[str, int], tuple[bool, float]] = OrderedDict()
        self.partners: Counter[str] = Counter()
        """Hosts that owe us an answer, and how many."""

    def __len__(self) -> int:
        return len(self._clients) + len(self._servers)

    @property
    def full(self) -> bool:
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
        """Send a request whose topmost Via is ours, and repeat it as its machine says."""
        transaction = ClientTransaction(self, request, hop, on_response, fallback)
        self._clients[transaction.key] = transaction
        self.partners[hop.host] += 1
        self.send(bytes(request), hop)
        transaction.start(now)
        return transaction

    def fail(self, hop: Hop, now: float) -> None:
        """The connection to this hop could not be made, or ended: who waits for an answer over it waits in vain."""
        for transaction in list(self._clients.values()):
            own = transaction.hop
            same = own.transport == hop.transport and own.host == hop.host and hop.port in (own.port, own.connection)
            if same and not transaction.fall_back(now):
                transaction.apply(Input.TRANSPORT_ERROR, None, now)

    def has_tcp(self, hop: Hop, now: float) -> bool | None:
        """Whether the peer takes requests by TCP at the port that it has for UDP; None: that is not known."""
        known = self._tcp.get((hop.host, hop.port))
        return None if known is None or now >= known[1] else known[0]

    def note_tcp(self, hop: Hop, now: float, *, has_it: bool) -> None:
        self._tcp[hop.host, hop.port] = (has_it, now + TCP_MEMORY_SECONDS)
        self._tcp.move_to_end((hop.host, hop.port))
        if len(self._tcp) > _MAX_TCP_PEERS:
            self._tcp.popitem(last=False)

    def receive_response(self, response: Response, now: float) -> bool:
        """Whether it belonged to one of our transactions."""
        key = (response.via.branch or "", response.cseq.method)
        transaction = self._clients.get(key)
        if transaction is None:
            return False
        if transaction.hop.tentative:
            self.note_tcp(transaction.hop, now, has_it=True)
            transaction.end_trial()
        transaction.apply(input_of(response), response, now)
        return True

    # Receiving requests

    def receive_request(self, request: Request, source: Hop, now: float) -> ServerTransaction | None:
        """The new transaction of a new request; None when a known one took it. Not for ACK."""
        key = server_key(request)
        known = self._servers.get(key)
        if known is not None:
            known.apply(Input.REQUEST, request, now)
            return None
        transaction = ServerTransaction(self, request, source, key)
        self._servers[key] = transaction
        self._merge.setdefault(transaction.merge, key)
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

    # From the transactions

    def keep_repeatable(self, transaction: ServerTransaction) -> None:
        """It is only there to repeat its answer: of too many such the oldest ends."""
        self._repeatable[transaction.key] = transaction
        if len(self._repeatable) > MAX_REPEATABLE:
            self._repeatable.popitem(last=False)[1].forget()

    def forget_client(self, transaction: ClientTransaction) -> None:
        if self._clients.pop(transaction.key, None) is None:
            return
        host = transaction.hop.host
        self.partners[host] -= 1
        if not self.partners[host]:
            del self.partners[host]

    def forget_server(self, transaction: ServerTransaction) -> None:
        key, merge = transaction.key, transaction.merge
        self._servers.pop(key, None)
        self._repeatable.pop(key, None)
        if self._merge.get(merge) == key:
            del self._merge[merge]


def server_key(request: Request, method: str | None = None) -> Key:
    """What makes two requests the same (§17.2.3); an RFC 2543 peer's branch does not say it alone.

    The number is the same in a repeated request, its CANCEL and its ACK. A peer that gives all its requests one branch
    means another one by another number, and is to have its answer.
    """
    via, number = request.via, str(request.cseq.number)
    method = method or request.method
    if via.has_unique_branch:
        return (via.branch or "", via.sent_by, number, method)
    sender = request.sender.tag or ""
    return (str(request.uri), sender, request.call_id, number, str(via), method)


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
