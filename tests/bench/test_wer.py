"""Two ways of writing the same words are equal; a wrong word counts once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.bench.speech import errors, normalise


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("It's $20, I'd say.", "it is twenty dollars i would say"),
        ("four one five", "415"),
        ("4-1-5", "four, one, five"),
        ("March 14th", "march fourteenth"),
        ("the twenty-third", "the 23rd"),
        ("one hundred and five", "105"),
        ("1,250", "one thousand two hundred fifty"),
        ("nineteen ninety nine", "1999"),
        ("7:30 p.m.", "seven thirty PM"),
        ("I don't know, um, Mister Smith", "I do not know Mr. Smith"),
        ("e-mail", "email"),
        ("5%", "five percent"),
        ("hundred", "100"),
    ],
)
def test_written_in_two_ways(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"), [("you and five", "you five"), ("to two", "too 2"), ("yes", "no"), ("fifty", "fifteen")]
)
def test_different_words_stay_different(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


@pytest.mark.parametrize(
    ("reference", "heard", "wrong"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a x c", 1),
        ("a b c", "a c", 1),
        ("a b", "a x b", 1),
        ("a b", "", 2),
        ("", "a", 1),
    ],
)
def test_errors(reference: str, heard: str, wrong: int) -> None:
    assert errors(reference.split(), heard.split()) == wrong


@given(st.text(max_size=60))
def test_normalising_takes_anything_and_twice_is_once(text: str) -> None:
    words = normalise(text)
    assert all(word and word == word.lower() and " " not in word for word in words)
