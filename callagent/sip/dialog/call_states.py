"""The life of one call's INVITE dialog as a table, both roles."""

from __future__ import annotations

from enum import Enum


class CallState(Enum):
    INCOMING = "incoming"
    """The peer calls and has no final response yet."""
    ANSWERED = "answered"
    """Our 200 is out, its ACK is awaited."""
    REGRETTED = "regretted"
    """Somebody hung up while the ACK is awaited; the BYE has to wait for it (RFC 3261 §15)."""
    DIALLING = "dialling"
    """Our INVITE is out, nothing was heard."""
    PROCEEDING = "proceeding"
    """The peer answered provisionally."""
    GIVING_UP = "giving up"
    """We hung up, but CANCEL may only follow a provisional response (§9.1)."""
    CANCELLING = "cancelling"
    ESTABLISHED = "established"
    LEAVING = "leaving"
    """Our BYE is out."""
    ENDED = "ended"


class CallInput(Enum):
    RING = "ring"
    ANSWER = "answer"
    HANG_UP = "hang up"
    """Ours."""
    CANCEL = "cancel"
    BYE = "bye"
    """The peer's, as CANCEL."""
    ACK = "ack"
    NO_ACK = "no ack"
    PROVISIONAL = "provisional"
    SUCCESS = "success"
    FAILURE = "failure"
    NO_RESPONSE = "no response"
    BYE_OVER = "bye over"
    RETRY = "retry"
    """The INVITE failed in a way that another attempt may mend."""
    LOST = "lost"
    """The peer does not know the call any more, or has vanished."""


class CallEffect(Enum):
    SEND_RINGING = "send ringing"
    SEND_ANSWER = "send answer"
    SEND_REFUSAL = "send refusal"
    SEND_TERMINATED = "send 487"
    SEND_INVITE = "send invite"
    SEND_CANCEL = "send cancel"
    SEND_BYE = "send bye"
    CONFIRM = "confirm"
    """Make the dialog of a 2xx and acknowledge it."""
    STOP_ANSWERING = "stop answering"
    TELL_RINGING = "tell ringing"
    TELL_ANSWERED = "tell answered"
    TELL_CONFIRMED = "tell confirmed"
    TELL_ENDED = "tell ended"


_S, _I, _E = CallState, CallInput, CallEffect

CALL_TABLE: dict[tuple[CallState, CallInput], tuple[CallState, tuple[CallEffect, ...]]] = {
    (_S.INCOMING, _I.RING): (_S.INCOMING, (_E.SEND_RINGING,)),
    (_S.INCOMING, _I.ANSWER): (_S.ANSWERED, (_E.SEND_ANSWER,)),
    (_S.INCOMING, _I.HANG_UP): (_S.ENDED, (_E.SEND_REFUSAL, _E.TELL_ENDED)),
    # The owner never took the call.
    (_S.INCOMING, _I.NO_RESPONSE): (_S.ENDED, (_E.SEND_REFUSAL, _E.TELL_ENDED)),
    (_S.INCOMING, _I.CANCEL): (_S.ENDED, (_E.SEND_TERMINATED, _E.TELL_ENDED)),
    (_S.ANSWERED, _I.ACK): (_S.ESTABLISHED, (_E.STOP_ANSWERING, _E.TELL_CONFIRMED)),
    (_S.ANSWERED, _I.NO_ACK): (_S.LEAVING, (_E.STOP_ANSWERING, _E.SEND_BYE, _E.TELL_ENDED)),
    (_S.ANSWERED, _I.HANG_UP): (_S.REGRETTED, ()),
    # The CANCEL crossed our 200: the caller is gone, so no agent speaks to it, and its ACK brings our BYE.
    (_S.ANSWERED, _I.CANCEL): (_S.REGRETTED, (_E.TELL_ENDED,)),
    (_S.ANSWERED, _I.BYE): (_S.ENDED, (_E.STOP_ANSWERING, _E.TELL_ENDED)),
    (_S.REGRETTED, _I.ACK): (_S.LEAVING, (_E.STOP_ANSWERING, _E.SEND_BYE)),
    (_S.REGRETTED, _I.NO_ACK): (_S.LEAVING, (_E.STOP_ANSWERING, _E.SEND_BYE)),
    (_S.REGRETTED, _I.BYE): (_S.ENDED, (_E.STOP_ANSWERING, _E.TELL_ENDED)),
    (_S.DIALLING, _I.RETRY): (_S.DIALLING, (_E.SEND_INVITE,)),
    (_S.PROCEEDING, _I.RETRY): (_S.DIALLING, (_E.SEND_INVITE,)),
    (_S.DIALLING, _I.PROVISIONAL): (_S.PROCEEDING, (_E.TELL_RINGING,)),
    (_S.DIALLING, _I.SUCCESS): (_S.ESTABLISHED, (_E.CONFIRM, _E.TELL_ANSWERED)),
    (_S.DIALLING, _I.FAILURE): (_S.ENDED, (_E.TELL_ENDED,)),
    (_S.DIALLING, _I.NO_RESPONSE): (_S.ENDED, (_E.TELL_ENDED,)),
    (_S.DIALLING, _I.HANG_UP): (_S.GIVING_UP, ()),
    (_S.GIVING_UP, _I.PROVISIONAL): (_S.CANCELLING, (_E.SEND_CANCEL,)),
    (_S.GIVING_UP, _I.SUCCESS): (_S.LEAVING, (_E.CONFIRM, _E.SEND_BYE)),
    (_S.GIVING_UP, _I.FAILURE): (_S.ENDED, (_E.TELL_ENDED,)),
    (_S.GIVING_UP, _I.NO_RESPONSE): (_S.ENDED, (_E.TELL_ENDED,)),
    (_S.PROCEEDING, _I.PROVISIONAL): (_S.PROCEEDING, (_E.TELL_RINGING,)),
    (_S.PROCEEDING, _I.SUCCESS): (_S.ESTABLISHED, (_E.CONFIRM, _E.TELL_ANSWERED)),
    (_S.PROCEEDING, _I.FAILURE): (_S.ENDED, (_E.TELL_ENDED,)),
    (_S.PROCEEDING, _I.NO_RESPONSE): (_S.CANCELLING, (_E.SEND_CANCEL,)),
    (_S.PROCEEDING, _I.HANG_UP): (_S.CANCELLING, (_E.SEND_CANCEL,)),
    (_S.CANCELLING, _I.SUCCESS): (_S.LEAVING, (_E.CONFIRM, _E.SEND_BYE)),
    (_S.CANCELLING, _I.FAILURE): (_S.ENDED, (_E.TELL_ENDED,)),
    (_S.CANCELLING, _I.NO_RESPONSE): (_S.ENDED, (_E.TELL_ENDED,)),
    (_S.ESTABLISHED, _I.HANG_UP): (_S.LEAVING, (_E.SEND_BYE,)),
    (_S.ESTABLISHED, _I.LOST): (_S.LEAVING, (_E.SEND_BYE, _E.TELL_ENDED)),
    (_S.ESTABLISHED, _I.BYE): (_S.ENDED, (_E.TELL_ENDED,)),
    # Both hang up at once: the peer's BYE is answered, ours runs to its end; the first cause stands.
    (_S.LEAVING, _I.BYE): (_S.LEAVING, ()),
    (_S.LEAVING, _I.BYE_OVER): (_S.ENDED, (_E.TELL_ENDED,)),
}
