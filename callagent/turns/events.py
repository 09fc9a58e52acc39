"""What the turn-taker tells the call."""

from __future__ import annotations

from dataclasses import dataclass

from callagent.turns.playout import Utterance
from callagent.turns.turn_timings import TurnTimings


@dataclass(frozen=True, slots=True)
class BargedIn:
    """The caller took the floor from the agent; what was not heard is discarded. Close the reply."""

    heard_text: str
    """What the caller heard of the reply, without fillers; the last word may be cut."""
    at: float
    """When the playout fell silent."""


@dataclass(frozen=True, slots=True)
class CallerTurnEnded:
    """The caller said or keyed something and is done: the agent has the floor."""

    text: str
    """All that was said since the agent's last words; empty when there are digits."""
    alternatives: tuple[str, ...]
    digits: str
    added: str
    """What is new since the turn that was reopened; `text` when none was."""
    is_pii: bool
    """The digits are to be kept out of log, transcript and record."""
    record: TurnTimings
    """Being filled until the caller's next turn ends."""


@dataclass(frozen=True, slots=True)
class FloorYielded:
    """The agent's turn is over and heard: the caller has the floor."""

    heard_text: str
    at: float


@dataclass(frozen=True, slots=True)
class NoInput:
    """The caller stayed silent; the agent has the floor."""

    record: TurnTimings


@dataclass(frozen=True, slots=True)
class PartialHeard:
    """The caller's turn so far, for display; it may still change."""

    text: str


@dataclass(frozen=True, slots=True)
class PlayoutPaused:
    """The caller may be interrupting; the agent is silent until that is known."""

    at: float


@dataclass(frozen=True, slots=True)
class PlayoutResumed:
    """It was no interruption."""

    at: float


@dataclass(frozen=True, slots=True)
class SpeechFailed:
    """The voice did not make (all of) an utterance; it counts as said and heard as far as it went."""

    utterance: Utterance
    detail: str


@dataclass(frozen=True, slots=True)
class TurnReopened:
    """The caller goes on though the turn had been taken as ended, and has heard nothing of a reply. Close the reply;
    the next `CallerTurnEnded` holds the whole text."""

    text: str
    """What had been handed over."""
    at: float


@dataclass(frozen=True, slots=True)
class UtteranceFinished:
    """The caller has heard it to its end."""

    utterance: Utterance
    at: float


@dataclass(frozen=True, slots=True)
class UtteranceStarted:
    """Its first frame was taken for the wire."""

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
