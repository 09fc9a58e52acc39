"""The INVITE that begins a call, in both roles (RFC 3261 §9.1, §13), with reliable provisional responses (RFC 3262).

As a client: attempts, provisional responses, 2xx, ACK, CANCEL and PRACK. As a server: responses, and the retransmission
of a 2xx until its ACK, and of a reliable 1xx until its PRACK.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from callagent.sip.dialog.call_machine import CallInput, CallMachine, CallState, ignore_response
from callagent.sip.dialog.core import UserAgentCore
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import Call
from callagent.sip.digest import MAX_CHALLENGES, Credentials, authorize_request, copy_for_retry
from callagent.sip.message import Address, CSeq, Headers, Hop, Request, Response, parse_integer, transport_of
from callagent.sip.transaction_layer import ServerTransaction
from callagent.sip.transaction_machines import Timer

MAX_REDIRECTIONS = 3
_MAX_MIN_SE = 7200
"""Seconds of the longest Min-SE (minimum session interval) of a 422 after which the INVITE is sent again."""


@dataclass(frozen=True, slots=True)
class CallPath:
    """The servers and proxies through which an outgoing call reaches its target, and the credentials for them."""

    hops: tuple[Hop, ...]
    """Servers in order: the next one is tried if one does not respond, or responds 503 (RFC 3263 §4.3)."""
    credentials: Credentials | None = None
    """The credentials for the trunk that the hops lead to."""
    route: tuple[Address, ...] = ()
    """The proxies that the INVITE passes; the hops lead to the first one."""


class OutgoingInvite:
    """The INVITE of an outgoing call: what was sent, where, and what to try next."""

    def __init__(self, core: UserAgentCore, call: CallMachine, path: CallPath) -> None:
        self.early = EarlyDialogs(core, call)
        self._core = core
        self._call = call
        self._path = path
        self._hop = path.hops[0]
        self._other_hops = list(path.hops[1:])
        self._redirections = 0
        self._attempts = 1
        self._session_lengthened = False
        self._challenges = 0

    def credentials_for(self, hop: Hop) -> Credentials | None:
        """Return the trunk's credentials for requests in the call, if the INVITE needed them and `hop` is the trunk."""
        headers = self._call.invite.headers
        proven = "Authorization" in headers or "Proxy-Authorization" in headers
        is_trunk = any(hop.host == own.host for own in self._path.hops)
        return self._path.credentials if proven and is_trunk else None

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
            # A response to an earlier attempt, which has been given up.
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
        # A retransmitted 2xx gets its ACK again (§13.2.2.4). A 2xx of another branch of a fork, or after the end of the
        # call, establishes an unwanted dialog, which gets an ACK and then a BYE.
        dialog = self.dialog_of(response)
        confirmed = call.dialog
        if confirmed is not None and dialog.key == confirmed.key:
            dialog = confirmed
        self.acknowledge(dialog, now)
        if dialog is not confirmed:
            self._core.send_request(dialog.request("BYE"), dialog.next_hop(), ignore_response, now)

    # The next attempt

    def _prepare_retry(self, response: Response | None) -> bool:
        """Replace the call's INVITE by the next one to send; False if there is nothing left to try."""
        invite = self._next_request(response)
        if invite is None:
            return False
        self._call.invite = invite
        return True

    def _next_request(self, response: Response | None) -> Request | None:
        invite = self._call.invite
        # Another server of the target may take the call (RFC 3263 §4.3).
        if response is None or response.status == 503:
            if not self._other_hops or not self._count_attempt():
                return None
            self._hop = self._other_hops.pop(0)
            return copy_for_retry(invite)
        if response.status in (401, 407):
            return self._with_credentials(invite, response)
        if response.status == 422:
            return self._with_longer_session(invite, response)
        return self._redirect(invite, response) if 300 <= response.status < 400 else None

    def _count_attempt(self) -> bool:
        """Count one more server, or one more user that we are redirected to; False beyond `max_attempts`."""
        self._attempts += 1
        self._call.attempts_spent = self._attempts > self._core.settings.max_attempts
        return not self._call.attempts_spent

    def _with_credentials(self, invite: Request, response: Response) -> Request | None:
        self._challenges += 1
        if self._path.credentials is None or self._challenges > MAX_CHALLENGES:
            return None
        return authorize_request(invite, response, self._path.credentials)

    def _with_longer_session(self, invite: Request, response: Response) -> Request | None:
        """Return the INVITE with the session interval that the 422 requires, once (RFC 4028 §7.3)."""
        try:
            seconds = parse_integer(response.headers.get("Min-SE") or "", _MAX_MIN_SE)
        except ValueError:
            return None
        if self._session_lengthened:
            return None
        self._session_lengthened = True
        again = copy_for_retry(invite)
        again.headers.set("Min-SE", str(seconds))
        again.headers.set("Session-Expires", str(max(seconds, self._core.settings.session_seconds)))
        return again

    def _redirect(self, invite: Request, response: Response) -> Request | None:
        """Return the INVITE for the user that a 3xx names, at the same host only.

        A peer must not decide which hosts we call, so other Contacts are ignored.
        """
        try:
            targets = [address.uri for address in response.contacts]
        except ValueError:
            return None
        self._redirections += 1
        target = next((uri for uri in targets if uri.host == invite.uri.host and uri.scheme == invite.uri.scheme), None)
        if target is None or self._redirections > MAX_REDIRECTIONS or not self._count_attempt():
            return None
        again = copy_for_retry(invite)
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


class AnswerRetransmission:
    """A 2xx to an INVITE, sent again with growing intervals until its ACK arrives (RFC 3261 §13.3.1.4)."""

    def __init__(
        self,
        core: UserAgentCore,
        transaction: ServerTransaction,
        response: Response,
        on_missing: Callable[[float], None],
    ) -> None:
        """`on_missing` is called if no ACK arrives within 64*T1."""
        self._core = core
        self.cseq = transaction.request.cseq.number
        self._transaction = transaction
        self._response = response
        self._on_missing = on_missing
        self._repeat: Timer | None = None
        self._deadline: Timer | None = None

    def start(self, now: float) -> None:
        """Send the 2xx for the first time."""
        settings = self._core.settings.timers
        self._deadline = self._core.timers.at(now + settings.timeout, self._give_up)
        self._transaction.respond(self._response, now)
        self._arm(settings.t1, now)

    def stop(self) -> None:
        for timer in (self._repeat, self._deadline):
            if timer is not None:
                timer.cancel()

    def _arm(self, interval: float, now: float) -> None:
        def repeat(at: float) -> None:
            self._transaction.respond(self._response, at)
            self._arm(min(2 * interval, self._core.settings.timers.t2), at)

        self._repeat = self._core.timers.at(now + interval, repeat)

    def _give_up(self, now: float) -> None:
        self.stop()
        self._on_missing(now)


class IncomingInvite:
    """The INVITE of an incoming call: its transaction, and the responses that were sent to it."""

    def __init__(self, transaction: ServerTransaction) -> None:
        self._transaction = transaction
        self._provisional: ReliableProvisional | None = None
        """Made for a caller that requires reliable provisional responses."""
        self._answer: AnswerRetransmission | None = None

    def send_provisional(self, call: CallMachine, response: Response, now: float) -> None:
        """Send a 1xx, reliably if the caller requires it (RFC 3262 §3)."""
        if OPTION_TAG not in call.invite.headers.flags("Require"):
            self._transaction.respond(response, now)
            return
        if self._provisional is None:
            self._provisional = ReliableProvisional()
        self._provisional.send(call, self._transaction, response, now)

    def send_answer(
        self, core: UserAgentCore, response: Response, on_missing: Callable[[float], None], now: float
    ) -> None:
        """Send a 2xx until its ACK arrives; `on_missing` is called if none does."""
        self.close()
        self._answer = AnswerRetransmission(core, self._transaction, response, on_missing)
        self._answer.start(now)

    def refuse(self, response: Response, now: float) -> None:
        """Send a final response other than 2xx."""
        self._transaction.on_cancel = None
        self.close()
        self._transaction.respond(response, now)

    def receive_prack(self, call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        """Respond to a PRACK."""
        if self._provisional is None:
            call.core.respond(transaction, dialog, 481, now)
        else:
            self._provisional.receive_prack(call, dialog, transaction, now)

    def is_acknowledged_by(self, ack: Request) -> bool:
        """Whether the ACK is for our 2xx, which is being sent until then."""
        return self._answer is not None and ack.cseq.number == self._answer.cseq

    def stop_answering(self) -> None:
        """End the retransmission of the 2xx. From now on a CANCEL of the INVITE has no effect."""
        if self._answer is not None:
            self._answer.stop()
            self._answer = None
        self._transaction.on_cancel = None

    def close(self) -> None:
        """Stop the retransmission of a provisional response."""
        if self._provisional is not None:
            self._provisional.stop()


_MAX_RSEQ = 2**31 - 1
OPTION_TAG = "100rel"
"""The option tag of reliable provisional responses, and of their PRACK (provisional acknowledgement)."""


class ReliableProvisional:
    """A provisional response of ours to a caller that requires `100rel`.

    It is sent again until its PRACK arrives; if none does within 64*T1, the call is refused with 504 (RFC 3262 §3).
    """

    def __init__(self) -> None:
        self._rseq = 0
        self._timer: Timer | None = None

    def send(self, call: CallMachine, transaction: ServerTransaction, response: Response, now: float) -> None:
        """Send `response`, unless an earlier one is not acknowledged yet: only one may be under way (RFC 3262 §3)."""
        if self._timer is not None:
            return
        # The first number is random, below 2**31 so that the following ones fit as well.
        self._rseq = self._rseq + 1 if self._rseq else secrets.randbelow(2**31 - 2**16) + 1
        response.headers.set("Require", OPTION_TAG)
        response.headers.set("RSeq", str(self._rseq))
        transaction.respond(response, now)
        timers = call.core.settings.timers
        self._arm(call, transaction, response, timers.t1, now, now + timers.timeout)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def receive_prack(self, call: CallMachine, dialog: Dialog, transaction: ServerTransaction, now: float) -> None:
        """Respond to a PRACK: 200 if it acknowledges the response under way, otherwise 481."""
        matches = _rack(transaction.request) == (self._rseq, call.invite.cseq) and self._timer is not None
        if matches:
            self.stop()
        call.core.respond(transaction, dialog, 200 if matches else 481, now)

    def _arm(
        self,
        call: CallMachine,
        transaction: ServerTransaction,
        response: Response,
        interval: float,
        now: float,
        until: float,
    ) -> None:
        def repeat(at: float) -> None:
            if at >= until:
                self._timer = None
                call.hang_up(at, status=504)
            else:
                transaction.respond(response, at)
                self._arm(call, transaction, response, 2 * interval, at, until)

        # The intervals double without the limit T2 that a 2xx has (RFC 3262 §3).
        self._timer = call.core.timers.at(min(now + interval, until), repeat)


class EarlyDialogs:
    """The early dialogs that the branches of our INVITE opened, and the PRACKs that we send in them."""

    def __init__(self, core: UserAgentCore, call: Call) -> None:
        self._core = core
        self._call = call
        self._dialogs: dict[str, Dialog] = {}
        """By the peer's tag, like `_rseqs` and `_bodies`."""
        self._rseqs: dict[str, int] = {}
        self._bodies: dict[str, bytes] = {}

    def receive(self, response: Response, dialog: Dialog, now: float) -> bool:
        """Take in a provisional response with a To tag. False if it is a retransmission, or out of order."""
        tag = response.recipient.tag or ""
        early = self._dialogs.setdefault(tag, dialog)
        self._core.dialogs.setdefault(early.key, self._call)
        if response.body:
            self._bodies.setdefault(tag, response.body)
        rseq = _rseq(response)
        if rseq is None:
            return True
        last = self._rseqs.get(tag)
        # A number that is skipped is not acknowledged: the peer sends the missing response again first (RFC 3262 §4).
        if last is not None and rseq != last + 1:
            return False
        self._rseqs[tag] = rseq
        prack = early.request("PRACK")
        prack.headers.add("RAck", f"{rseq} {response.cseq}")
        # If the PRACK fails, the peer repeats its response until the time limits of the INVITE end the call.
        self._core.send_request(prack, early.next_hop(), ignore_response, now)
        return True

    def dialog_of(self, request: Request) -> Dialog | None:
        """Return the early dialog of a request from the peer."""
        return self._dialogs.get(request.sender.tag or "")

    def close(self) -> None:
        """Forget all early dialogs, because the INVITE has its final response."""
        for dialog in self._dialogs.values():
            if self._core.dialogs.get(dialog.key) is self._call:
                del self._core.dialogs[dialog.key]

    def confirm(self, response: Response, dialog: Dialog) -> bytes:
        """Continue the CSeq of the early dialog in the dialog of a 2xx, and return the answer to our offer.

        A reliable provisional response may have brought the answer; the 2xx then has no body (RFC 3262 §5).
        """
        tag = response.recipient.tag or ""
        early = self._dialogs.get(tag)
        if early is not None:
            dialog.local_cseq = max(dialog.local_cseq, early.local_cseq)
        return response.body or self._bodies.get(tag, b"")


def _rseq(response: Response) -> int | None:
    """Return the number of a reliable provisional response; None if it is not reliable."""
    value = response.headers.get("RSeq")
    if value is None or not response.headers.supports(OPTION_TAG):
        return None
    try:
        return parse_integer(value, _MAX_RSEQ)
    except ValueError:
        return None


def _rack(request: Request) -> tuple[int, CSeq] | None:
    number, _, rest = (request.headers.get("RAck") or "").strip().partition(" ")
    try:
        return parse_integer(number, _MAX_RSEQ), CSeq.parse(rest)
    except ValueError:
        return None
