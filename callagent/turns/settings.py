"""How turns are taken, unless the agent's `Listen` action says otherwise for its turn."""

from __future__ import annotations

from dataclasses import dataclass

from callagent.agents import ListenSettings
from callagent.turns.endpointing import EndpointingTimes

ACKNOWLEDGEMENTS = frozenset(
    {"ah", "aha", "alright", "hm", "hmm", "huh", "mhm", "mhmm", "mm", "mm-hm", "mm-hmm", "mmhm", "mmm", "oh", "ok"}
    | {"okay", "right", "uh", "uh-huh", "uhhuh", "uhuh", "um", "yeah", "yep"}
)
"""Backchannel words, with which a listener says "go on": alone they do not take the floor from the agent."""


@dataclass(frozen=True, slots=True)
class TurnSettings:
    """How turns of one call are taken. All times are in seconds."""

    endpointing: float = 0.5
    """Silence that ends the caller's turn, counted from the caller's last sound."""
    finished: float = 0.35
    """The same, if the turn model finds that the caller has finished."""
    unfinished: float = 1.2
    """The same, if the words or the turn model show that more is to come."""
    turn_threshold: float = 0.5
    """Probability from which on the turn model's answer counts as a yes."""
    no_input: float = 7.0
    """Silence, from the end of the agent's last word, after which the caller's turn is an empty one."""
    final_wait: float = 2.0
    """Longest wait for the final transcript; then the last partial one stands."""
    resume_after: float = 2.0
    """Silence after which an utterance that a noise without words has paused goes on."""
    noise_limit: float = 4.0
    """Length of a noise without words after which the utterance that it has paused goes on all the same."""
    longest_turn: float = 60.0
    """Length of the caller's speech after which the turn is taken although voice activity goes on."""
    answer_window: float = 1.0
    """An acknowledgement ("okay") is an answer if it ends at most so long before the agent's last utterance does."""
    voice_wait: float = 5.0
    """Longest time for the voice to deliver the next piece of audio."""
    barge_in: bool = True
    """Whether the caller may interrupt the agent."""
    allow_on_first_turn: bool = False
    """Whether the caller may do so in the agent's first turn, with its greeting and disclaimer."""
    acknowledgements: frozenset[str] = ACKNOWLEDGEMENTS

    def endpointing_times(self) -> EndpointingTimes:
        return EndpointingTimes(self.endpointing, self.finished, self.unfinished, self.turn_threshold)

    def allows_barge_in(self, listen: ListenSettings, *, first_turn: bool) -> bool:
        allowed = self.barge_in if listen.barge_in is None else listen.barge_in
        return allowed and (self.allow_on_first_turn or not first_turn)
