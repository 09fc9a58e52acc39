from __future__ import annotations

import pytest

from callagent.models.understanding import find_email, find_name, find_spelling


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("my name is Sarah Johnson", "Sarah Johnson"),
        ("this is michael anderson calling", "Michael Anderson"),
        ("it's David Garcia", "David Garcia"),
        ("my last name is Thompson", "Thompson"),
        ("I'm calling about my parcel", ""),
        ("it's not right", ""),
        ("Sarah Johnson", ""),
    ],
)
def test_name_is_found_where_it_is_introduced(said: str, name: str) -> None:
    assert find_name(said) == name


def test_bare_words_are_a_name_when_asked_for() -> None:
    assert find_name("sarah van dyke.", asked=True) == "Sarah van Dyke"
    assert find_name("yes", asked=True) == ""
    assert find_name("I want to speak to a real person please", asked=True) == ""


@pytest.mark.parametrize(
    ("said", "letters"), [("that's s m i t h", "smith"), ("S-M-I-T-H", "SMITH"), ("a b", ""), ("hello", "")]
)
def test_spelling_is_joined(said: str, letters: str) -> None:
    assert find_spelling(said) == letters


@pytest.mark.parametrize(
    ("said", "address"),
    [
        ("it is ann.lee@example.com thanks", "ann.lee@example.com"),
        ("ann dot lee at example dot com", "ann.lee@example.com"),
        ("meet me at noon", ""),
    ],
)
def test_email_is_found(said: str, address: str) -> None:
    assert find_email(said) == address
