"""Five hundred calls at random: never two voices at once, no filler after the answer, every heard word right."""

from __future__ import annotations

from collections import Counter

import pytest

from callagent.testing.virtual_time import run
from tests.random_calls import RandomCall


def play(seeds: range) -> Counter[str]:
    """What happened in the calls; asserts that nothing happened in them that must not."""
    happened: Counter[str] = Counter()
    for seed in seeds:
        call = RandomCall(seed)
        run(call.play())
        assert call.faults == [], f"call {seed}"
        happened.update(
            turns=call.agent.turns,
            interruptions=call.interruptions,
            cut=call.cut_texts,
            fillers=call.fillers,
            reopened=call.reopened,
            pauses=call.pauses,
        )
    return happened


@pytest.mark.parametrize("seed", [3530, 4295, 5166, 5629, 6222])
def test_a_carrier_that_holds_a_whole_utterance(seed: int) -> None:
    """Calls that once went wrong: all of what was being said was in the carrier's buffer."""
    play(range(seed, seed + 1))


def test_five_hundred_calls() -> None:
    happened = play(range(500))
    assert happened["cut"] >= 100
    assert happened["fillers"] >= 500
    assert happened["reopened"] >= 100
