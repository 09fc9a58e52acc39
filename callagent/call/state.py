"""The call's states and what moves them, its own events, and what it is given. Plain data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from callagent.agents import Action, Handoff, HangUp, Listen, Say
from callagent.call_info import EndReason
from callagent.legs import LegEvent, TransferOutcome, TransferTarget
from callagent.records import RecordWriter
from callagent.turns import TurnEvent

END_FUNCTION_ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class CallSettings:
    """All times are seconds."""

    environment: str = "sandbox"
    answer_after: float = 3.0
    """Ringing at most, while the start function runs."""
    longest_call: float = 3600.0
    last_words: float = 30.0
    """For the words before a hang-up or a transfer to be played."""
    end_function: float = 30.0
    first_record: float = 0.5
    """For the store to say that it knows of the call, before ringing."""
    metric: float = 1.0
    """For a metric to be durable; the store's writer has shorter bounds of its own."""
    closing: float = 10.0
    """For everything that is closed at the end, the end function apart."""
    recordings: Path | None = None
    fallback: str = ""
    """Name of the target for a caller whom the agent cannot serve any longer; empty: the call ends."""
    filler_after: float = 0.0
    """Silence while the caller waits for the answer, after which a word of patience is said; 0: none is."""
    transfers: int = 3
    """How often the agent may give the caller away; transfers that came to nothing and refused ones count too."""
    model_tokens: int = 1_000_000
    """Of language models, in and out."""
    language: str = "en-US"
    """Of the words that are the server's own."""


class CallState(Enum):
    STARTING = "starting"
    TALKING = "talking"
    LEAVING = "leaving"
    """The agent has decided to hang up or hand off; its last words are playing."""
    TRANSFERRING = "transferring"
    BRIDGED = "bridged"
    """The caller speaks with the target of a transfer, through us; the agent is out of it."""
    ENDED = "ended"


class CallInput(Enum):
    ANSWERED = "answered"
    LEAVE = "leave"
    TRANSFER = "transfer"
    JOINED = "joined"
    TRANSFER_FAILED = "transfer_failed"
    END = "end"


TRANSITIONS: dict[tuple[CallState, CallInput], CallState] = {
    (CallState.STARTING, CallInput.ANSWERED): CallState.TALKING,
    (CallState.STARTING, CallInput.END): CallState.ENDED,
    (CallState.TALKING, CallInput.LEAVE): CallState.LEAVING,
    (CallState.TALKING, CallInput.END): CallState.ENDED,
    (CallState.LEAVING, CallInput.TRANSFER): CallState.TRANSFERRING,
    (CallState.LEAVING, CallInput.TRANSFER_FAILED): CallState.TALKING,
    (CallState.LEAVING, CallInput.END): CallState.ENDED,
    (CallState.TRANSFERRING, CallInput.JOINED): CallState.BRIDGED,
    (CallState.TRANSFERRING, CallInput.TRANSFER_FAILED): CallState.TALKING,
    (CallState.TRANSFERRING, CallInput.END): CallState.ENDED,
    (CallState.BRIDGED, CallInput.TRANSFER_FAILED): CallState.TALKING,
    (CallState.BRIDGED, CallInput.END): CallState.ENDED,
}
"""A pair that is not here changes nothing: it came too late."""


@dataclass(frozen=True, slots=True)
class Acted:
    """The agent's reply `number` yielded an action."""

    number: int
    action: Action


@dataclass(frozen=True, slots=True)
class ReplyDone:
    number: int
    error: str | None


@dataclass(frozen=True, slots=True)
class LastWordsPlayed:
    leaving: HangUp | Handoff


@dataclass(frozen=True, slots=True)
class TransferEnded:
    handoff: Handoff
    target: TransferTarget
    outcome: TransferOutcome


@dataclass(frozen=True, slots=True)
class AnswerDue:
    """The start function has had its time: answer all the same."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    reason: EndReason
    after_words: bool = False
    """Once the caller has heard the closing line."""


@dataclass(frozen=True, slots=True)
class ProvidersFailed:
    """Nobody of a line-up could do its part."""

    role: str
    """`recognizer` or `voice`; what becomes of a model's request, the agent tells."""


@dataclass(frozen=True, slots=True)
class SpeechMade:
    """The voice began to answer."""

    text: str
    asked: float
    answered: float


@dataclass(frozen=True, slots=True)
class TakeOverAsked:
    """Somebody who watches gives the call to a person."""

    handoff: Handoff


@dataclass(frozen=True, slots=True)
class TokensRefused:
    """A request to a model was refused: the call's tokens are spent."""

    detail: str


Asked = EndAsked | TakeOverAsked
CallEvent = (
    Acted
    | ReplyDone
    | LastWordsPlayed
    | TransferEnded
    | AnswerDue
    | Asked
    | ProvidersFailed
    | SpeechMade
    | TokensRefused
)
Event = LegEvent | TurnEvent | CallEvent

ANSWERING = (Say, Listen, HangUp, Handoff)
"""Actions that show that the start function is done."""


@dataclass(frozen=True, slots=True)
class CallServices:
    """What all calls share."""

    store: RecordWriter
    resolve_target: Callable[[Handoff], TransferTarget]
    """Raises `TargetRefused`."""
    has_voice: Callable[[str, str], bool] = lambda provider, name: False
    """Whether a provider's voice, by its name there, can be had, or one that stands for it."""
    signalling: Callable[[str], list[dict[str, Any]]] = lambda peer_call_id: []
    """The messages of a call by its wire's identifier, for the record."""
