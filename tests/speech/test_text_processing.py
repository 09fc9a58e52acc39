"""What the agent says, as it is read aloud: in words, with or without markup, cut where a speaker may pause."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.speech.text_processing import (
    MAX_SENTENCE,
    cardinal,
    escape_attribute,
    is_ssml,
    ordinal,
    plain_text,
    speakable,
    split_sentences,
    ssml_content,
    year_words,
)
from tests.processor_time import processor_seconds

READ = {
    # amounts
    "It costs $1.50 or £20.": "It costs one dollar and fifty cents or twenty pounds.",
    "You owe $0.99.": "You owe ninety-nine cents.",
    "€1,250": "one thousand two hundred fifty euros",
    "$1.2 million, $5k": "one point two million dollars, five thousand dollars",
    "$1 and £0.01": "one dollar and one penny",
    # dates and times
    "On 2026-03-14 at 19:30.": "On March fourteenth, twenty twenty-six at seven thirty PM.",
    "03/04/2026 at 7:05 pm": "March fourth, twenty twenty-six at seven oh five PM",
    "due by 3/4": "due by March fourth",
    "15/03/2026": "March fifteenth, twenty twenty-six",
    "March 3, 2026 and 14th of March": "March third, twenty twenty-six and March fourteenth",
    "at 7pm or 10:00-11:30": "at seven PM or ten AM to eleven thirty AM",
    "00:00, 12:00": "twelve AM, twelve PM",
    "in 1999, in 2005": "in nineteen ninety-nine, in two thousand five",
    "June 31": "June thirty-one",
    # telephone numbers and identifiers, digit by digit
    "Call (415) 555-0142.": "Call four one five, five five five, zero one four two.",
    "Call 4155550142.": "Call four one five, five five five, zero one four two.",
    "+44 20 7946 0958": "plus four four, two zero, seven nine four six, zero nine five eight",
    "parcel 84276": "parcel eight four two seven six",
    "code 0042": "code zero zero four two",
    "order AB12-C3": "order A B one two C three",
    # numbers
    "1,250 items, 3.14, 5%": "one thousand two hundred fifty items, three point one four, five percent",
    "-5 degrees, 20°C, 5 km": "minus five degrees, twenty degrees Celsius, five kilometers",
    "the 21st, 2-3 days, 1/2": "the twenty-first, two to three days, one half",
    "open 24/7": "open twenty-four seven",
    "5/8": "five over eight",
    "Smith & Sons, #4": "Smith and Sons, number four",
    # what is written for the eye
    "mail info@harbour-parcel.example": "mail info at harbour dash parcel dot example",
    "see https://www.x.com/help.": "see x dot com slash help.",
    "**Bold** and [this](https://a.b/c)": "Bold and this",
    "- one\n- two": "one\ntwo",
    # left alone
    "Hello, Mr. Smith! It's fine.": "Hello, Mr. Smith! It's fine.",
    "": "",
}


@pytest.mark.parametrize("text", READ)
def test_read_aloud(text: str) -> None:
    assert speakable(text, "en-US") == READ[text]


def test_the_region_decides_what_comes_first_in_a_date() -> None:
    assert speakable("03/04/2026", "en-GB") == "April third, twenty twenty-six"
    assert speakable("03/04/2026", "en") == "March fourth, twenty twenty-six"


def test_other_languages_and_markup_are_left_alone() -> None:
    assert speakable("1,50 €", "de-DE") == "1,50 €"
    assert speakable('<say-as interpret-as="date">2026</say-as>', "en-US").endswith("2026</say-as>")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"), (13, "thirteen"), (20, "twenty"), (99, "ninety-nine"), (100, "one hundred"), (-7, "minus seven"),
        (101, "one hundred one"), (1_000_001, "one million one"), (2_500, "two thousand five hundred"),
    ],
)  # fmt: skip
def test_cardinals(number: int, words: str) -> None:
    assert cardinal(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (1, "first"),
        (12, "twelfth"),
        (20, "twentieth"),
        (22, "twenty-second"),
        (30, "thirtieth"),
        (100, "one hundredth"),
    ],
)
def test_ordinals(number: int, words: str) -> None:
    assert ordinal(number) == words


@pytest.mark.parametrize(
    ("number", "words"),
    [(1900, "nineteen hundred"), (1905, "nineteen oh five"), (2000, "two thousand"), (2026, "twenty twenty-six")],
)
def test_years(number: int, words: str) -> None:
    assert year_words(number) == words


@given(st.text(alphabet="0123456789 ,.$%/:-+()#abAB@€°\n", max_size=40))
def test_nothing_that_is_said_raises_or_leaves_a_digit_unread_after_a_letterless_text(text: str) -> None:
    words = speakable(text, "en-US")
    if re.fullmatch(r"[\d ]*", text):
        assert not re.search(r"\d", words)


@pytest.mark.parametrize(
    "text", ["1" * 20_000, "1/" * 10_000, "1-" * 10_000, "[" * 10_000, "*a" * 10_000, "a@" * 10_000]
)
def test_long_nonsense_takes_no_long_time(text: str) -> None:
    assert processor_seconds(lambda: speakable(text, "en-US"), 5) < 5


@pytest.mark.parametrize("text", ["a < b", "I <3 you", "<b>bold</b>", "<>", "x<y>z"])
def test_what_is_no_markup_stays_text(text: str) -> None:
    assert not is_ssml(text)
    assert plain_text(text) == text
    assert "".join(ElementTree.fromstring(f"<s>{ssml_content(text)}</s>").itertext()) == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('One moment <break time="500ms"/> please', "One moment please"),
        ('<say-as interpret-as="digits">415</say-as>', "4 1 5"),
        ('<say-as interpret-as="characters">AB1</say-as>', "A B 1"),
        ('<say-as interpret-as="date">2026</say-as>', "2026"),
        ('<sub alias="World Wide Web">WWW</sub>', "World Wide Web"),
        ("<speak><p>Fish &amp; chips</p><p>today</p></speak>", "Fish & chips today"),
        ('<emphasis level="strong">Not</emphasis> now', "Not now"),
    ],
)
def test_words_for_a_voice_without_markup(text: str, words: str) -> None:
    assert is_ssml(text)
    assert plain_text(text) == words


def test_known_tags_are_kept_and_others_taken_out() -> None:
    text = '<speak>Fish & chips <audio src="https://x"/><break time="1s"/></speak>'
    assert ssml_content(text) == 'Fish &amp; chips <break time="1s"/>'


def test_tags_that_do_not_fit_together_become_words() -> None:
    assert ssml_content("<emphasis>not <p>closed</emphasis>") == "not closed"


@given(st.text(alphabet="<>/&;=\"abs '", max_size=60))
def test_markup_is_well_formed_whatever_was_said(text: str) -> None:
    ElementTree.fromstring(f"<speak>{ssml_content(text)}</speak>")
    ElementTree.fromstring(f'<speak lang="{escape_attribute(text)}"/>')


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
    assert split_sentences(text) == expected


def test_a_sentence_too_long_is_cut_at_its_last_clause() -> None:
    clause = "and another thing that goes on, "
    parts = split_sentences(clause * 12)
    assert len(parts) > 1
    assert all(len(part) <= MAX_SENTENCE and part.endswith(",") for part in parts)


@given(st.text(max_size=900))
def test_no_word_is_lost(text: str) -> None:
    parts = split_sentences(text)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(0 < len(part) <= MAX_SENTENCE for part in parts)
