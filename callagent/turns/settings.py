"""How turns are taken, where a `Listen` of the agent does not say otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from callagent.agents import ListenSettings
from callagent.turns.endpointing import EndpointingSettings
from callagent.turns.floor import FloorTimes

INTER_DIGIT = 2.0
"""Where the agent gives 0, its format's word for "the default"."""

ACKNOWLEDGEMENTS = frozenset(
    {"ah", "aha", "alright", "hm", "hmm", "huh", "mhm", "mhmm", "mm", "mm-hm", "mm-hmm", "mmhm", "mmm", "oh", "ok"}
    | {"okay", "right", "uh", "uh-huh", "uhhuh", "uhuh", "um", "yeah", "yep"}
)
"""Words with which a listener says "go on": alone they do not take the floor from the agent."""


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """All times are seconds."""

    endpointing: float = 0.5
    """Silence that ends the caller's turn, from the last voiced frame."""
    finished: float = 0.35
    """The same where a turn model is sure that the caller has finished."""
    unfinished: float = 1.2
    """The same where the words, or the model, say that more is to come."""
    turn_threshold: float = 0.5
    """Of the model's probability."""
    no_input: float = 7.0
    """Silence until an empty turn, from the end of the agent's last word."""
    final_wait: float = 2.0
    """How long the final transcript is waited for; then the last partial one stands."""
    resume_after: float = 2.0
    """Silence without words after which an interrupted utterance goes on."""
    noise_limit: float = 4.0
    """Sound without words over a paused utterance after which it goes on all the same."""
    longest_turn: float = 60.0
    """The caller's turn is taken then, though voice activity goes on."""
    answer_window: float = 1.0
    """So near to the end of the agent's last utterance an acknowledgement ("okay") is an answer."""
    voice_wait: float = 5.0
    """How long the voice may take for the next piece of audio."""
    barge_in: bool = True
    allow_on_first_turn: bool = False
    """False: greeting and disclaimer are not interruptible."""
    acknowledgements: frozenset[str] = ACKNOWLEDGEMENTS

    def patience(self) -> EndpointingSettings:
        return EndpointingSettings(self.endpointing, self.finished, self.unfinished, self.turn_threshold)

    def times(self, listen: ListenSettings) -> FloorTimes:
        """The floor's times in a turn taken as `listen` says."""
        return FloorTimes(
            no_input=self._no_input(listen),
            endpointing=self.endpointing if listen.endpointing is None else listen.endpointing,
            final_wait=self.final_wait,
            resume_after=self.resume_after,
            noise_limit=self.noise_limit,
            longest_turn=self.longest_turn if listen.longest_turn is None else listen.longest_turn,
            inter_digit=(listen.digits.inter_digit_timeout if listen.digits else 0.0) or INTER_DIGIT,
        )

    def allows_barge_in(self, listen: ListenSettings, *, first_turn: bool) -> bool:
        chosen = self.barge_in if listen.barge_in is None else listen.barge_in
        return chosen and (self.allow_on_first_turn or not first_turn)

    def _no_input(self, listen: ListenSettings) -> float:
        default = self.no_input
        if listen.digits is not None:
            first = listen.digits.first_digit_timeout
            default = max(default, first) if listen.speech else first
        return default if listen.no_input_timeout is None else listen.no_input_timeout
