"""The settings of a call, the states that it goes through, and the events of its inbox."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from callagent.agents import Action, Handoff, HangUp
from callagent.call_info import EndReason
from callagent.json_values import MutableJsonObject
from callagent.legs import LegEvent, TransferOutcome, TransferTarget
from callagent.log import Logger
from callagent.records import RecordWriter
from callagent.turns import TurnEvent

END_FUNCTION_ATTEMPTS = 2
"""How many times the end function is started at most, if it does not reach its end."""


@dataclass(frozen=True, slots=True)
class CallSettings:
    """How a call is run. All times are in seconds."""

    environment: str = "sandbox"
    answer_after: float = 3.0
    """Longest time to let the phone ring while the start function runs."""
    longest_call: float = 3600.0
    last_words_timeout: float = 30.0
    """Longest time to play the words before a hang-up or a transfer."""
    end_function_timeout: float = 30.0
    """Timeout of one run of the end function."""
    record_timeout: float = 0.5
    """Longest time to wait for the store to take the first record, or an attempt of the end function."""
    metric_timeout: float = 1.0
    """Longest time to wait for a metric to be durable, if the store's writer does not stop waiting sooner."""
    closing_timeout: float = 10.0
    """Timeout of each step of closing a call, except for the end function."""
    recordings: Path | None = None
    """Folder of the recordings; None: calls are not recorded."""
    fallback: str = ""
    """Name of the target for callers whom the agent cannot serve any longer; empty: such a call ends."""
    filler_after: float = 0.0
    """Silence before the answer after which a filler is said; 0: never."""
    transfers: int = 3
    """How many transfers the agent may ask for; refused and failed ones count too."""
    model_tokens: int = 1_000_000
    """How many tokens of language models, input and output together, the call may use."""
    language: str = "en-US"
    """Language of the server's own sentences, until the agent sets another one."""


@dataclass(frozen=True, slots=True)
class CallServices:
    """What all calls of a server share."""

    store: RecordWriter
    resolve_target: Callable[[Handoff], TransferTarget]
    """Return the place that a handoff leads to. Raises `TargetRefused`."""
    has_voice: Callable[[str, str], bool] = lambda provider, name: False
    """Tell whether a provider's voice of that name, or a configured replacement for it, is available."""
    signalling: Callable[[str], list[MutableJsonObject]] = lambda peer_call_id: []
    """Return the signalling messages of a call, given the identifier that its wire uses, for the record."""


# States ---------------------------------------------------------------------------------------------------------------


class CallState(Enum):
    STARTING = "starting"
    """The phone rings and the start function runs."""
    TALKING = "talking"
    LEAVING = "leaving"
    """The agent has decided to hang up or to hand off; its last words are being played."""
    TRANSFERRING = "transferring"
    BRIDGED = "bridged"
    """The caller speaks with the target of a transfer through us; the agent takes no part."""
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
    # From here on, only a transfer that fails leads back to the agent.
    (CallState.LEAVING, CallInput.TRANSFER): CallState.TRANSFERRING,
    (CallState.LEAVING, CallInput.TRANSFER_FAILED): CallState.TALKING,
    (CallState.LEAVING, CallInput.END): CallState.ENDED,
    (CallState.TRANSFERRING, CallInput.JOINED): CallState.BRIDGED,
    (CallState.TRANSFERRING, CallInput.TRANSFER_FAILED): CallState.TALKING,
    (CallState.TRANSFERRING, CallInput.END): CallState.ENDED,
    (CallState.BRIDGED, CallInput.TRANSFER_FAILED): CallState.TALKING,
    (CallState.BRIDGED, CallInput.END): CallState.ENDED,
}
"""A pair that is not in the table changes nothing: the input came too late."""


class CallMachine:
    """The state of one call. `apply` is the only place where it changes."""

    def __init__(self, log: Logger, on_change: Callable[[CallState], None]) -> None:
        self.state = CallState.STARTING
        self._log = log
        self._on_change = on_change

    def apply(self, call_input: CallInput) -> None:
        if (state := TRANSITIONS.get((self.state, call_input))) is not None:
            self._log.debug("call_state", old=self.state.value, new=state.value)
            self.state = state
            self._on_change(state)


# Events ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ActionEmitted:
    """The agent's reply `number` has emitted an action."""

    number: int
    action: Action


@dataclass(frozen=True, slots=True)
class ReplyEnded:
    """The agent's reply `number` is over; `error` says why it failed, if it did."""

    number: int
    error: str | None


@dataclass(frozen=True, slots=True)
class LastWordsPlayed:
    """The caller has heard what the agent said before leaving, or the time for it is up."""

    leaving: HangUp | Handoff


@dataclass(frozen=True, slots=True)
class TransferEnded:
    """The outcome of a transfer is known."""

    handoff: Handoff
    target: TransferTarget
    outcome: TransferOutcome


@dataclass(frozen=True, slots=True)
class AnswerDue:
    """The start function has had its time: the call is answered whether or not it is done."""


@dataclass(frozen=True, slots=True)
class EndRequested:
    """The server or somebody who watches asks the call to end."""

    reason: EndReason
    after_words: bool = False
    """Whether the caller is to hear the server's closing line first."""


@dataclass(frozen=True, slots=True)
class TakeOverRequested:
    """Somebody who watches gives the caller to a person."""

    handoff: Handoff


@dataclass(frozen=True, slots=True)
class ProvidersFailed:
    """Every provider of a role has failed at the same piece of work."""

    role: str
    """`recognizer` or `voice`; failures of models reach the call through the agent (`ModelAnswered`)."""


@dataclass(frozen=True, slots=True)
class SpeechMade:
    """The voice has delivered the first audio of a text."""

    text: str
    asked: float
    """When the voice was asked for it, on the loop's clock."""
    answered: float


@dataclass(frozen=True, slots=True)
class TokensRefused:
    """A request to a model was refused because the call has used all its tokens."""

    detail: str


CallEvent = (
    ActionEmitted
    | ReplyEnded
    | LastWordsPlayed
    | TransferEnded
    | AnswerDue
    | EndRequested
    | TakeOverRequested
    | ProvidersFailed
    | SpeechMade
    | TokensRefused
)
Event = LegEvent | TurnEvent | CallEvent
