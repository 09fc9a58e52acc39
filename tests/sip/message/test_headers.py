"""Reason headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callagent.sip import Reason, parse_reasons


@pytest.mark.parametrize(
    ("value", "reason", "short"),
    [
        ('Q.850;cause=16;text="Terminated"', Reason("Q.850", 16, "Terminated"), "Q.850 16"),
        ('SIP ;cause=200 ;text="Call completed elsewhere"', Reason("SIP", 200, "Call completed elsewhere"), "SIP 200"),
        ('SIP;cause=600;text="Busy, \\"all\\" of them"', Reason("SIP", 600, 'Busy, "all" of them'), "SIP 600"),
        ("Preemption;cause=1", Reason("Preemption", 1), "Preemption 1"),
        ("X.Vendor", Reason("X.Vendor"), "X.Vendor"),
        ("Q.850;cause=31;location=LN", Reason("Q.850", 31), "Q.850 31"),
    ],
)
def test_what_a_peer_says_is_read(value: str, reason: Reason, short: str) -> None:
    assert Reason.parse(value) == reason
    assert str(reason) == short


def test_each_protocol_gives_its_own_and_what_cannot_be_read_is_passed_over() -> None:
    values = ['SIP;cause=480, Q.850;cause=19;text="No, answer"', "Q.850;cause=many", ";", ""]
    assert [str(reason) for reason in parse_reasons(values)] == ["SIP 480", "Q.850 19"]
    assert len(parse_reasons(["SIP;cause=480, " * 1000 + "SIP"])) == 8


@given(st.lists(st.text(), max_size=3))
def test_any_text_is_read_or_passed_over(values: list[str]) -> None:
    assert len(parse_reasons(values)) <= 8
