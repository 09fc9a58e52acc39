"""When things happened in a turn, on the monotonic clock; all delays of the record are derived from these times."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Span:
    """The run of a function, or the time in which a filler is heard."""

    name: str
    started: float
    ended: float | None = None


@dataclass(slots=True)
class TurnTimings:
    """Times of the caller's utterance and the agent's reply. None: it has not happened."""

    speech_started: float | None = None
    """Start of the first voiced frame of the caller's turn."""
    speech_ended: float | None = None
    """End of the caller's last sound."""
    transcript_ready: float | None = None
    """The last final transcript came."""
    turn_ended: float | None = None
    """The turn was given to the agent."""
    first_token: float | None = None
    """The first token of the reply's last model request came; set by the call."""
    functions: list[Span] = field(default_factory=list)
    """Functions that the reply ran; set by the call."""
    voice_asked: float | None = None
    """The voice was given the reply's first words; set by the call."""
    voice_answered: float | None = None
    """The voice delivered the first of their audio; set by the call."""
    fillers: list[Span] = field(default_factory=list)
    first_audio: float | None = None
    """The first frame of the reply was taken for the wire; fillers do not count."""
    playout_ended: float | None = None
    """The caller had heard the whole reply."""
    interruption_started: float | None = None
    """Start of the first voiced frame of the speech that interrupted the reply."""
    interrupted_at: float | None = None
    """The playout fell silent because of it."""

    @property
    def endpointing_delay(self) -> float | None:
        """Time from the caller's last sound to the decision that the turn is over."""
        return _between(self.speech_ended, self.turn_ended)

    @property
    def transcription_delay(self) -> float | None:
        """Time from the caller's last sound to the final transcript."""
        return _between(self.speech_ended, self.transcript_ready)

    @property
    def response_delay(self) -> float | None:
        """Time from the caller's last sound to the reply's first frame: the wait that the caller notices."""
        return _between(self.speech_ended, self.first_audio)

    @property
    def token_delay(self) -> float | None:
        """Time from the end of the turn to the model's first token."""
        return _between(self.turn_ended, self.first_token)

    @property
    def functions_delay(self) -> float | None:
        """Total time that functions ran before the reply's first frame; None: no function ran."""
        if not self.functions:
            return None
        until = self.first_audio
        spans = [(one.started, until if one.ended is None else one.ended) for one in self.functions]
        return sum(
            max(0.0, (end if until is None else min(end, until)) - start) for start, end in spans if end is not None
        )

    @property
    def voice_delay(self) -> float | None:
        """Time from the reply's first words to the first of their audio."""
        return _between(self.voice_asked, self.voice_answered)

    @property
    def wire_delay(self) -> float | None:
        """Time from the first of the reply's audio to its first frame on the wire."""
        return _between(self.voice_answered, self.first_audio)

    @property
    def barge_in_reaction(self) -> float | None:
        """Time from the caller's first sound over the reply to its silence."""
        return _between(self.interruption_started, self.interrupted_at)


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
