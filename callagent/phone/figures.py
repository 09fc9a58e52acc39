"""Figures of a call from the caller's side: response times, yielding, talk-over, missed turns, words. No I/O.

All times are seconds since the answer. A span is the beginning and the end of a sound.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

Span = tuple[float, float]
TURN_VERBS = ("say", "play", "press", "interrupt")
"""The verbs of a script that the agent should answer."""
YIELD_WINDOW = 3.0
"""Seconds after an interruption begins within which the agent must fall silent to have yielded."""
GOING_ON_WINDOW = 3.0
"""Seconds after a backchannel within which the agent must be heard to have gone on."""


@dataclass(frozen=True, slots=True)
class CallerAction:
    """One step of the script that the caller carried out."""

    verb: str
    text: str
    started: float
    ended: float


@dataclass(slots=True)
class Figures:
    """The figures of one call."""

    turns: int = 0
    missed_turns: list[str] = field(default_factory=list)
    """Turns of the caller that the agent left unanswered until the caller's next one."""
    response_seconds: list[float] = field(default_factory=list)
    """For each answer, the time from the end of the caller's words to the agent's first sound."""
    yield_seconds: list[float] = field(default_factory=list)
    """For each interruption, the time from its first sound to the agent's last."""
    not_yielded: list[str] = field(default_factory=list)
    """Interruptions over which the agent kept speaking."""
    stopped_by_backchannel: list[str] = field(default_factory=list)
    """Backchannels after which the agent did not go on."""
    talk_over_seconds: float = 0.0
    """Seconds in which both spoke, backchannels not counted."""
    words_heard: int = 0
    not_heard: list[str] = field(default_factory=list)
    """The patterns that the script waited for and the agent did not say."""

    def to_json(self) -> dict[str, object]:
        return {
            "turns": self.turns,
            "missed_turns": self.missed_turns,
            "response": summary_of(self.response_seconds),
            "yield": summary_of(self.yield_seconds),
            "not_yielded": self.not_yielded,
            "stopped_by_backchannel": self.stopped_by_backchannel,
            "talk_over": round(self.talk_over_seconds, 3),
            "words_heard": self.words_heard,
            "not_heard": self.not_heard,
        }


def measure(actions: Sequence[CallerAction], agent: Sequence[Span], ended: float) -> Figures:
    """Return the figures of a call. `agent` holds the spans in which the agent was heard; `ended` is the call's end."""
    figures = Figures()
    turns = [action for action in actions if action.verb in TURN_VERBS]
    figures.turns = len(turns)
    for number, action in enumerate(turns):
        until = turns[number + 1].started if number + 1 < len(turns) else ended
        _count_answer(figures, action, agent, until)
    for action in actions:
        if action.verb == "interrupt":
            _count_yield(figures, action, agent)
        elif action.verb == "backchannel":
            _count_going_on(figures, action, agent)
    # Backchannels are left out: they are meant to be spoken into the agent's words.
    spoken = [(action.started, action.ended) for action in actions if action.verb in ("say", "play", "interrupt")]
    figures.talk_over_seconds = sum(_overlap(mine, theirs) for mine in spoken for theirs in agent)
    return figures


def _count_answer(figures: Figures, action: CallerAction, agent: Sequence[Span], until: float) -> None:
    # The agent may answer keys while their last pause is still being sent, so answers count from the first key.
    after = action.started if action.verb == "press" else action.ended
    starts = [start for start, _ in agent if after < start <= until]
    if starts:
        figures.response_seconds.append(max(0.0, starts[0] - action.ended))
    else:
        figures.missed_turns.append(action.text)


def _count_yield(figures: Figures, action: CallerAction, agent: Sequence[Span]) -> None:
    over = [span for span in agent if span[0] <= action.started <= span[1]]
    # If the agent had stopped by itself before the caller's first sound, there was nothing to yield.
    if not over:
        return
    seconds = over[0][1] - action.started
    if seconds <= YIELD_WINDOW:
        figures.yield_seconds.append(seconds)
    else:
        figures.not_yielded.append(action.text)


def _count_going_on(figures: Figures, action: CallerAction, agent: Sequence[Span]) -> None:
    if not any(start <= action.ended + GOING_ON_WINDOW and end > action.ended for start, end in agent):
        figures.stopped_by_backchannel.append(action.text)


def _overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def summary_of(values: Sequence[float]) -> dict[str, float | int]:
    """Return count, median, 95th percentile and maximum in seconds; only the count if there are no values."""
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    middle, high = nearest_rank(ordered, 0.5), nearest_rank(ordered, 0.95)
    return {"count": len(ordered), "p50": round(middle, 3), "p95": round(high, 3), "max": round(ordered[-1], 3)}


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """Return the smallest of the sorted values that a share of them, 0 to 1, does not exceed."""
    # Computed in binary, 0.95 * 20 is a little more than 19, and would be rounded up to 20.
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
