"""How calls send: what every message of ours carries, and the queues to the owner of the user agent."""

from __future__ import annotations

import secrets
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from callagent.sip.authenticator import DigestSettings
from callagent.sip.dialog.events import Event
from callagent.sip.message import (
    BRANCH_COOKIE,
    METHODS,
    Address,
    Parameters,
    Request,
    Response,
    Uri,
    Via,
    host_reference,
    respond_to,
)
from callagent.sip.transaction import (
    ClientTransaction,
    OnResponse,
    ServerTransaction,
    Timers,
    TimerSettings,
    TransactionLayer,
)
from callagent.sip.transport import Hop

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall
    from callagent.sip.dialog.dialog import Dialog


def _nobody(source_ip: str) -> str | None:
    return None


def _never_busy() -> int | None:
    return None


def _any_pace(trunk: str) -> int | None:
    return None


MAX_UDP_REQUEST = 1300
"""Octets of a request that go by UDP where the path's largest packet is not known (RFC 3261 §18.1.1)."""
UNPROVEN = ""
"""The trunk of a host that has to prove who it is."""
EXTENSIONS = ("100rel", "replaces", "norefersub", "timer")
"""What we understand when a peer requires it."""


@dataclass(frozen=True, slots=True)
class UserAgentSettings:
    admit: Callable[[str], str | None] = _nobody
    """The name of the trunk that an IP address belongs to. None: the sender gets no answer at all. `UNPROVEN`: it has
    to prove an account of `digest`."""
    digest: DigestSettings | None = None
    busy: Callable[[], int | None] = _never_busy
    """Seconds for Retry-After while no new call can be taken; None when one can."""
    pace: Callable[[str], int | None] = _any_pace
    """Told of each new call with its trunk's name: seconds for Retry-After where it comes too soon; None: it may."""
    public_host: str | None = None
    """Host name or IP address for Via and Contact; None: `public_address`."""
    public_address: str | None = None
    """IP address for SDP; None: the local address that reaches the peer."""
    name: str = "callagent"
    """For User-Agent and Server."""
    accepts_transfers: bool = False
    """Whether a peer may send us elsewhere by REFER."""
    timers: TimerSettings = field(default_factory=TimerSettings)
    ring_limit: float = 180.0
    """Seconds until a call that only rings is given up, ours and the peer's."""
    notify_limit: float = 10.0
    """Seconds that a peer which accepted our REFER may take to its first NOTIFY; it has to come at once (RFC 3515
    §2.4.4)."""
    transfer_limit: float = 30.0
    """Seconds from our REFER to its outcome: for so long nobody speaks to the caller."""
    max_calls: int = 1000
    max_attempts: int = 8
    """Servers, and users that these send us to, that one call of ours is tried at."""
    session_seconds: int = 1800
    """After how long a call without a sign of life from the peer's signalling ends (RFC 4028)."""
    shortest_session: int = 90
    """Shorter ones that a peer asks for are answered 422."""


class Wire:
    """Shared by the user agent and its calls."""

    def __init__(self, settings: UserAgentSettings, local: Callable[[Hop], tuple[str, int]]) -> None:
        """`local` gives our address and port as this peer reaches them over its transport."""
        self.settings = settings
        self.methods = (*METHODS, "REFER") if settings.accepts_transfers else METHODS
        self.allow = ", ".join(self.methods)
        self.timers = Timers()
        self.outgoing: deque[tuple[bytes, Hop]] = deque()
        self.events: deque[Event] = deque()
        self.layer = TransactionLayer(settings.timers, self.timers, self._send)
        self.dialogs: dict[tuple[str, str, str], SipCall] = {}
        self.calls: set[SipCall] = set()
        self.call_ids: Counter[str] = Counter()
        """Of those calls; two calls may share one, of a fork."""
        self.hosts: Counter[str] = Counter()
        """Of the peers of our calls, and how many calls each has."""
        self._local = local

    def is_partner(self, host: str) -> bool:
        """Whether we are in a call with this host, or wait for its answer, whoever may begin one."""
        return host in self.hosts or host in self.layer.partners

    def begin(self, call: SipCall, host: str) -> None:
        self.calls.add(call)
        self.call_ids[call.invite.call_id] += 1
        self.hosts[host] += 1

    def end(self, call: SipCall, host: str) -> None:
        if call not in self.calls:
            return
        self.calls.discard(call)
        for counter, key in ((self.call_ids, call.invite.call_id), (self.hosts, host)):
            counter[key] -= 1
            if not counter[key]:
                del counter[key]

    def request(self, request: Request, hop: Hop, on_response: OnResponse, now: float) -> ClientTransaction:
        """Send in a transaction of its own. A Via that is there already stays: a CANCEL has its INVITE's."""
        request.headers.set("User-Agent", self.settings.name)
        if "Via" in request.headers:
            return self.layer.request(request, hop, on_response, now)
        request.headers.insert_first("Via", str(self._via(hop)))
        if not _is_too_large(request, hop) or self.layer.has_tcp(hop, now) is False:
            return self.layer.request(request, hop, on_response, now)
        fallback = (hop, request.via)
        hop = self._by_tcp(request, hop)
        return self.layer.request(request, hop, on_response, now, fallback)

    def acknowledge(self, ack: Request, hop: Hop, now: float) -> None:
        """Send the ACK of a 2xx. It has no transaction that could fall back: by TCP only where the peer is known to
        have it."""
        ack.headers.insert_first("Via", str(self._via(hop)))
        if _is_too_large(ack, hop) and self.layer.has_tcp(hop, now):
            hop = self._by_tcp(ack, hop)
        self._send(bytes(ack), hop)

    def reply(self, transaction: ServerTransaction, status: int, now: float, *headers: tuple[str, str]) -> None:
        """Answer without a dialog."""
        tag = self.new_tag() if status > 100 else None
        transaction.respond(self.finish(respond_to(transaction.request, status, tag=tag, headers=headers)), now)

    def respond(self, transaction: ServerTransaction, dialog: Dialog, status: int, now: float, **more: bytes) -> None:
        """Answer inside a dialog; `body` is SDP."""
        transaction.respond(self.response(transaction.request, dialog, status, **more), now)

    def response(self, request: Request, dialog: Dialog, status: int, *, body: bytes = b"") -> Response:
        response = respond_to(request, status, tag=dialog.local.tag, body=body)
        if request.method in ("INVITE", "UPDATE", "REFER") and 100 < status < 300:
            response.headers.add("Contact", str(dialog.local_contact))
            response.headers.set("Supported", ", ".join(EXTENSIONS))
        return self.finish(response)

    def finish(self, response: Response) -> Response:
        """Add what all our final responses carry."""
        if response.status >= 200:
            response.headers.set("Server", self.settings.name)
            if response.status in (200, 405, 501):
                response.headers.set("Allow", self.allow)
        return response

    def contact(self, user: str | None, hop: Hop, *, secure: bool = False) -> Address:
        """Where the peer at `hop` sends its requests. `secure`: by a sips URI, which always means TLS (§26.2.2)."""
        if secure:
            host, port = self.local(replace(hop, transport="tls"))
            return Address(Uri("sips", host_reference(host), user=user, port=port))
        host, port = self.local(hop)
        transport = Parameters() if hop.transport == "udp" else Parameters((("transport", hop.transport),))
        return Address(Uri("sip", host_reference(host), user=user, port=port, parameters=transport))

    def local(self, hop: Hop) -> tuple[str, int]:
        """Host and port that this peer may send to."""
        host, port = self._local(hop)
        return self.settings.public_host or self.settings.public_address or host, port

    @staticmethod
    def new_tag() -> str:
        return secrets.token_hex(6)

    def _by_tcp(self, request: Request, hop: Hop) -> Hop:
        """The same port by TCP, which the topmost Via has to tell (RFC 3261 §18.1.1)."""
        hop = replace(hop, transport="tcp", tentative=True)
        request.replace_top_via(self._via(hop, request.via.parameters))
        return hop

    def _via(self, hop: Hop, parameters: Parameters | None = None) -> Via:
        host, port = self.local(hop)
        if parameters is None:
            parameters = Parameters((("branch", f"{BRANCH_COOKIE}{secrets.token_hex(8)}"), ("rport", None)))
        return Via(hop.transport.upper(), host_reference(host), port, parameters)

    def _send(self, data: bytes, hop: Hop) -> None:
        self.outgoing.append((data, hop))


def _is_too_large(request: Request, hop: Hop) -> bool:
    """Whether UDP may cut the request to pieces, of which firewalls often let only the first pass."""
    return hop.transport == "udp" and len(bytes(request)) > MAX_UDP_REQUEST
