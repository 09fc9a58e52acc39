"""Markup in what the agent says (W3C SSML 1.1): passed on to voices that read it, put into words for the others."""

from __future__ import annotations

import re
from xml.etree import ElementTree
from xml.sax.saxutils import escape

TAGS = ("break", "emphasis", "p", "phoneme", "prosody", "s", "say-as", "sub")
"""Those that all voices with markup read; others are taken out."""
_TAG = re.compile(r"</?([a-zA-Z][\w:-]*)(?:\s[^<>]*)?/?>")
_ELEMENT = re.compile(r"<(sub|say-as)\b([^<>]*)>([^<>]*)</\1>", re.I)
_APART = ("digits", "telephone", "characters", "spell-out", "verbatim")
_MAX_CHARACTERS = 10_000


def is_ssml(text: str) -> bool:
    """Whether `text` has a tag that voices read. A lone `<` is no tag."""
    return any(match[1].lower() in (*TAGS, "speak") for match in _TAG.finditer(text[:_MAX_CHARACTERS]))


def plain(text: str) -> str:
    """The words for a voice that reads no markup."""
    if not is_ssml(text):
        return text
    text = _ELEMENT.sub(_spoken, text)
    text = re.sub(r"<(?:break|/?p|/?s)\b[^<>]*>", " ", text)
    return re.sub(r"\s+", " ", _unescape(_TAG.sub("", text))).strip()


def markup(text: str) -> str:
    """The inside of a `<speak>` element: known tags kept where they are well formed, all else as text."""
    if not is_ssml(text):
        return escape(text)
    kept = _TAG.sub(lambda match: match[0] if match[1].lower() in TAGS else "", text)
    # Ampersands of a text that was written by hand, or by a model, are seldom escaped.
    kept = re.sub(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)", "&amp;", kept)
    try:
        ElementTree.fromstring(f"<speak>{kept}</speak>")
    except ElementTree.ParseError:
        return escape(plain(text))
    return kept


def attribute(value: str) -> str:
    """`value` for use between double quotes."""
    return escape(value, {'"': "&quot;"})


def _spoken(match: re.Match[str]) -> str:
    attributes = dict(re.findall(r"""([\w-]+)\s*=\s*["']([^"']*)["']""", match[2]))
    if match[1].lower() == "sub":
        return str(attributes.get("alias", match[3]))
    if attributes.get("interpret-as") in _APART:
        return " ".join(character for character in match[3] if character.isalnum())
    return str(match[3])


def _unescape(text: str) -> str:
    import html

    return html.unescape(text)
