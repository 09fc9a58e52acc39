from __future__ import annotations

import pytest

from callagent.phone.figures import CallerAction, measure

AGENT = [(0.0, 2.0), (4.0, 6.2), (9.0, 10.0)]


def test_the_time_to_the_answer_is_counted_from_the_last_sound() -> None:
    figures = measure([CallerAction("say", "hello", 2.5, 3.2), CallerAction("press", "1", 7.0, 7.5)], AGENT, 20.0)
    assert figures.response_seconds == [pytest.approx(0.8), pytest.approx(1.5)]
    assert figures.missed_turns == []
    assert figures.talk_over_seconds == 0


def test_a_turn_without_an_answer_before_the_next_is_missed() -> None:
    figures = measure(
        [
            CallerAction("say", "one", 2.5, 2.6),
            CallerAction("say", "two", 3.0, 3.2),
            CallerAction("say", "three", 11.0, 12.0),
        ],
        AGENT,
        15.0,
    )
    assert figures.missed_turns == ["one", "three"]
    assert figures.turns == 3


def test_an_interruption_is_yielded_to_or_not() -> None:
    figures = measure([CallerAction("interrupt", "stop", 6.0, 6.8)], AGENT, 15.0)
    assert figures.yield_seconds == [pytest.approx(0.2)]
    assert figures.talk_over_seconds == pytest.approx(0.2)
    figures = measure([CallerAction("interrupt", "stop", 1.0, 1.5)], [(0.0, 8.0)], 15.0)
    assert (figures.yield_seconds, figures.not_yielded) == ([], ["stop"])


def test_after_a_listeners_word_the_agent_goes_on() -> None:
    assert measure([CallerAction("backchannel", "mm-hm", 5.0, 5.3)], AGENT, 15.0).stopped_by_backchannel == []
    assert measure([CallerAction("backchannel", "mm-hm", 9.9, 10.2)], AGENT, 15.0).stopped_by_backchannel == ["mm-hm"]


def test_figures_as_data() -> None:
    told = measure([CallerAction("say", "hello", 2.5, 3.2)], AGENT, 20.0).to_json()
    assert told["response"] == {"count": 1, "p50": 0.8, "p95": 0.8, "max": 0.8}
    assert told["yield"] == {"count": 0}
