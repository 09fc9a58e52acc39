"""Events that the turn manager gives to the call, and the timings of a turn that they carry."""

from __future__ import annotations

from dataclasses import dataclass, field

from callagent.turns.playout import Utterance


@dataclass(slots=True)
class Span:
    """The run of a function, or the time in which a filler is heard."""

    name: str
    started: float
    ended: float | None = None


@dataclass(slots=True)
class TurnTimings:
    """When things happened in a turn, on the monotonic clock; None: it has not happened.

    All delays of the record are derived from these times.
    """

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
