"""A text is cut where a speaker may pause."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.speech.sentences import MAX_SENTENCE, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  \n ", []),
        ("Sure.", ["Sure."]),
        ("Thank you! For how many? Two.", ["Thank you!", "For how many?", "Two."]),
        ("Dr. Smith is in. He has time.", ["Dr. Smith is in.", "He has time."]),
        ("J. K. Rowling wrote it.", ["J. K. Rowling wrote it."]),
        ("We close at 7 p.m. on Friday. Is that fine?", ["We close at 7 p.m. on Friday.", "Is that fine?"]),
        ("It costs $9.99. Okay?", ["It costs $9.99.", "Okay?"]),
        ("First line\nsecond line", ["First line", "second line"]),
        ('He said "Come in." Then he left.', ['He said "Come in."', "Then he left."]),
        ("Wait… Really?", ["Wait…", "Really?"]),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert sentences(text) == expected


def test_a_sentence_too_long_is_cut_at_its_last_clause() -> None:
    clause = "and another thing that goes on, "
    parts = sentences(clause * 12)
    assert len(parts) > 1
    assert all(len(part) <= MAX_SENTENCE and part.endswith(",") for part in parts)


@given(st.text(max_size=900))
def test_no_word_is_lost(text: str) -> None:
    parts = sentences(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < len(part) <= MAX_SENTENCE for part in parts)
