"""Our INVITE: its attempts, its provisional responses, its 2xx (RFC 3261 §13.2, RFC 3263 §4.3)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from callagent.sip.dialog.call_states import CallInput, CallState
from callagent.sip.dialog.core import Wire
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.prack import EarlyDialogs
from callagent.sip.message import (
    MAX_PROOFS,
    Address,
    Credentials,
    CSeq,
    Headers,
    Request,
    Response,
    authorized,
    parse_integer,
    repeated,
)
from callagent.sip.transport import Hop, transport_of

if TYPE_CHECKING:
    from callagent.sip.dialog.call import SipCall


MAX_REDIRECTIONS = 3
_MAX_SESSION = 7200


@dataclass(frozen=True, slots=True)
class Way:
    """How a call gets to its target."""

    hops: tuple[Hop, ...]
    """The next is taken when one does not answer, or answers 503."""
    credentials: Credentials | None = None
    """For the trunk at the end of the hops."""
    route: tuple[Address, ...] = ()
    """Proxies that the INVITE has to pass; the hops lead to the first."""


class Dialling:
    def __init__(self, wire: Wire, call: SipCall, way: Way) -> None:
        self.early = EarlyDialogs(wire, call)
        self._wire = wire
        self._call = call
        self._way = way
        self._hop = way.hops[0]
        self._others = list(way.hops[1:])
        self._redirections = 0
        self._attempts = 1
        self._renegotiated = False
        self._proofs = 0

    @property
    def hop(self) -> Hop:
        return self._hop

    def credentials_at(self, hop: Hop) -> Credentials | None:
        """For requests within the call: of a trunk that wanted them for the INVITE too, and for nobody beyond it."""
        headers = self._call.invite.headers
        proven = "Authorization" in headers or "Proxy-Authorization" in headers
        known = any(hop.host == own.host for own in self._way.hops)
        return self._way.credentials if proven and known else None

    def send(self, now: float) -> None:
        """Send the call's INVITE as it now stands."""
        invite = self._call.invite
        # The transaction refers to this object by its callback: it is not kept here as well.
        self._wire.request(invite, self._hop, lambda heard, at: self._hear(invite, heard, at), now)

    def cancel(self, headers: Mapping[str, str], now: float) -> None:
        """Take the INVITE back; `headers` say why (RFC 3326 §2)."""
        cancel = cancel_of(self._call.invite)
        for name, value in headers.items():
            cancel.headers.add(name, value)
        self._wire.request(cancel, self._sent_to(), _ignore, now)

    def dialog_of(self, response: Response) -> Dialog:
        invite = self._call.invite
        dialog = Dialog.of_client(invite, response, self._hop, invite.contacts[0])
        # A peer that took a large INVITE by TCP is spoken to by TCP then only if its Contact or route says so.
        sent_to = self._sent_to()
        if transport_of(dialog.next_uri()) == sent_to.transport:
            dialog.peer = sent_to
        return dialog

    def _sent_to(self) -> Hop:
        """The hop by the transport that took the INVITE: its Via tells, where it was too large for UDP (§18.1.1)."""
        return replace(self._hop, transport=self._call.invite.via.transport.lower())

    def acknowledge(self, dialog: Dialog, now: float) -> None:
        """The 2xx of the INVITE has its ACK; with the INVITE's credentials (RFC 3261 §22.1)."""
        invite = self._call.invite
        ack = dialog.request("ACK", invite.cseq.number)
        for name in ("Authorization", "Proxy-Authorization"):
            for value in invite.headers.values(name):
                ack.headers.add(name, value)
        self._wire.acknowledge(ack, dialog.next_hop(), now)

    def _hear(self, invite: Request, response: Response | None, now: float) -> None:
        call = self._call
        if invite is not call.invite:
            # Of an attempt that another has followed.
            return
        if response is not None and response.status < 200:
            self._hear_provisional(response, now)
        elif response is not None and response.status < 300:
            self._hear_success(response, now)
        elif call.state in (CallState.DIALLING, CallState.PROCEEDING) and self._prepare(response):
            call.apply(CallInput.RETRY, None, now)
        elif response is None:
            call.apply(CallInput.NO_RESPONSE, None, now)
        else:
            call.apply(CallInput.FAILURE, response, now)

    def _hear_provisional(self, response: Response, now: float) -> None:
        tagged = response.status > 100 and response.recipient.tag is not None
        if tagged and not self.early.hear(response, self.dialog_of(response), now):
            return
        self._call.apply(CallInput.PROVISIONAL, response, now)

    def _hear_success(self, response: Response, now: float) -> None:
        call = self._call
        if call.dialog is None and call.state is not CallState.ENDED:
            call.apply(CallInput.SUCCESS, response, now)
            return
        # The same 2xx again gets its ACK again; one of another branch, or too late, is a call that nobody wants.
        dialog = self.dialog_of(response)
        known = call.dialog
        if known is not None and dialog.key == known.key:
            dialog = known
        self.acknowledge(dialog, now)
        if dialog is not known:
            self._wire.request(dialog.request("BYE"), dialog.next_hop(), _ignore, now)

    # What to try next

    def _prepare(self, response: Response | None) -> bool:
        """Make the call's INVITE the next one to try; False when it has failed for good."""
        invite = self._next_request(response)
        if invite is None:
            return False
        self._call.invite = invite
        return True

    def _next_request(self, response: Response | None) -> Request | None:
        invite = self._call.invite
        if response is None or response.status == 503:
            if not self._others or not self._may_attempt():
                return None
            self._hop = self._others.pop(0)
            return repeated(invite)
        if response.status in (401, 407):
            return self._proven(invite, response)
        if response.status == 422:
            return self._with_longer_session(invite, response)
        return self._redirected(invite, response) if 300 <= response.status < 400 else None

    def _may_attempt(self) -> bool:
        """Whether one more server, or one more user that we are sent to, may be asked."""
        self._attempts += 1
        self._call.attempts_spent = self._attempts > self._wire.settings.max_attempts
        return not self._call.attempts_spent

    def _proven(self, invite: Request, response: Response) -> Request | None:
        self._proofs += 1
        if self._way.credentials is None or self._proofs > MAX_PROOFS:
            return None
        return authorized(invite, response, self._way.credentials)

    def _with_longer_session(self, invite: Request, response: Response) -> Request | None:
        """Once, with the shortest session that the peer takes (RFC 4028 §7.3)."""
        try:
            seconds = parse_integer(response.headers.get("Min-SE") or "", _MAX_SESSION)
        except ValueError:
            return None
        if self._renegotiated:
            return None
        self._renegotiated = True
        again = repeated(invite)
        again.headers.set("Min-SE", str(seconds))
        again.headers.set("Session-Expires", str(max(seconds, self._wire.settings.session_seconds)))
        return again

    def _redirected(self, invite: Request, response: Response) -> Request | None:
        """To another user of the same host only: where calls may go is not for a peer to say."""
        try:
            targets = [address.uri for address in response.contacts]
        except ValueError:
            return None
        self._redirections += 1
        target = next((uri for uri in targets if uri.host == invite.uri.host and uri.scheme == invite.uri.scheme), None)
        if target is None or self._redirections > MAX_REDIRECTIONS or not self._may_attempt():
            return None
        again = repeated(invite)
        again.uri = target.without_headers()
        return again


def cancel_of(invite: Request) -> Request:
    """The CANCEL of an INVITE that was sent (§9.1)."""
    headers = Headers([("Via", str(invite.via)), ("Max-Forwards", "70")])
    for name in ("Route", "From", "To", "Call-ID"):
        for value in invite.headers.values(name):
            headers.add(name, value)
    headers.add("CSeq", str(CSeq(invite.cseq.number, "CANCEL")))
    return Request(headers, method="CANCEL", uri=invite.uri)


def _ignore(response: Response | None, now: float) -> None:
    """For requests whose outcome changes nothing."""
