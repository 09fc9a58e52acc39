from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.models.understanding import Answer, find_answer, is_repeat_request


@pytest.mark.parametrize(
    "said",
    ["yes", "Yes.", "yeah that's right", "sure go ahead", "okay", "that’s correct", "um, yes please", "that works",
     "no problem", "right", "of course", "yep"],
)  # fmt: skip
def test_yes(said: str) -> None:
    assert find_answer(said) is Answer.YES


@pytest.mark.parametrize(
    "said",
    ["no", "No thanks.", "nope that's not correct", "not really", "that's wrong", "I don't think so", "well, no",
     "I don't want that", "never mind", "yes, no, that's wrong", "nothing else", "that doesn't work",
     "not friday, thursday", "I'm good, thanks", "I don't"],
)  # fmt: skip
def test_no(said: str) -> None:
    assert find_answer(said) is Answer.NO


@pytest.mark.parametrize(
    "said",
    ["", "friday morning", "I don't have the number", "not bad", "what are your opening hours",
     "I'd like to book an appointment", "I am calling about my parcel", "I know the number",
     "tomorrow afternoon would be great", "eight four two seven six",
     "the package never arrived and I want my money back"],
)  # fmt: skip
def test_neither(said: str) -> None:
    assert find_answer(said) is None


@pytest.mark.parametrize(
    "said",
    ["wait, what day was that", "could you repeat that please I didn't catch it", "pardon", "say that again",
     "What was that?", "sorry", "can you please repeat"],
)  # fmt: skip
def test_repeat_request(said: str) -> None:
    assert is_repeat_request(said)


@pytest.mark.parametrize("said", ["", "yes", "I want to check the status of my order", "sorry, my parcel is lost"])
def test_no_repeat_request(said: str) -> None:
    assert not is_repeat_request(said)


@given(st.text(max_size=80))
def test_nothing_said_breaks_it(said: str) -> None:
    find_answer(said), is_repeat_request(said)
