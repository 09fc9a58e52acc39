from __future__ import annotations

import pytest

from callagent.agents.action import Handoff
from callagent.config import Target
from callagent.targets import TargetRefused, resolve_target

TARGETS = (
    Target(name="support", uri="sip:support@192.0.2.1", headers={"X-Queue": "one"}),
    Target(prefix="+4420"),
    Target(prefix="+1"),
)


def test_a_named_target_gives_the_uri_of_the_settings_not_of_the_project() -> None:
    target = resolve_target(
        Handoff("Support", "asked", "refer", "sip:evil@203.0.113.1", {"X-Reason": "asked"}), TARGETS
    )
    assert target.uri == "sip:support@192.0.2.1"
    assert dict(target.headers) == {"X-Queue": "one", "X-Reason": "asked"}


def test_a_number_under_a_prefix_rule_may_be_called() -> None:
    assert resolve_target(Handoff("desk", "", "refer", "+44 20 7946-0000"), TARGETS).uri == "+442079460000"


def test_bye_with_headers_needs_no_destination() -> None:
    target = resolve_target(Handoff("queue", "", "bye", None, {"X-Route": "7"}), ())
    assert (target.method, target.uri) == ("bye", "")


@pytest.mark.parametrize(
    "number",
    [
        None,
        "",
        "sip:someone@203.0.113.1",
        "+19005551234",
        "+881612345678",
        "+4430000000",
        "02079460000",
        "+44 (0)9",
        "\uff0b442079460000",
        "tel:+442079460000",
        "+442079460000;phone-context=x",
        "+442079460000?Replaces=1",
        "+44207946%0d%0aX: y",
    ],
)
def test_anything_else_is_refused(number: str | None) -> None:
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("elsewhere", "", "refer", number), TARGETS)


@pytest.mark.parametrize("name", ["Via", "Refer-To", "bad name", "X\r\nY", ""])
def test_headers_that_steer_the_transaction_are_refused(name: str) -> None:
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("support", "", "refer", None, {name: "x"}), TARGETS)


def test_header_values_cannot_break_the_line() -> None:
    with pytest.raises(TargetRefused):
        resolve_target(Handoff("queue", "", "bye", None, {"X-A": "1\r\nX-B: 2"}), ())
