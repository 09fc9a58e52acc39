"""The states of a call as a table, the base class that applies it, and the requests that a call sends in its dialog.

The states follow RFC 3261 §13 to §15. A request in the dialog is repeated with a digest if the peer asks for one (§22).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial

from callagent.sip.dialog.core import UserAgentCore
from callagent.sip.dialog.dialog import Dialog
from callagent.sip.dialog.events import Call, EndCause
from callagent.sip.digest import MAX_CHALLENGES, Credentials, authorize_request
from callagent.sip.message import Hop, Message, Request, Response
from callagent.sip.transaction_layer import OnResponse


class CallState(Enum):
    INCOMING = "incoming"
    """The peer's INVITE has no final response yet."""
    ANSWERED = "answered"
    """Our 200 was sent; its ACK has not arrived."""
    BYE_PENDING = "BYE pending"
    """One side hung up before the ACK of our 200; our BYE may only follow the ACK (RFC 3261 §15)."""
    DIALLING = "dialling"
    """Our INVITE was sent; no response has arrived."""
    PROCEEDING = "proceeding"
    """A provisional response to our INVITE has arrived."""
    CANCEL_PENDING = "CANCEL pending"
    """We hung up before any response; our CANCEL may only follow a provisional one (RFC 3261 §9.1)."""
    CANCEL_SENT = "CANCEL sent"
    """Our CANCEL was sent; the final response to the INVITE has not arrived."""
    ESTABLISHED = "established"
    BYE_SENT = "BYE sent"
    """Our BYE was sent; its final response has not arrived."""
    ENDED = "ended"


class CallInput(Enum):
    RING = "ring"
    ANSWER = "answer"
    HANG_UP = "hang up"
    """The owner of the call hangs up or refuses it."""
    CANCEL = "cancel"
    """The peer's CANCEL, or its BYE before our final response."""
    BYE = "bye"
    """The peer's BYE."""
    ACK = "ack"
    NO_ACK = "no ack"
    """No ACK arrived within 64*T1 of our 2xx."""
    PROVISIONAL = "provisional"
    SUCCESS = "success"
    FAILURE = "failure"
    NO_RESPONSE = "no response"
    BYE_OVER = "bye over"
    """Our BYE has its final response, or timed out."""
    RETRY = "retry"
    """The INVITE failed, and another attempt (next server, credentials, longer session) is ready."""
    LOST = "lost"
    """The peer answered 408 or 481 within the call, or the session timer expired."""


class CallEffect(Enum):
    SEND_RINGING = "send ringing"
    SEND_ANSWER = "send answer"
    SEND_REFUSAL = "send refusal"
    SEND_TERMINATED = "send 487"
    SEND_INVITE = "send invite"
    SEND_CANCEL = "send cancel"
    SEND_BYE = "send bye"
    CONFIRM = "confirm"
    """Create the dialog of a 2xx and acknowledge it."""
    STOP_ANSWERING = "stop answering"
    EMIT_RINGING = "emit ringing"
    EMIT_ANSWERED = "emit answered"
    EMIT_CONFIRMED = "emit confirmed"
    EMIT_ENDED = "emit ended"


_S, _I, _E = CallState, CallInput, CallEffect

CALL_TABLE: dict[tuple[CallState, CallInput], tuple[CallState, tuple[CallEffect, ...]]] = {
    (_S.INCOMING, _I.RING): (_S.INCOMING, (_E.SEND_RINGING,)),
    (_S.INCOMING, _I.ANSWER): (_S.ANSWERED, (_E.SEND_ANSWER,)),
    (_S.INCOMING, _I.HANG_UP): (_S.ENDED, (_E.SEND_REFUSAL, _E.EMIT_ENDED)),
    # The owner did not answer within `ring_limit`.
    (_S.INCOMING, _I.NO_RESPONSE): (_S.ENDED, (_E.SEND_REFUSAL, _E.EMIT_ENDED)),
    (_S.INCOMING, _I.CANCEL): (_S.ENDED, (_E.SEND_TERMINATED, _E.EMIT_ENDED)),
    (_S.ANSWERED, _I.ACK): (_S.ESTABLISHED, (_E.STOP_ANSWERING, _E.EMIT_CONFIRMED)),
    (_S.ANSWERED, _I.NO_ACK): (_S.BYE_SENT, (_E.STOP_ANSWERING, _E.SEND_BYE, _E.EMIT_ENDED)),
    (_S.ANSWERED, _I.HANG_UP): (_S.BYE_PENDING, ()),
    # The CANCEL crossed our 200: the call has ended for its owner, and the ACK of the 200 makes us send BYE.
    (_S.ANSWERED, _I.CANCEL): (_S.BYE_PENDING, (_E.EMIT_ENDED,)),
    (_S.ANSWERED, _I.BYE): (_S.ENDED, (_E.STOP_ANSWERING, _E.EMIT_ENDED)),
    (_S.BYE_PENDING, _I.ACK): (_S.BYE_SENT, (_E.STOP_ANSWERING, _E.SEND_BYE)),
    (_S.BYE_PENDING, _I.NO_ACK): (_S.BYE_SENT, (_E.STOP_ANSWERING, _E.SEND_BYE)),
    (_S.BYE_PENDING, _I.BYE): (_S.ENDED, (_E.STOP_ANSWERING, _E.EMIT_ENDED)),
    (_S.DIALLING, _I.RETRY): (_S.DIALLING, (_E.SEND_INVITE,)),
    (_S.PROCEEDING, _I.RETRY): (_S.DIALLING, (_E.SEND_INVITE,)),
    (_S.DIALLING, _I.PROVISIONAL): (_S.PROCEEDING, (_E.EMIT_RINGING,)),
    (_S.DIALLING, _I.SUCCESS): (_S.ESTABLISHED, (_E.CONFIRM, _E.EMIT_ANSWERED)),
    (_S.DIALLING, _I.FAILURE): (_S.ENDED, (_E.EMIT_ENDED,)),
    (_S.DIALLING, _I.NO_RESPONSE): (_S.ENDED, (_E.EMIT_ENDED,)),
    # Nothing can be sent yet: a CANCEL could overtake the INVITE, so it waits for a first response (RFC 3261 §9.1).
    (_S.DIALLING, _I.HANG_UP): (_S.CANCEL_PENDING, ()),
    (_S.CANCEL_PENDING, _I.PROVISIONAL): (_S.CANCEL_SENT, (_E.SEND_CANCEL,)),
    (_S.CANCEL_PENDING, _I.SUCCESS): (_S.BYE_SENT, (_E.CONFIRM, _E.SEND_BYE)),
    (_S.CANCEL_PENDING, _I.FAILURE): (_S.ENDED, (_E.EMIT_ENDED,)),
    (_S.CANCEL_PENDING, _I.NO_RESPONSE): (_S.ENDED, (_E.EMIT_ENDED,)),
    (_S.PROCEEDING, _I.PROVISIONAL): (_S.PROCEEDING, (_E.EMIT_RINGING,)),
    (_S.PROCEEDING, _I.SUCCESS): (_S.ESTABLISHED, (_E.CONFIRM, _E.EMIT_ANSWERED)),
    (_S.PROCEEDING, _I.FAILURE): (_S.ENDED, (_E.EMIT_ENDED,)),
    (_S.PROCEEDING, _I.NO_RESPONSE): (_S.CANCEL_SENT, (_E.SEND_CANCEL,)),
    (_S.PROCEEDING, _I.HANG_UP): (_S.CANCEL_SENT, (_E.SEND_CANCEL,)),
    # The peer's 200 crossed our CANCEL: the call exists, and is ended by BYE (RFC 3261 §9.1).
    (_S.CANCEL_SENT, _I.SUCCESS): (_S.BYE_SENT, (_E.CONFIRM, _E.SEND_BYE)),
    (_S.CANCEL_SENT, _I.FAILURE): (_S.ENDED, (_E.EMIT_ENDED,)),
    (_S.CANCEL_SENT, _I.NO_RESPONSE): (_S.ENDED, (_E.EMIT_ENDED,)),
    (_S.ESTABLISHED, _I.HANG_UP): (_S.BYE_SENT, (_E.SEND_BYE,)),
    (_S.ESTABLISHED, _I.LOST): (_S.BYE_SENT, (_E.SEND_BYE, _E.EMIT_ENDED)),
    (_S.ESTABLISHED, _I.BYE): (_S.ENDED, (_E.EMIT_ENDED,)),
    # Both sides hang up at once: the peer's BYE is answered and ours runs to its end; the first cause stands.
    (_S.BYE_SENT, _I.BYE): (_S.BYE_SENT, ()),
    (_S.BYE_SENT, _I.BYE_OVER): (_S.ENDED, (_E.EMIT_ENDED,)),
}


_CAUSES = {
    CallInput.HANG_UP: EndCause.LOCAL,
    CallInput.CANCEL: EndCause.CANCELLED,
    CallInput.BYE: EndCause.REMOTE,
    CallInput.NO_ACK: EndCause.TIMEOUT,
    CallInput.NO_RESPONSE: EndCause.TIMEOUT,
    CallInput.FAILURE: EndCause.REFUSED,
    CallInput.LOST: EndCause.LOST,
}


class CallMachine(Call):
    """The state of one call, and the interface that the parts of the call (re-INVITE, REFER, session timer …) use.

    The parts get the call with each request or response and never keep it: a part that referred to its call would keep
    both alive until the garbage collector runs.
    """

    def __init__(self, core: UserAgentCore, invite: Request, *, outgoing: bool) -> None:
        self.core = core
        self.invite = invite
        self.outgoing = outgoing
        self.state = CallState.DIALLING if outgoing else CallState.INCOMING
        self.dialog: Dialog | None = None
        self.peer_host = ""
        self.attempts_spent = False
        self.last_description = b""
        """Our last session description; a session refresh without changes repeats it."""
        self.cause: EndCause | None = None
        """Why the call ends; set by the first input that ends it."""

    @property
    def is_established(self) -> bool:
        """Whether the call was answered, its ACK was sent or received, and no BYE was sent or received."""
        return self.state is CallState.ESTABLISHED

    def apply(self, event: CallInput, message: Message | None, now: float) -> None:
        """Apply one input to the table: change the state, then carry out the effects of the row."""
        row = CALL_TABLE.get((self.state, event))
        if row is None:
            return
        if self.cause is None:
            self.cause = _CAUSES.get(event)
        # The state changes first, because an effect may cause another input, which must meet the new state.
        self.state, effects = row
        for effect in effects:
            self.carry_out(effect, message, now)
        if self.state is CallState.ENDED:
            self.release()

    # What a call of either role implements

    def carry_out(self, effect: CallEffect, message: Message | None, now: float) -> None:
        """Carry out one effect of a row; `message` is the received one that caused the input, or the one to send."""
        raise NotImplementedError

    def release(self) -> None:
        """Stop all timers and forget the dialogs of a call that has ended."""
        raise NotImplementedError

    def lose(self, now: float) -> None:
        """End the call because the peer has vanished or does not know the dialog (RFC 3261 §12.2.1.2, RFC 5057)."""
        raise NotImplementedError

    def repeat_offer(self, now: float) -> None:
        """Send the last session description again in a re-INVITE, which refreshes the session (RFC 4028 §7.4)."""
        raise NotImplementedError

    def credentials_for(self, hop: Hop) -> Credentials | None:
        """Return the credentials that answer challenges of `hop`; None if its challenges are not answered."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Exchange:
    """One request within a dialog, and its repetitions with a digest; it does not refer to the call."""

    core: UserAgentCore
    dialog: Dialog
    hop: Hop
    credentials: Credentials | None
    on_response: OnResponse


def send_in_dialog(call: CallMachine, request: Request, on_response: OnResponse, now: float) -> None:
    """Send a request that the call's dialog made.

    A challenge (401 or 407) is answered with the credentials that the call's INVITE was sent with, at most
    `MAX_CHALLENGES` times; `on_response` gets every other response, and None if none arrives in time.
    """
    dialog = call.dialog
    assert dialog is not None, "a request within a dialog needs the dialog of its call"
    hop = dialog.next_hop()
    exchange = _Exchange(call.core, dialog, hop, call.credentials_for(hop), on_response)
    _send(exchange, request, MAX_CHALLENGES, now)


def ignore_response(response: Response | None, now: float) -> None:
    """Do nothing: for requests whose outcome changes nothing here."""


def _send(exchange: _Exchange, request: Request, challenges_left: int, now: float) -> None:
    # No nested functions: two that refer to each other are a cycle that only the garbage collector frees.
    on_response = partial(_receive, exchange, request, challenges_left)
    exchange.core.send_request(request, exchange.hop, on_response, now)


def _receive(
    exchange: _Exchange, request: Request, challenges_left: int, response: Response | None, now: float
) -> None:
    again = None
    if response is not None and response.status in (401, 407) and exchange.credentials is not None and challenges_left:
        again = authorize_request(request, response, exchange.credentials)
    if again is None:
        exchange.on_response(response, now)
    else:
        dialog = exchange.dialog
        dialog.local_cseq = max(dialog.local_cseq, again.cseq.number)
        _send(exchange, again, challenges_left - 1, now)
