from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from callagent.models.understanding import Keywords, content_words

TOOLS = Keywords(
    [
        "parcel_status_wanted: The caller wants to know where a parcel is: check the status of an order, track it.",
        "speak_to_person: The caller asks to speak to a person: a human, an agent.",
        "open_claim: The parcel never arrived, is lost or damaged, or the caller wants a refund.",
        "say_goodbye: The caller says goodbye: bye, that is everything.",
    ]
)


def best(said: str) -> int | None:
    scores = TOOLS.scores(said)
    return scores.index(max(scores)) if max(scores) > 0 else None


def test_the_description_that_shares_most_wins() -> None:
    assert best("I want to check the status of my order") == 0
    assert best("where is my package") == 0
    assert best("can you tell me where my delivery is") == 0
    assert best("can I speak to a real person") == 1
    assert best("get me an operator") == 1
    assert best("the package never arrived and I want my money back") == 2
    assert best("that's everything thank you goodbye") == 3


def test_words_that_mean_nothing_here_choose_nothing() -> None:
    assert best("my internet has been down since this morning") is None
    assert best("") is None
    assert best("eight four two seven 6") is None
    assert best("and so on and so on") is None


def test_endings_and_synonyms_are_folded() -> None:
    assert content_words("arriving packages") == content_words("arrived parcel")
    assert content_words("shipping") == content_words("ships")


@given(st.text(max_size=80), st.lists(st.text(max_size=40), max_size=4))
def test_scores_are_between_none_and_all(said: str, descriptions: list[str]) -> None:
    assert all(0 <= score <= 1.000001 for score in Keywords(descriptions).scores(said))
