from __future__ import annotations

import pytest

from callagent.agents.flows.format.voice import correct, load_corrections, load_pronunciations, pronounce, same_language
from callagent.agents.kernel import Findings
from callagent.agents.kernel.documents import parse_yaml


def corrections(pattern: str, replacement: str, kind: str) -> str:
    return (
        "corrections:\n- name: a\n  regular_expressions:\n"
        f"  - {{regular_expression: '{pattern}', replacement: '{replacement}', replacement_type: {kind}}}\n"
    )


@pytest.mark.parametrize(
    ("pattern", "replacement", "kind", "text", "expected"),
    [
        ("m street", "Emmett Street", "partial", "on M Street please", "on Emmett Street please"),
        ("m street", "Emmett Street", "substring", "on m street", "on Emmett Street"),
        ("i (exam|care)", "eye \\1", "partial", "I exam", "eye exam"),
        ("yep", "yes", "full", "Yep", "yes"),
        ("yep", "yes", "full", "yep sure", "yep sure"),
        ("um\\s", "", "partial", "um hello", "hello"),
    ],
)
def test_a_transcript_is_corrected(pattern: str, replacement: str, kind: str, text: str, expected: str):
    document = parse_yaml(corrections(pattern, replacement, kind), "f", Findings())
    assert document is not None
    assert correct(load_corrections(document.root()), text) == expected


PRONUNCIATIONS = r"""
pronunciations:
- {regex: '24/7', replacement: twenty four seven}
- {regex: '\b([A-Z])\.\s', replacement: '$1_', case_sensitive: true}
- {regex: '(\d)([ -])digit', replacement: 'N\2digit'}
- {regex: 'Dr\.', replacement: Doktor, language_code: de-DE}
- {regex: 'Doktor', replacement: Doc}
"""


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("open 24/7", "en-US", "open twenty four seven"),
        ("J. Smith, a. b", "en-US", "J_Smith, a. b"),
        ("7-digit", "en-US", "N-digit"),
        ("Dr. No", "en-US", "Dr. No"),
        ("Dr. No", "de-DE", "Doc No"),
    ],
)
def test_pronunciations_are_applied_in_order_for_their_language(text: str, language: str, expected: str):
    document = parse_yaml(PRONUNCIATIONS, "f", Findings())
    assert document is not None
    assert pronounce(load_pronunciations(document.root()), text, language) == expected


@pytest.mark.parametrize(
    ("wanted", "current", "same"),
    [
        ("", "de-DE", True),
        ("en", "en-GB", True),
        ("en-US", "en-GB", False),
        ("EN-us", "en-US", True),
        ("de", "en", False),
    ],
)
def test_a_language_without_region_covers_every_region(wanted: str, current: str, same: bool):
    assert same_language(wanted, current) is same
