"""How many files a reader follows from a transcript to the model's request, and from an INVITE to its leg."""

from __future__ import annotations

from pathlib import Path

from tests.trips import invite_trip, transcript_trip

MAX_TRANSCRIPT_FILES = 18
"""Lower it with each change that takes a file out of the way."""
MAX_TURN_FILES = 9
"""Of these, in `turns/` and `call/`."""
MAX_INVITE_FILES = 23
"""The goal of 25 is met."""


def test_a_final_transcript_reaches_the_model_through_few_files(tmp_path: Path) -> None:
    trip = transcript_trip(tmp_path)
    assert trip.files[-1].startswith("agents/"), trip
    assert len(trip.files) <= MAX_TRANSCRIPT_FILES, trip
    ours = [file for file in trip.files if file.startswith(("turns/", "call/"))]
    assert len(ours) <= MAX_TURN_FILES, trip


def test_an_invite_reaches_its_leg_through_few_files() -> None:
    trip = invite_trip()
    assert trip.files[0].startswith("sip/"), trip
    assert len(trip.files) <= MAX_INVITE_FILES, trip
