from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.agents.kernel.sentences import MAX_SENTENCE, SentenceSplitter


def split(*pieces: str) -> list[str]:
    splitter = SentenceSplitter()
    return [s for piece in pieces for s in splitter.feed(piece)] + splitter.finish()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Chang is in. Good.", ["Dr. Chang is in.", "Good."]),
        ("It costs 3.50 euros. Fine.", ["It costs 3.50 euros.", "Fine."]),
        ("Line one\nLine two", ["Line one", "Line two"]),
        ('He said "no." Then left.', ['He said "no."', "Then left."]),
        ("J. Smith called.", ["J. Smith called."]),
        ("こんにちは。元気？はい", ["こんにちは。", "元気？", "はい"]),
        ("   ", []),
    ],
)
def test_text_is_cut_at_sentence_ends(text: str, expected: list[str]):
    assert split(text) == expected


def test_a_sentence_is_complete_only_when_what_follows_is_known():
    splitter = SentenceSplitter()
    assert splitter.feed("It is 3.") == []
    assert splitter.feed("50 euros. ") == ["It is 3.50 euros."]


def test_text_without_an_end_is_cut_at_a_space():
    assert all(len(part) <= MAX_SENTENCE for part in split("word " * 200))


@given(st.lists(st.text(alphabet="ab .!?\n", max_size=8), max_size=12))
def test_no_word_is_lost_however_the_text_is_cut(pieces: list[str]):
    assert " ".join(split(*pieces)).split() == "".join(pieces).split()
