"""Events that the turn manager gives to the call."""

from __future__ import annotations

from dataclasses import dataclass

from callagent.turns.playout import Utterance
from callagent.turns.turn_timings import TurnTimings


@dataclass(frozen=True, slots=True)
class BargedIn:
    """The caller has taken the floor from the agent, and what was not heard is discarded. The call closes the reply."""

    heard_text: str
    """What the caller heard of the reply, without fillers; the last word may be cut."""
    at: float
    """When the playout fell silent."""


@dataclass(frozen=True, slots=True)
class CallerTurnEnded:
    """The caller has said, keyed or written something and is done: the agent has the floor."""

    text: str
    """Everything that was said since the agent's last words; empty if there are digits."""
    alternatives: tuple[str, ...]
    digits: str
    added: str
    """What is new since the turn was reopened; the same as `text` if it was not."""
    is_pii: bool
    """Whether the digits are to be kept out of log, transcript and record."""
    timings: TurnTimings
    """Filled further until the caller's next turn ends."""


@dataclass(frozen=True, slots=True)
class FloorYielded:
    """The agent's turn is over and heard to its end: the caller has the floor."""

    heard_text: str
    at: float


@dataclass(frozen=True, slots=True)
class NoInput:
    """The caller stayed silent: the agent has the floor."""

    timings: TurnTimings


@dataclass(frozen=True, slots=True)
class PartialHeard:
    """The recogniser has transcribed more of the caller's turn; the text is for display and may still change."""

    text: str


@dataclass(frozen=True, slots=True)
class PlayoutPaused:
    """The caller may be interrupting: the agent is silent until that is known."""

    at: float


@dataclass(frozen=True, slots=True)
class PlayoutResumed:
    """It was not an interruption: the agent goes on."""

    at: float


@dataclass(frozen=True, slots=True)
class SpeechFailed:
    """The voice has failed at an utterance, which counts as said as far as there is audio of it."""

    utterance: Utterance
    detail: str


@dataclass(frozen=True, slots=True)
class TurnReopened:
    """The caller goes on with a turn that had been taken as ended, and has heard nothing of a reply.

    The call closes the reply; the next `CallerTurnEnded` has the text of the whole turn.
    """

    text: str
    """The text that the call was given for it."""
    at: float


@dataclass(frozen=True, slots=True)
class UtteranceFinished:
    """The caller has heard an utterance to its end."""

    utterance: Utterance
    at: float


@dataclass(frozen=True, slots=True)
class UtteranceStarted:
    """The first frame of an utterance was taken for the wire."""

    utterance: Utterance
    at: float


TurnEvent = (
    BargedIn
    | CallerTurnEnded
    | FloorYielded
    | NoInput
    | PartialHeard
    | PlayoutPaused
    | PlayoutResumed
    | SpeechFailed
    | TurnReopened
    | UtteranceFinished
    | UtteranceStarted
)
