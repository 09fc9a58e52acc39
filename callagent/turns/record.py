"""What is kept of one turn: instants of the monotonic clock; every delay is derived from them."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Span:
    """A function's run or a filler's sound."""

    name: str
    started: float
    ended: float | None = None


@dataclass(slots=True)
class TurnRecord:
    """The caller's utterance and the agent's reply. None: it did not happen (yet)."""

    speech_started: float | None = None
    """First voiced frame of the caller's turn."""
    speech_ended: float | None = None
    """End of the last voiced frame."""
    transcript_ready: float | None = None
    turn_ended: float | None = None
    """The turn was handed to the agent."""
    first_token: float | None = None
    """Of the reply's last model request; written by the call."""
    functions: list[Span] = field(default_factory=list)
    """Written by the call."""
    fillers: list[Span] = field(default_factory=list)
    first_audio: float | None = None
    """The first frame of the reply went to the wire; fillers do not count."""
    playout_ended: float | None = None
    """The caller had heard everything."""
    interruption_started: float | None = None
    """First voiced frame of the speech that interrupted the reply."""
    interrupted_at: float | None = None
    """The playout fell silent because of it."""

    @property
    def endpointing_delay(self) -> float | None:
        """From the caller's last sound to the decision that the turn is over."""
        return _between(self.speech_ended, self.turn_ended)

    @property
    def transcription_delay(self) -> float | None:
        """From the caller's last sound to the final transcript."""
        return _between(self.speech_ended, self.transcript_ready)

    @property
    def response_delay(self) -> float | None:
        """From the caller's last sound to the reply's first frame: what the caller feels."""
        return _between(self.speech_ended, self.first_audio)

    @property
    def barge_in_reaction(self) -> float | None:
        """From the caller's first sound over the reply to its silence."""
        return _between(self.interruption_started, self.interrupted_at)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
