from __future__ import annotations

import re

from callagent.agents.flows.engine.model_request import StreamFilter
from callagent.agents.flows.format.voice import PhraseFilter


def rule(pattern: str, *, say: bool = False, language: str = "", function: str | None = None) -> PhraseFilter:
    return PhraseFilter(pattern, (re.compile(pattern),), say, language, function)


def test_text_without_a_match_passes():
    assert StreamFilter([rule("[Gg]oodbye")], "en-US").check("Hello.") is None


def test_a_phrase_that_is_not_said_is_cut_before_it_begins():
    hit = StreamFilter([rule("transfer you")], "en-US").check("Fine, I transfer you now.")
    assert hit is not None
    assert hit.spoken == "Fine, I"


def test_a_phrase_that_is_said_is_said_up_to_its_end():
    hit = StreamFilter([rule("Goodbye", say=True)], "en-US").check("Goodbye and thanks.")
    assert hit is not None
    assert hit.spoken == "Goodbye"


def test_case_counts():
    assert StreamFilter([rule("Goodbye")], "en-US").check("goodbye") is None


def test_a_phrase_may_begin_in_the_sentence_before():
    stream = StreamFilter([rule(r"ready\. Hold")], "en-US")
    assert stream.check("I am ready.") is None
    hit = stream.check("Hold the line.")
    assert hit is not None
    assert hit.spoken == ""


def test_a_match_in_what_was_said_before_does_not_count_again():
    stream = StreamFilter([rule("ready")], "en-US")
    assert stream.check("I am ready.") is not None
    assert stream.check("Next.") is None


def test_the_earliest_match_of_all_filters_counts():
    hit = StreamFilter([rule("two"), rule("one")], "en-US").check("one two")
    assert hit is not None
    assert hit.filter.name == "one"


def test_a_filter_for_another_language_is_left_out():
    assert StreamFilter([rule("one", language="de")], "en-US").check("one") is None
    assert StreamFilter([rule("one", language="en")], "en-US").check("one") is not None
