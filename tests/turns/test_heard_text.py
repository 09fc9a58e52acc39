from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.speech.protocol import WordTime
from callagent.turns.playout import heard_text, resume_point

TEXT = "your table is booked"
WORDS = (
    WordTime("your", 0.0, 0.3),
    WordTime("table", 0.3, 0.8),
    WordTime("is", 0.8, 1.0),
    WordTime("booked", 1.0, 1.5),
)


@pytest.mark.parametrize(
    ("heard", "text"), [(0.1, ""), (0.2, "your"), (0.54, "your"), (0.6, "your table"), (1.3, TEXT), (1.5, TEXT)]
)
def test_a_word_is_heard_when_half_of_it_was(heard: float, text: str) -> None:
    assert heard_text(TEXT, WORDS, heard, 1.5) == text
    assert heard_text(TEXT, WORDS, heard, None) == text


def test_words_not_synthesised_yet_are_not_heard() -> None:
    assert heard_text(TEXT, WORDS[:2], 0.8, None) == "your table"


@pytest.mark.parametrize(("heard", "text"), [(0.0, ""), (0.5, "your"), (1.0, "your table"), (2.0, TEXT)])
def test_without_word_times_the_share_of_the_audio_tells(heard: float, text: str) -> None:
    assert heard_text(TEXT, (), heard, 2.0) == text


def test_without_word_times_and_end_the_usual_pace_tells() -> None:
    assert heard_text("a" * 14 + " " + "b" * 200, (), 1.0, None) == "a" * 14


def test_an_engine_that_counts_words_otherwise_tells_the_place_by_their_share() -> None:
    words = [
        WordTime(word, index * 0.5, index * 0.5 + 0.5) for index, word in enumerate(("at", "twenty", "four", "pm"))
    ]
    assert heard_text("at 24 o'clock pm", words, 1.0, 2.0) == "at 24"
    assert heard_text("at 24 o'clock pm", words, 0.5, None) == "at 24"


@pytest.mark.parametrize(("heard", "point"), [(0.0, 0.0), (0.5, 0.3), (1.0, 1.0), (9.0, 1.0)])
def test_an_interrupted_word_is_said_again(heard: float, point: float) -> None:
    assert resume_point(WORDS, heard) == point


@pytest.mark.parametrize(("heard", "point"), [(0.1, 0.0), (1.0, pytest.approx(0.7))])
def test_without_word_times_it_goes_back_a_third_of_a_second(heard: float, point: float) -> None:
    assert resume_point((), heard) == point


@given(st.text(), st.floats(0, 60), st.none() | st.floats(0, 60))
def test_what_was_heard_is_always_the_beginning_of_the_text(text: str, heard: float, length: float | None) -> None:
    assert text.split()[: len((words := heard_text(text, (), heard, length)).split())] == words.split()
