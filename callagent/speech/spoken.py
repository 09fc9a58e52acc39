"""Text as it is to be read aloud: a voice should not have to guess what `$1.50` or `03/04` is. Pure functions."""

from __future__ import annotations

from collections.abc import Callable

from callagent.speech.spoken_english import english
from callagent.speech.ssml import is_ssml

_LANGUAGES: dict[str, Callable[[str, str], str]] = {"en": english}
"""Primary language -> the text and its region in, the words out."""


def speakable(text: str, language: str) -> str:
    """`text` with numbers, dates, times, money and the like in words; as it is where the language is not known here.

    Text with markup is left alone: whoever wrote that has said how it is to be read.
    """
    primary, _, region = language.partition("-")
    words = _LANGUAGES.get(primary.lower())
    return text if words is None or is_ssml(text) else words(text, region.upper())
