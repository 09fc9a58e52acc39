from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.agents.flows.engine.prompt import Scope, ToolReference, find_references, resolve, resolve_text
from callagent.agents.flows.format.configuration import Variants

SCOPE = Scope(
    state={"name": "Anna", "count": 3, "hint": "Call {{fn:help}}.", "nothing": None},
    variants=Variants("a", {"a": {"site": "Downtown", "blank": ""}}),
    variant="a",
    collected={"day": "2026-08-28"},
    translations={"hello": {"en": "Hello", "de-DE": "Hallo"}},
    language="de-AT",
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hi $name, $count.", "Hi Anna, 3."),
        ("It is $5.00 or $1 or $.", "It is $5.00 or $1 or $."),
        ("$unknown and $name.first", "$unknown and Anna.first"),
        ("{{vrbl:name}} {{vrbl:missing}}", "Anna {{vrbl:missing}}"),
        ("$nothing", "None"),
        (
            "{{attr:site}}{{va:site}} ${variant_site} [{{attr:blank}}] {{attr:none}}",
            "DowntownDowntown Downtown [] {{attr:none}}",
        ),
        ("{{entity:day}} {{entity:party}}", "2026-08-28 party"),
        ("{{tn:hello}} {{tn:bye}}", "Hallo {{tn:bye}}"),
        ("call {{fn:help}}('x') or {{ft:next}}", "call help('x') or next"),
        (
            "{{ho:Front Desk}} {{twilio_sms:Address}} {{sms:Address}}",
            "transfer_to_front_desk send_sms_address send_sms_address",
        ),
    ],
)
def test_references_are_replaced(text: str, expected: str):
    assert resolve_text(text, SCOPE) == expected


def test_tools_are_listed_once_in_order_also_from_values():
    found = resolve("{{ft:b}} {{fn:a}} $hint {{fn:a}}", SCOPE).tools
    assert found == (ToolReference("ft", "b"), ToolReference("fn", "a"), ToolReference("fn", "help"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a<channel:voice>b</channel>c", "abc"),
        ("a<channel:webchat|sms>b</channel>c", "ac"),
        ("<language:de>Hallo</language><language:en>Hello</language>", "Hallo"),
        ("<language:de-DE>Hallo</language>", ""),
        ("<channel:voice>a<language:en>b</language>c</channel>d", "acd"),
        ("<channel:webchat>a<language:de>b</language>c</channel>d", "d"),
        ("a</channel>b", "ab"),
    ],
)
def test_conditional_tags_keep_or_drop_their_text(text: str, expected: str):
    assert resolve_text(text, SCOPE) == expected


def test_references_are_found_with_their_lines():
    assert find_references("a {{fn:x}}\nb {{sms:y}}") == [("fn", "x", 0), ("twilio_sms", "y", 1)]


@given(st.text(alphabet="{}:$<>/ fnvrbl_a1|channel", max_size=60))
def test_any_text_is_resolved_without_an_error(text: str):
    resolve(text, SCOPE)
