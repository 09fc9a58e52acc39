from __future__ import annotations

import pytest

from callagent.turns import TurnTimings


def test_delays_are_derived_from_the_instants() -> None:
    record = TurnTimings(
        speech_ended=10.0,
        transcript_ready=10.6,
        turn_ended=10.7,
        first_audio=11.1,
        interruption_started=12.0,
        interrupted_at=12.2,
    )
    assert record.endpointing_delay == pytest.approx(0.7)
    assert record.transcription_delay == pytest.approx(0.6)
    assert record.response_delay == pytest.approx(1.1)
    assert record.barge_in_reaction == pytest.approx(0.2)


def test_a_delay_of_what_did_not_happen_is_none() -> None:
    record = TurnTimings(first_audio=1.0)
    assert record.response_delay is None
    assert record.barge_in_reaction is None
