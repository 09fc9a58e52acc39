"""The UAC side of an INVITE: its attempts, provisional responses, 2xx, ACK and CANCEL (RFC 3261 §9.1, §13.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from callagent.sip.dialog.call_machine import CallInput, CallMachine, CallState
from callagent.sip.dialog.core import UserAgentCore
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.prack import EarlyDialogs
from callagent.sip.dialog.requests import ignore_response
from callagent.sip.message import (
    MAX_PROOFS,
    Address,
    Credentials,
    CSeq,
    Headers,
    Hop,
    Request,
    Response,
    authorized,
    parse_integer,
    repeated,
    transport_of,
)

MAX_REDIRECTIONS = 3
_MAX_MIN_SE = 7200
"""Seconds of the longest Min-SE that we repeat the INVITE for."""


@dataclass(frozen=True, slots=True)
class Way:
    """How an outgoing call reaches its target."""

    hops: tuple[Hop, ...]
    """Servers in order: the next one is tried if one does not respond, or responds 503 (RFC 3263 §4.3)."""
    credentials: Credentials | None = None
    """For the trunk that the hops lead to."""
    route: tuple[Address, ...] = ()
    """The proxies that the INVITE passes; the hops lead to the first one."""


class OutgoingInvite:
    """The INVITE of an outgoing call: what was sent, where, and what to try next."""

    def __init__(self, core: UserAgentCore, call: CallMachine, way: Way) -> None:
        self.early = EarlyDialogs(core, call)
        self._core = core
        self._call = call
        self._way = way
        self._hop = way.hops[0]
        self._other_hops = list(way.hops[1:])
        self._redirections = 0
        self._attempts = 1
        self._session_lengthened = False
        self._proofs = 0

    def credentials_for(self, hop: Hop) -> Credentials | None:
        """Return the trunk's credentials for requests in the call, if the INVITE needed them and `hop` is the trunk."""
        headers = self._call.invite.headers
        proven = "Authorization" in headers or "Proxy-Authorization" in headers
        is_trunk = any(hop.host == own.host for own in self._way.hops)
        return self._way.credentials if proven and is_trunk else None

    def send(self, now: float) -> None:
        """Send the call's INVITE as it is now."""
        invite = self._call.invite

        def on_response(response: Response | None, at: float) -> None:
            self._receive(invite, response, at)

        # The transaction refers to this object by the callback; this object does not refer to the transaction.
        self._core.send_request(invite, self._hop, on_response, now)

    def cancel(self, headers: Mapping[str, str], now: float) -> None:
        """Send a CANCEL; `headers` may say why (RFC 3326 §2)."""
        cancel = cancel_of(self._call.invite)
        for name, value in headers.items():
            cancel.headers.add(name, value)
        self._core.send_request(cancel, self._hop_of_invite(), ignore_response, now)

    def dialog_of(self, response: Response) -> Dialog:
        """Return the dialog that a response with a To tag establishes."""
        invite = self._call.invite
        dialog = Dialog.of_client(invite, response, self._hop, invite.contacts[0])
        # The INVITE may have gone by TCP for its size alone: later requests do so only if Contact or route ask for it.
        sent_to = self._hop_of_invite()
        if transport_of(dialog.next_uri()) == sent_to.transport:
            dialog.peer = sent_to
        return dialog

    def acknowledge(self, dialog: Dialog, now: float) -> None:
        """Send the ACK of a 2xx, with the credentials of the INVITE (RFC 3261 §22.1)."""
        invite = self._call.invite
        ack = dialog.request("ACK", invite.cseq.number)
        for name in ("Authorization", "Proxy-Authorization"):
            for value in invite.headers.values(name):
                ack.headers.add(name, value)
        self._core.send_ack(ack, dialog.next_hop(), now)

    def _hop_of_invite(self) -> Hop:
        """Return the current hop with the transport that the INVITE took, which its Via names (§18.1.1)."""
        return replace(self._hop, transport=self._call.invite.via.transport.lower())

    # Responses

    def _receive(self, invite: Request, response: Response | None, now: float) -> None:
        call = self._call
        if invite is not call.invite:
            # A response to an earlier attempt.
            return
        if response is not None and response.status < 200:
            self._receive_provisional(response, now)
        elif response is not None and response.status < 300:
            self._receive_success(response, now)
        elif call.state in (CallState.DIALLING, CallState.PROCEEDING) and self._prepare_retry(response):
            call.apply(CallInput.RETRY, None, now)
        elif response is None:
            call.apply(CallInput.NO_RESPONSE, None, now)
        else:
            call.apply(CallInput.FAILURE, response, now)

    def _receive_provisional(self, response: Response, now: float) -> None:
        tagged = response.status > 100 and response.recipient.tag is not None
        if tagged and not self.early.receive(response, self.dialog_of(response), now):
            return
        self._call.apply(CallInput.PROVISIONAL, response, now)

    def _receive_success(self, response: Response, now: float) -> None:
        call = self._call
        if call.dialog is None and call.state is not CallState.ENDED:
            call.apply(CallInput.SUCCESS, response, now)
            return
        # A retransmitted 2xx gets its ACK again (§13.2.2.4). One of another branch of a fork, or one that arrives after
        # the call has ended, establishes a dialog that nobody wants: ACK, then BYE.
        dialog = self.dialog_of(response)
        known = call.dialog
        if known is not None and dialog.key == known.key:
            dialog = known
        self.acknowledge(dialog, now)
        if dialog is not known:
            self._core.send_request(dialog.request("BYE"), dialog.next_hop(), ignore_response, now)

    # The next attempt

    def _prepare_retry(self, response: Response | None) -> bool:
        """Make the call's INVITE the next one to send; False if there is nothing left to try."""
        invite = self._next_request(response)
        if invite is None:
            return False
        self._call.invite = invite
        return True

    def _next_request(self, response: Response | None) -> Request | None:
        invite = self._call.invite
        if response is None or response.status == 503:
            if not self._other_hops or not self._may_attempt():
                return None
            self._hop = self._other_hops.pop(0)
            return repeated(invite)
        if response.status in (401, 407):
            return self._with_proof(invite, response)
        if response.status == 422:
            return self._with_longer_session(invite, response)
        return self._redirected(invite, response) if 300 <= response.status < 400 else None

    def _may_attempt(self) -> bool:
        """Count one more server, or one more user that we are redirected to; False beyond `max_attempts`."""
        self._attempts += 1
        self._call.attempts_spent = self._attempts > self._core.settings.max_attempts
        return not self._call.attempts_spent

    def _with_proof(self, invite: Request, response: Response) -> Request | None:
        self._proofs += 1
        if self._way.credentials is None or self._proofs > MAX_PROOFS:
            return None
        return authorized(invite, response, self._way.credentials)

    def _with_longer_session(self, invite: Request, response: Response) -> Request | None:
        """Return the INVITE with the session interval that the 422 requires, once (RFC 4028 §7.3)."""
        try:
            seconds = parse_integer(response.headers.get("Min-SE") or "", _MAX_MIN_SE)
        except ValueError:
            return None
        if self._session_lengthened:
            return None
        self._session_lengthened = True
        again = repeated(invite)
        again.headers.set("Min-SE", str(seconds))
        again.headers.set("Session-Expires", str(max(seconds, self._core.settings.session_seconds)))
        return again

    def _redirected(self, invite: Request, response: Response) -> Request | None:
        """Return the INVITE for the user that a 3xx names, at the same host only.

        A peer must not decide which hosts we call, so other Contacts are ignored.
        """
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
    """Return the CANCEL of an INVITE that was sent (§9.1)."""
    headers = Headers([("Via", str(invite.via)), ("Max-Forwards", "70")])
    for name in ("Route", "From", "To", "Call-ID"):
        for value in invite.headers.values(name):
            headers.add(name, value)
    headers.add("CSeq", str(CSeq(invite.cseq.number, "CANCEL")))
    return Request(headers, method="CANCEL", uri=invite.uri)
