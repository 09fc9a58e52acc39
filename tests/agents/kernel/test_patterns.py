"""A project's expressions are bounded in time, and mean what they mean to Python."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.agents.flows import check_project
from callagent.agents.flows.engine.model_request import StreamFilter
from callagent.agents.flows.format.voice import Correction, PhraseFilter, correct
from callagent.agents.kernel.patterns import MAX_TIMEOUTS, Pattern
from tests.agents.flows.support import write_project
from tests.processor_time import processor_seconds

SLOW = r"(a|aa)+$"
HARD = "a" * 200 + "!"


def test_a_search_that_takes_too_long_finds_nothing_and_is_soon_given_up():
    pattern = Pattern(SLOW)
    began = time.thread_time()
    for _ in range(MAX_TIMEOUTS):
        assert pattern.search(HARD) is None
    first = time.thread_time() - began
    # Given up, a thousand searches take less than the few before.
    assert processor_seconds(lambda: [pattern.search(HARD) for _ in range(1000)], first) < first
    assert pattern.search(HARD) is None
    # Unbounded, it is two to the power of a hundred steps.
    assert first < 10


def test_a_slow_correction_and_a_slow_filter_let_the_words_through():
    rules = [Correction(Pattern(SLOW), "x", whole=False), Correction(Pattern("fur"), "four", whole=False)]
    assert correct(rules, f"fur {HARD}") == f"four {HARD}"
    rule = PhraseFilter("slow", (Pattern(SLOW),), say_phrase=False, language="", function=None)
    assert StreamFilter([rule], "en-US").check(HARD) is None


@pytest.mark.parametrize(
    ("text", "replacement", "said", "read"),
    [
        (r"(\d+)/7", r"\1 of 7", "Open 24/7.", "Open 24 of 7."),
        (r"(\w+)@(\w+)", "$1 at $2", "Mail ada@home", "Mail ada at home"),
        (r"\bSTRASSE\b", "street", "Große strasse", "Große street"),
        (r"(?<=No )(?P<n>\d)", "#", "No 5", "No #"),
        (r"(x)|(y)", r"[\2]", "xy", "[][y]"),
    ],
)
def test_replacements(text: str, replacement: str, said: str, read: str):
    assert Pattern(text, ignore_case=True).substitute(replacement, said) == read


@pytest.mark.parametrize("text", ["(", "[a", "a{2,1}", "(?P<x>a)(?P<x>b)", "*", r"\p{L}"])
def test_what_python_does_not_take_is_no_expression(text: str):
    with pytest.raises(ValueError, match=r"\w"):
        Pattern(text)


PIECES = st.sampled_from(
    ["a", "b", "[ab]", r"\w", r"\d", r"\s", ".", "(a|b)", "(?:ab)?", "a+", "b*?", r"\b", "é", "^", "$"]
)


@given(st.lists(PIECES, min_size=1, max_size=6).map("".join), st.text("abéB 1\n", max_size=12), st.booleans())
def test_it_finds_what_python_finds(text: str, subject: str, ignore_case: bool):
    expected = re.compile(text, re.IGNORECASE if ignore_case else 0).search(subject)
    found = Pattern(text, ignore_case=ignore_case).search(subject)
    assert (found and found.span()) == (expected and expected.span())


def test_an_entity_whose_expression_is_none_is_a_mistake_of_its_file(tmp_path: Path):
    entities = """
        entities:
          - name: code
            description: a code
            entity_type: alphanumeric
            config: {validation_type: custom, regular_expression: "("}
        """
    project = write_project(tmp_path, {"agent_settings/rules.txt": "Rules.", "config/entities.yaml": entities})
    (error,) = check_project(project).errors
    assert (error.file, error.line) == ("config/entities.yaml", 6)
    assert error.message.startswith("Not a valid regular expression")
