"""Markup for the voices that read it, words for those that do not."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.speech.ssml import attribute, is_ssml, markup, plain


@pytest.mark.parametrize("text", ["a < b", "I <3 you", "<b>bold</b>", "<>", "x<y>z"])
def test_what_is_no_markup_stays_text(text: str) -> None:
    assert not is_ssml(text)
    assert plain(text) == text
    assert "".join(ElementTree.fromstring(f"<s>{markup(text)}</s>").itertext()) == text


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
    assert plain(text) == words


def test_known_tags_are_kept_and_others_taken_out() -> None:
    text = '<speak>Fish & chips <audio src="https://x"/><break time="1s"/></speak>'
    assert markup(text) == 'Fish &amp; chips <break time="1s"/>'


def test_tags_that_do_not_fit_together_become_words() -> None:
    assert markup("<emphasis>not <p>closed</emphasis>") == "not closed"


@given(st.text(alphabet="<>/&;=\"abs '", max_size=60))
def test_markup_is_well_formed_whatever_was_said(text: str) -> None:
    ElementTree.fromstring(f"<speak>{markup(text)}</speak>")
    ElementTree.fromstring(f'<speak lang="{attribute(text)}"/>')
