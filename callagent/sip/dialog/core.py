"""The core of the user agent, which all calls share: settings, dialogs, requests and responses (RFC 3261 §8)."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from callagent.sip import message
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import Call, Event
from callagent.sip.digest import DigestSettings
from callagent.sip.transaction_layer import ClientTransaction, OnResponse, ServerTransaction, TransactionLayer
from callagent.sip.transaction_machines import Timers, TimerSettings


def _admit_nobody(source_ip: str) -> str | None:
    return None


def _never_busy() -> int | None:
    return None


def _allow_any_pace(trunk: str) -> int | None:
    return None


MAX_UDP_REQUEST = 1300
"""Octets of the largest request that goes by UDP, as the path MTU is not known (RFC 3261 §18.1.1)."""
UNPROVEN = ""
"""Result of `UserAgentSettings.admit` for a host that belongs to no trunk but may log in with a digest account."""
EXTENSIONS = ("100rel", "replaces", "norefersub", "timer")
"""The option tags that we understand in a Require header field."""


@dataclass(frozen=True, slots=True)
class UserAgentSettings:
    """Settings of the user agent: whom it serves, the addresses that it shows, and its limits."""

    admit: Callable[[str], str | None] = _admit_nobody
    """Return the trunk that an IP address belongs to. None: its requests are dropped without a response. `UNPROVEN`:
    they are served only with the credentials of an account of `digest`."""
    digest: DigestSettings | None = None
    busy: Callable[[], int | None] = _never_busy
    """Return the seconds for Retry-After while no new call can be taken, or None."""
    pace: Callable[[str], int | None] = _allow_any_pace
    """Called with the trunk of each new call; returns the seconds for Retry-After if it comes too soon, or None."""
    public_host: str | None = None
    """Host name or IP address for Via and Contact; None: `public_address`."""
    public_address: str | None = None
    """IP address for SDP; None: the local address that reaches the peer."""
    name: str = "callagent"
    """Value of the header fields User-Agent and Server."""
    accepts_transfers: bool = False
    """Whether a peer may send us a REFER."""
    timers: TimerSettings = field(default_factory=TimerSettings)
    ring_limit: float = 180.0
    """Seconds until a call that only rings is given up, in either direction."""
    notify_limit: float = 10.0
    """Seconds from the 2xx of our REFER to the first NOTIFY, which the peer must send at once (RFC 3515 §2.4.4)."""
    transfer_limit: float = 30.0
    """Seconds from our REFER to its outcome; nobody speaks to the caller meanwhile."""
    max_calls: int = 1000
    """Calls at the same time."""
    max_attempts: int = 8
    """Servers and redirect targets that one outgoing call may try."""
    session_seconds: int = 1800
    """Session interval that we ask for: a call whose peer has vanished ends after this time (RFC 4028)."""
    shortest_session: int = 90
    """Min-SE in seconds: shorter intervals in a request are answered 422."""


class UserAgentCore:
    """The state that all calls share: transactions, timers, dialogs, and queues of messages and events."""

    def __init__(self, settings: UserAgentSettings, local_address: Callable[[message.Hop], tuple[str, int]]) -> None:
        """`local_address` returns our host and port as the peer at a hop reaches them over the hop's transport."""
        self.settings = settings
        self.methods = (*message.METHODS, "REFER") if settings.accepts_transfers else message.METHODS
        self.allow = ", ".join(self.methods)
        self.timers = Timers()
        self.outgoing: deque[tuple[bytes, message.Hop]] = deque()
        """Messages to send, in order."""
        self.events: deque[Event] = deque()
        self.layer = TransactionLayer(settings.timers, self.timers, self._enqueue)
        self.dialogs: dict[tuple[str, str, str], Call] = {}
        """By `Dialog.key`."""
        self.calls: set[Call] = set()
        # Counted here, because each message needs the counts and must not search all calls.
        self.call_ids: Counter[str] = Counter()
        """Calls per Call-ID: two calls may share one after a fork."""
        self.hosts: Counter[str] = Counter()
        """Calls per IP address of the peer."""
        self._local_address = local_address

    def is_partner(self, host: str) -> bool:
        """Return whether messages of this host are read: we are in a call with it, or wait for a response from it."""
        return host in self.hosts or host in self.layer.pending_hosts

    def add_call(self, call: Call) -> None:
        self.calls.add(call)
        self.call_ids[call.invite.call_id] += 1
        self.hosts[call.peer_host] += 1

    def remove_call(self, call: Call) -> None:
        """Forget a call; does nothing the second time."""
        if call not in self.calls:
            return
        self.calls.discard(call)
        for counter, key in ((self.call_ids, call.invite.call_id), (self.hosts, call.peer_host)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]

    # Requests

    def send_request(
        self, request: message.Request, hop: message.Hop, on_response: OnResponse, now: float
    ) -> ClientTransaction:
        """Send a request in a new transaction. A Via is added, unless the request has one as a CANCEL does (§9.1)."""
        request.headers.set("User-Agent", self.settings.name)
        if "Via" in request.headers:
            return self.layer.request(request, hop, on_response, now)
        request.headers.insert_first("Via", str(self._via(hop)))
        if not _is_too_large(request, hop) or self.layer.accepts_tcp(hop, now) is False:
            return self.layer.request(request, hop, on_response, now)
        # A request that is too large for UDP is tried by TCP; UDP is the fallback for peers without TCP (§18.1.1).
        fallback = (hop, request.via)
        hop = self._switch_to_tcp(request, hop)
        return self.layer.request(request, hop, on_response, now, fallback)

    def send_ack(self, ack: message.Request, hop: message.Hop, now: float) -> None:
        """Send the ACK of a 2xx.

        It has no transaction that could fall back to UDP, so it goes by TCP only to a peer known to accept TCP.
        """
        # The ACK of a 2xx is a transaction by itself, so it has a branch of its own (§17.1.1.3).
        ack.headers.insert_first("Via", str(self._via(hop)))
        if _is_too_large(ack, hop) and self.layer.accepts_tcp(hop, now):
            hop = self._switch_to_tcp(ack, hop)
        self._enqueue(bytes(ack), hop)

    # Responses

    def respond_outside_dialog(
        self, transaction: ServerTransaction, status: int, now: float, *headers: tuple[str, str]
    ) -> None:
        """Respond to a request that is outside of dialogs, with a new To tag unless the status is 100."""
        tag = self.new_tag() if status > 100 else None
        response = message.respond_to(transaction.request, status, tag=tag, headers=headers)
        transaction.respond(self.add_common_headers(response), now)

    def respond(self, transaction: ServerTransaction, dialog: Dialog, status: int, now: float, **more: bytes) -> None:
        """Respond to a request in a dialog; `more` is empty or the response's `body`."""
        transaction.respond(self.make_response(transaction.request, dialog, status, **more), now)

    def make_response(
        self, request: message.Request, dialog: Dialog, status: int, *, body: bytes = b""
    ) -> message.Response:
        """Return a response in a dialog, with Contact and Supported where the method and status require them."""
        response = message.respond_to(request, status, tag=dialog.local.tag, body=body)
        if request.method in ("INVITE", "UPDATE", "REFER") and 100 < status < 300:
            response.headers.add("Contact", str(dialog.local_contact))
            response.headers.set("Supported", ", ".join(EXTENSIONS))
        return self.add_common_headers(response)

    def add_common_headers(self, response: message.Response) -> message.Response:
        """Add Server, and Allow where the status requires it (§8.2.1), to a final response."""
        if response.status >= 200:
            response.headers.set("Server", self.settings.name)
            if response.status in (200, 405, 501):
                response.headers.set("Allow", self.allow)
        return response

    # Our addresses

    def contact(self, user: str | None, hop: message.Hop, *, secure: bool = False) -> message.Address:
        """Return the Contact for the peer at `hop`; if `secure`, with a sips URI, which always means TLS (§26.2.2)."""
        if secure:
            host, port = self.local_address(replace(hop, transport="tls"))
            return message.Address(message.Uri("sips", message.host_reference(host), user=user, port=port))
        host, port = self.local_address(hop)
        transport = (
            message.Parameters() if hop.transport == "udp" else message.Parameters((("transport", hop.transport),))
        )
        return message.Address(
            message.Uri("sip", message.host_reference(host), user=user, port=port, parameters=transport)
        )

    def local_address(self, hop: message.Hop) -> tuple[str, int]:
        """Return our host and port for Via and Contact towards the peer at `hop`."""
        host, port = self._local_address(hop)
        return self.settings.public_host or self.settings.public_address or host, port

    @staticmethod
    def new_tag() -> str:
        return secrets.token_hex(6)

    def _switch_to_tcp(self, request: message.Request, hop: message.Hop) -> message.Hop:
        """Return the same address over TCP, and write that transport into the topmost Via (§18.1.1)."""
        hop = replace(hop, transport="tcp", tentative=True)
        request.replace_top_via(self._via(hop, request.via.parameters))
        return hop

    def _via(self, hop: message.Hop, parameters: message.Parameters | None = None) -> message.Via:
        host, port = self.local_address(hop)
        # `rport` asks the peer to respond to the port that we sent from, which works through NATs (RFC 3581 §3).
        if parameters is None:
            parameters = message.Parameters(
                (("branch", f"{message.BRANCH_COOKIE}{secrets.token_hex(8)}"), ("rport", None))
            )
        return message.Via(hop.transport.upper(), message.host_reference(host), port, parameters)

    def _enqueue(self, data: bytes, hop: message.Hop) -> None:
        self.outgoing.append((data, hop))


def _is_too_large(request: message.Request, hop: message.Hop) -> bool:
    """Return whether UDP could fragment the request; many firewalls drop all fragments but the first."""
    return hop.transport == "udp" and len(bytes(request)) > MAX_UDP_REQUEST
