"""What a call was like for the caller: response, yielding, talk-over, missed turns, words. No I/O.

All times are seconds since the answer; a span is when one was heard.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Span = tuple[float, float]
TURNS = ("say", "play", "press", "interrupt")
"""What the agent owes an answer."""
YIELD_WINDOW = 3.0
"""Seconds after which an agent that still speaks has not yielded."""
GOES_ON_WITHIN = 3.0
"""Seconds within which the agent is heard again after a backchannel."""


@dataclass(frozen=True, slots=True)
class Deed:
    """One thing the caller did."""

    verb: str
    text: str
    started: float
    ended: float


@dataclass(slots=True)
class Figures:
    turns: int = 0
    missed_turns: list[str] = field(default_factory=list)
    """Turns of the caller that the agent left unanswered until the caller's next one."""
    response_seconds: list[float] = field(default_factory=list)
    """From the end of the caller's words to the agent's first sound, for each answer."""
    yield_seconds: list[float] = field(default_factory=list)
    """From the first sound of an interruption to the agent's last."""
    not_yielded: list[str] = field(default_factory=list)
    stopped_by_backchannel: list[str] = field(default_factory=list)
    """Listener's words after which the agent did not go on."""
    talk_over_seconds: float = 0.0
    """Both spoke, backchannels apart."""
    words_heard: int = 0
    not_heard: list[str] = field(default_factory=list)
    """What the script waited for and the agent did not say."""

    def to_json(self) -> dict[str, Any]:
        return {
            "turns": self.turns,
            "missed_turns": self.missed_turns,
            "response": _summary(self.response_seconds),
            "yield": _summary(self.yield_seconds),
            "not_yielded": self.not_yielded,
            "stopped_by_backchannel": self.stopped_by_backchannel,
            "talk_over": round(self.talk_over_seconds, 3),
            "words_heard": self.words_heard,
            "not_heard": self.not_heard,
        }


def measure(deeds: Sequence[Deed], agent: Sequence[Span], ended: float) -> Figures:
    """The figures of a call; `agent`: when it was heard, `ended`: when the call was over."""
    figures = Figures()
    turns = [deed for deed in deeds if deed.verb in TURNS]
    figures.turns = len(turns)
    for number, deed in enumerate(turns):
        until = turns[number + 1].started if number + 1 < len(turns) else ended
        _answered(figures, deed, agent, until)
    for deed in deeds:
        if deed.verb == "interrupt":
            _yielded(figures, deed, agent)
        elif deed.verb == "backchannel":
            _went_on(figures, deed, agent)
    spoken = [(deed.started, deed.ended) for deed in deeds if deed.verb in ("say", "play", "interrupt")]
    figures.talk_over_seconds = sum(_overlap(mine, theirs) for mine in spoken for theirs in agent)
    return figures


def _answered(figures: Figures, deed: Deed, agent: Sequence[Span], until: float) -> None:
    # The pause after the last key is sent while the answer may have begun.
    after = deed.started if deed.verb == "press" else deed.ended
    starts = [start for start, _ in agent if after < start <= until]
    if starts:
        figures.response_seconds.append(max(0.0, starts[0] - deed.ended))
    else:
        figures.missed_turns.append(deed.text)


def _yielded(figures: Figures, deed: Deed, agent: Sequence[Span]) -> None:
    over = [span for span in agent if span[0] <= deed.started <= span[1]]
    if not over:
        return
    took = over[0][1] - deed.started
    if took <= YIELD_WINDOW:
        figures.yield_seconds.append(took)
    else:
        figures.not_yielded.append(deed.text)


def _went_on(figures: Figures, deed: Deed, agent: Sequence[Span]) -> None:
    if not any(start <= deed.ended + GOES_ON_WITHIN and end > deed.ended for start, end in agent):
        figures.stopped_by_backchannel.append(deed.text)


def _overlap(one: Span, other: Span) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))


def _summary(values: Sequence[float]) -> dict[str, float | int]:
    if not values:
        return {"count": 0}
    ordered = sorted(values)
    middle, high = nearest_rank(ordered, 0.5), nearest_rank(ordered, 0.95)
    return {"count": len(ordered), "p50": round(middle, 3), "p95": round(high, 3), "max": round(ordered[-1], 3)}


def nearest_rank(ordered: Sequence[float], share: float) -> float:
    """The smallest of the sorted values that `share` of them, 0 to 1, do not exceed."""
    # 0.95 * 20 is a little more than 19.
    return ordered[max(0, math.ceil(share * len(ordered) - 1e-9) - 1)]
